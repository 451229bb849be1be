"""One index, whatever it is for: its state, statistics and marks, refresh and merge."""

from __future__ import annotations

import time
from typing import Any

from cogr.errors import CheckFailedError, ServiceError
from cogr.snapshots import Snapshot
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.errors import service_error
from indexers.backends.opensearch.mapping import IndexState

MERGE_SECONDS = 4 * 3600.0
"""Longest wait for a force-merge; a load balancer may cut the request much earlier, then it is
watched.
"""
SEGMENTS = 2
"""Of a shard, at most, after a push in full. Lucene merges a segment by one thread, and that is
half of a push by difference, which two
segments make 1.3 times as fast. A search takes 2 % longer than in one (docs/LOG.md)."""
SMALL_SEGMENT = 16 << 20
"""Bytes of a segment that is not worth a thread."""
LEASE_SECONDS = 90.0
"""Longest wait until a node lets go of deleted documents that it keeps for the recovery of copies:
a timer of half a minute does.
"""
_LEASE_LOOK_EVERY = 5.0
LOOK_EVERY = 1.0


def read_index(cluster: Cluster, name: str) -> IndexState | None:
    """The index of this very name, or None when there is none."""
    answer = cluster.call("GET", f"/{name}", doing=f"looking at the index {name}", missing_ok=True)
    return IndexState.read(name, answer[name]) if answer and name in answer else None


def mark(cluster: Cluster, state: IndexState, **marks: bool) -> None:
    """Set `complete` or `verified` in the index's `_meta`."""
    body = {"_meta": {**state.meta, **marks}}
    cluster.call(
        "PUT", f"/{state.name}/_mapping", body=body, doing=f"marking the index {state.name}"
    )


def check_count(cluster: Cluster, name: str, snapshot: Snapshot) -> None:
    """Exactly the snapshot's entities, and no deleted versions, which would change the statistics
    behind the scores.

    Raises:
        CheckFailedError: the counts differ.
    """
    docs = stats(cluster, name, "docs")["docs"]
    found, expected = docs["count"], snapshot.manifest.entities
    if found != expected:
        raise CheckFailedError(
            f"The index {name} holds {found} documents, the snapshot {expected}; delete it and "
            "push the snapshot again."
        )
    if docs["deleted"]:
        raise CheckFailedError(
            f"The index {name} has {docs['deleted']} deleted documents, so something else wrote "
            "to it; delete it and push again."
        )


def refresh(cluster: Cluster, name: str) -> None:
    """Let searches and statistics see what was written."""
    cluster.call("POST", f"/{name}/_refresh", doing=f"refreshing the index {name}")


def merge(cluster: Cluster, name: str, shards: int, patience: float = 0.0) -> None:
    """At most SEGMENTS segments a shard, and no deleted document left in an index that nobody
    writes to any more.

    Args:
        patience: seconds to try again for while deleted documents are kept for the recovery of
            copies (`LEASE_SECONDS`).
    """
    deadline = time.monotonic() + patience
    while True:
        if stats(cluster, name, "docs")["docs"]["deleted"]:
            body = {"index": merging_apart(cluster, name, shards)}
            cluster.call("PUT", f"/{name}/_settings", body=body, doing=f"preparing to merge {name}")
            drop_deleted(cluster, name)
        _force_merge(cluster, name, {"max_num_segments": SEGMENTS})
        if time.monotonic() > deadline or not stats(cluster, name, "docs")["docs"]["deleted"]:
            return
        time.sleep(_LEASE_LOOK_EVERY)


def merging_apart(cluster: Cluster, name: str, shards: int) -> dict[str, Any]:
    """Settings for `drop_deleted`, of this index or of a clone: large segments stay apart, so that
    each has a thread of its own; small ones join one of them.
    """
    found = stats(cluster, name, "store,docs")
    live, deleted = found["docs"]["count"], found["docs"]["deleted"]
    size = live / max(1, live + deleted) * found["store"]["size_in_bytes"] / shards
    return {
        _THREADS: SEGMENTS,
        _LEFT_DELETED: 0,
        _LARGEST: f"{max(SMALL_SEGMENT, int(1.1 * size / SEGMENTS))}b",
    }


_THREADS = "merge.scheduler.max_thread_count"
_LEFT_DELETED = "merge.policy.expunge_deletes_allowed"
_LARGEST = "merge.policy.max_merged_segment"


def drop_deleted(cluster: Cluster, name: str) -> None:
    """Write every segment that has deleted documents anew without them, by the settings
    `merging_apart`, which are taken back.
    """
    _force_merge(cluster, name, {"only_expunge_deletes": "true"})
    body = {"index": dict.fromkeys((_THREADS, _LEFT_DELETED, _LARGEST))}
    cluster.call("PUT", f"/{name}/_settings", body=body, doing=f"merging the index {name}")


def _force_merge(cluster: Cluster, name: str, params: dict[str, Any]) -> None:
    """Force-merge to the end, also where something between cuts long requests off; then refresh."""
    doing = f"merging the index {name}"
    deadline = time.monotonic() + MERGE_SECONDS
    while True:
        _, refusal = cluster.try_once("POST", f"/{name}/_forcemerge", None, params)
        if refusal is None:
            break
        if not refusal.is_transient or time.monotonic() > deadline:
            raise service_error(refusal, cluster.url, doing)
        # Cut off, but the merge runs on in the cluster: wait for it, then ask again, which is free
        # once it is done.
        while stats(cluster, name, "merge")["merges"]["current"] and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
    refresh(cluster, name)


def stats(cluster: Cluster, name: str, metric: str) -> dict[str, Any]:
    """Primaries' statistics of one index, refused when a shard did not answer."""
    answer = cluster.call(
        "GET", f"/{name}/_stats/{metric}", doing=f"reading the statistics of {name}"
    )
    shards = answer["_shards"]
    if shards["failed"] or not answer["indices"]:
        raise ServiceError(
            f"{shards['failed']} shards of {name} at {cluster.url} gave no statistics; try again "
            "later."
        )
    primaries: dict[str, Any] = answer["indices"][name]["primaries"]
    return primaries
