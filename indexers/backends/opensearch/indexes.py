"""An index: its state, statistics and marks, refresh, merge and removal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from cogr.errors import CheckFailedError, ServiceError, SnapshotError
from cogr.snapshots import Snapshot
from indexers.backends.opensearch.client import Cluster, service_error
from indexers.backends.opensearch.mapping import IndexState, check_scored, index_name

MERGE_SECONDS = 4 * 3600.0
"""Longest wait for a force-merge in seconds. If a load balancer cuts the request earlier, the merge
is polled.
"""
LEASE_SECONDS = 90.0
"""Longest wait in seconds until a node drops deleted documents that it keeps for the recovery of
copies; its timer runs every half minute.
"""
_LEASE_LOOK_EVERY = 5.0
LOOK_EVERY = 1.0


def read_index(cluster: Cluster, name: str) -> IndexState | None:
    """The index with exactly this name, or None."""
    answer = cluster.call("GET", f"/{name}", doing=f"looking at the index {name}", missing_ok=True)
    return IndexState.read(name, answer[name]) if answer and name in answer else None


def mark(cluster: Cluster, state: IndexState, **marks: bool) -> None:
    """Set `complete` or `verified` in the index's `_meta`."""
    body = {"_meta": {**state.meta, **marks}}
    cluster.call(
        "PUT", f"/{state.name}/_mapping", body=body, doing=f"marking the index {state.name}"
    )


def check_count(cluster: Cluster, name: str, snapshot: Snapshot) -> None:
    """Check that the index has exactly the snapshot's entities, and no deleted documents, which
    would change the statistics behind the scores. Raises CheckFailedError.
    """
    docs, expected = stats(cluster, name, "docs")["docs"], snapshot.manifest.entities
    if docs["count"] != expected:
        raise CheckFailedError(
            f"The index {name} holds {docs['count']} documents, the snapshot {expected}; delete it "
            "and push the snapshot again."
        )
    if docs["deleted"]:
        raise CheckFailedError(
            f"The index {name} has {docs['deleted']} deleted documents, so something else wrote "
            "to it; delete it and push again."
        )


def put_settings(cluster: Cluster, name: str, settings: Mapping[str, Any], doing: str) -> None:
    """Change settings of an index; None restores a default."""
    cluster.call("PUT", f"/{name}/_settings", body={"index": dict(settings)}, doing=doing)


def block_writes(cluster: Cluster, name: str) -> None:
    """Freeze an index: it takes no more writes."""
    cluster.call("PUT", f"/{name}/_block/write", doing=f"freezing the index {name}")


def refresh(cluster: Cluster, name: str) -> None:
    """Make writes visible to searches and statistics."""
    cluster.call("POST", f"/{name}/_refresh", doing=f"refreshing the index {name}")


def hits_of(
    cluster: Cluster, name: str, query: Mapping[str, Any], size: int, **wanted: Any
) -> list[dict[str, Any]]:
    """The first hits of a query, without their documents unless `_source` names some fields."""
    body = {"size": size, "query": query, "_source": False, **wanted}
    doing = f"reading documents of {name}"
    whole = {"allow_partial_search_results": "false"}
    answer = cluster.call("POST", f"/{name}/_search", body=body, params=whole, doing=doing)
    return list(answer["hits"]["hits"])


def merge(cluster: Cluster, name: str, patience: float = 0.0) -> None:
    """Merge to one segment a shard, without deleted documents. Only for an index that gets no more
    writes. Retries for `patience` seconds while deleted documents are kept for the recovery of
    copies (`LEASE_SECONDS`).
    """
    deadline = time.monotonic() + patience
    while True:
        _force_merge(cluster, name)
        if time.monotonic() > deadline or not stats(cluster, name, "docs")["docs"]["deleted"]:
            return
        time.sleep(_LEASE_LOOK_EVERY)


def _force_merge(cluster: Cluster, name: str) -> None:
    doing, params = f"merging the index {name}", {"max_num_segments": 1}
    deadline = time.monotonic() + MERGE_SECONDS
    while True:
        _, refusal = cluster.try_once("POST", f"/{name}/_forcemerge", None, params)
        if refusal is None:
            break
        if not refusal.is_transient or time.monotonic() > deadline:
            raise service_error(refusal, cluster.url, doing)
        # The request was cut, but the merge goes on in the cluster: wait for it, then repeat the
        # request, which costs nothing after a finished merge.
        while stats(cluster, name, "merge")["merges"]["current"] and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
    refresh(cluster, name)


def stats(cluster: Cluster, name: str, metric: str) -> dict[str, Any]:
    """Statistics of an index's primary shards. Raises ServiceError when a shard did not answer."""
    doing = f"reading the statistics of {name}"
    answer = cluster.call("GET", f"/{name}/_stats/{metric}", doing=doing)
    if (failed := answer["_shards"]["failed"]) or not answer["indices"]:
        raise ServiceError(
            f"{failed} shards of {name} at {cluster.url} gave no statistics; try again later."
        )
    primaries: dict[str, Any] = answer["indices"][name]["primaries"]
    return primaries


def pushed_index(cluster: Cluster, snapshot_id: str) -> IndexState:
    """The index of a pushed snapshot. Raises SnapshotError when there is none."""
    prefix = cluster.settings.prefix
    state = read_index(cluster, index_name(prefix, snapshot_id))
    if state is None or state.snapshot != snapshot_id:
        raise SnapshotError(
            f"Snapshot {snapshot_id} is not in OpenSearch at {cluster.url} under the prefix "
            f"{prefix}; run cogr-index publish {snapshot_id}."
        )
    return state


def complete_index(cluster: Cluster, snapshot_id: str) -> IndexState:
    """As `pushed_index`, if it is whole. Raises ServiceError where it is not scored."""
    state = pushed_index(cluster, snapshot_id)
    if not state.complete:
        raise SnapshotError(
            f"The index {state.name} is half-written; run cogr-index publish {snapshot_id}, which "
            "goes on."
        )
    check_scored(state, cluster.version)
    return state


def remove_index(cluster: Cluster, name: str) -> None:
    """Remove an index that serves nothing, such as a draft, if it is there."""
    cluster.call("DELETE", f"/{name}", doing=f"removing the index {name}", missing_ok=True)
