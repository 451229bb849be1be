"""Push: one snapshot into its own write-once index, which nothing serves yet.

create -> bulk -> refresh -> merge -> check -> write block -> replicas -> mark complete; where the
parent's index is there, copying.py takes the place of the first steps. Every step looks at what is
there, so the same call goes on after a death at any point. Switching the alias is publish.py's.
"""

from __future__ import annotations

import time
from typing import Any

from cogr.errors import ServiceError
from cogr.snapshots import Snapshot
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.copying import copy_and_change
from indexers.backends.opensearch.errors import IndexGoneError
from indexers.backends.opensearch.indexes import (
    LEASE_SECONDS,
    check_count,
    mark,
    merge,
    read_index,
    refresh,
    stats,
)
from indexers.backends.opensearch.mapping import (
    IndexState,
    check_scored,
    documents,
    index_name,
    index_settings,
    mapping,
    meta_of,
)
from indexers.backends.opensearch.writer import write_documents
from indexers.backends.protocol import Pushed

REPLICA_SECONDS = 1800.0
"""Longest wait for replicas to be copied."""
_LOOK_EVERY = 1.0


def push(cluster: Cluster, prefix: str, snapshot: Snapshot, base: Snapshot | None = None) -> Pushed:
    """Write a snapshot to its index and freeze it. Idempotent; goes on after an interruption.

    Args:
        base: the snapshot's parent; where its index is there, only the difference is written
            (copying.py).

    Raises:
        CheckFailedError: the index holds another number of documents than the snapshot.
        ServiceError: the cluster can't be reached or refuses, or something else has the index's
            name.
    """
    started = time.perf_counter()
    copied = copy_and_change(cluster, prefix, base, snapshot) if base else None
    state = _open_index(cluster, prefix, snapshot)
    written = copied or 0
    if not state.complete:
        if not state.write_blocked:
            written += _fill(cluster, state, snapshot)
        # A clone's push may have died before its merge. A node that died in mid-write may fill gaps
        # in the order of operations with marks, which count as deleted documents.
        merge(cluster, state.name, state.shards, LEASE_SECONDS)
        check_count(cluster, state.name, snapshot)
        if not state.write_blocked:
            cluster.call(
                "PUT", f"/{state.name}/_block/write", doing=f"freezing the index {state.name}"
            )
            check_count(cluster, state.name, snapshot)
    _set_replicas(cluster, state)
    if not state.complete:
        mark(cluster, state, complete=True)
    return Pushed(state.name, snapshot.manifest.entities, written, time.perf_counter() - started)


def _open_index(cluster: Cluster, prefix: str, snapshot: Snapshot) -> IndexState:
    """The snapshot's index: as it is there, or newly created."""
    name, meta = index_name(prefix, snapshot.id), meta_of(snapshot.manifest)
    state = read_index(cluster, name)
    if state is not None and _is_stale(cluster, state, meta):
        cluster.call(
            "DELETE", f"/{name}", doing=f"removing the stale index {name}", missing_ok=True
        )
        state = None
    if state is None:
        body = {
            "settings": index_settings(cluster.settings.shards),
            "mappings": mapping(snapshot.side, cluster.version, meta),
        }
        cluster.call(
            "PUT", f"/{name}", body=body, doing=f"creating the index {name}", exists_ok=True
        )
        state = read_index(cluster, name)
    if state is None:
        raise ServiceError(
            f"The index {name} vanished from {cluster.url} as it was created; push the snapshot "
            "again."
        )
    check_scored(state, cluster.version)
    return state


def _is_stale(cluster: Cluster, state: IndexState, meta: dict[str, Any]) -> bool:
    """True when the index must be written anew: other content or layout, or half-written with other
    shards.
    """
    if not state.snapshot:
        raise ServiceError(
            f"The index {state.name} at {cluster.url} was not written by cogr; remove it or "
            "choose another opensearch.prefix."
        )
    same = all(state.meta.get(key) == meta[key] for key in ("snapshot", "content_hash", "layout"))
    if same and (state.complete or state.shards == cluster.settings.shards):
        return False
    if state.aliases:
        raise ServiceError(
            f"The index {state.name} at {cluster.url} holds other content than the snapshot and "
            f"serves as {state.aliases[0]}; publish another snapshot first."
        )
    return True


def _fill(cluster: Cluster, state: IndexState, snapshot: Snapshot) -> int:
    """Write what is missing; the number of new documents."""
    refresh(cluster, state.name)
    if stats(cluster, state.name, "docs")["docs"]["count"] == snapshot.manifest.entities:
        return 0
    try:
        written = write_documents(cluster, state.name, documents(snapshot))
    except IndexGoneError:
        # One request found no index, another one may have made it anew.
        _check_still_ours(cluster, state)
        raise
    _check_still_ours(cluster, state)
    refresh(cluster, state.name)
    return written


def _check_still_ours(cluster: Cluster, state: IndexState) -> None:
    """Refuse to go on when somebody removed the index meanwhile.

    The bulk requests after that have made a new index of this name with a guessed mapping; that one
    is removed.
    """
    now = read_index(cluster, state.name)
    if now is not None and now.uuid == state.uuid:
        return
    if now is not None and not now.snapshot:
        cluster.call(
            "DELETE",
            f"/{state.name}",
            doing=f"removing what took the place of {state.name}",
            missing_ok=True,
        )
    raise ServiceError(
        f"The index {state.name} at {cluster.url} was removed while it was written; run the same "
        "command again."
    )


def _set_replicas(cluster: Cluster, state: IndexState) -> None:
    """Bring the replicas to the configured number and wait for them, where there are nodes to hold
    them.
    """
    wanted, name = cluster.settings.replicas, state.name
    if state.replicas != wanted:
        body = {"index": {"number_of_replicas": wanted}}
        cluster.call(
            "PUT", f"/{name}/_settings", body=body, doing=f"adding replicas to the index {name}"
        )
    deadline = time.monotonic() + REPLICA_SECONDS
    while wanted and not state.complete:
        health = cluster.call(
            "GET", f"/_cluster/health/{name}", doing=f"waiting for the replicas of {name}"
        )
        if health["status"] == "green" or health["number_of_data_nodes"] <= wanted:
            return
        if time.monotonic() > deadline:
            raise ServiceError(
                f"The replicas of the index {name} at {cluster.url} are not ready after "
                f"{REPLICA_SECONDS / 60:.0f} minutes; see its health, then run the same command "
                "again."
            )
        time.sleep(_LOOK_EVERY)
