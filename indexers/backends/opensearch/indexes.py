"""Indexes and aliases: an index's state, statistics and marks, refresh and merge; and the aliases,
which name what serves.

Publishing is one atomic call that switches one side's alias or both; a rollback is the same with
an older snapshot. Deletion never takes an index that an alias names.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from cogr.errors import CheckFailedError, ServiceError, SnapshotError
from cogr.records import SIDES, Side
from cogr.snapshots import Snapshot, check_normalisers
from indexers.backends import Listed, check_side, side_of
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.errors import ForbiddenError, service_error
from indexers.backends.opensearch.mapping import IndexState, alias_name, check_scored, index_name

MERGE_SECONDS = 4 * 3600.0
"""Longest wait for a force-merge in seconds. If a load balancer cuts the request earlier, the merge
is polled.
"""
SEGMENTS = 2
"""Most segments of a shard after a push in full. One thread merges a segment, and merging is half
the time of a push by difference; with two segments that push is 1.3 times as fast. A search takes 2
% longer than with one segment (docs/LOG.md).
"""
SMALL_SEGMENT = 16 << 20
"""Segments below this size in bytes are merged together."""
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
    would change the statistics behind the scores.

    Raises:
        CheckFailedError: the counts differ.
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


def refresh(cluster: Cluster, name: str) -> None:
    """Make writes visible to searches and statistics."""
    cluster.call("POST", f"/{name}/_refresh", doing=f"refreshing the index {name}")


def merge(cluster: Cluster, name: str, shards: int, patience: float = 0.0) -> None:
    """Merge to at most SEGMENTS segments a shard, without deleted documents. Only for an index that
    gets no more writes.

    Args:
        patience: seconds of retries while deleted documents are kept for the recovery of copies
            (`LEASE_SECONDS`).
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
    """Settings for `drop_deleted`, for this index or a clone: large segments are not merged with
    each other, so that each has its own thread; small ones are merged into one of them.
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
    """Rewrite every segment without its deleted documents, with the settings `merging_apart`, which
    are removed afterwards.
    """
    _force_merge(cluster, name, {"only_expunge_deletes": "true"})
    body = {"index": dict.fromkeys((_THREADS, _LEFT_DELETED, _LARGEST))}
    cluster.call("PUT", f"/{name}/_settings", body=body, doing=f"merging the index {name}")


def _force_merge(cluster: Cluster, name: str, params: dict[str, Any]) -> None:
    """Force-merge to the end, also where a proxy cuts long requests; then refresh."""
    doing = f"merging the index {name}"
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


DRAFT_SECONDS = 3600.0
"""Age in seconds after which a draft counts as abandoned."""


def publish(cluster: Cluster, prefix: str, snapshots: Mapping[Side, str]) -> dict[Side, str | None]:
    """Switch the aliases of the given sides by one call. Returns what they named before.

    Raises:
        SnapshotError: a snapshot is not pushed, half-written, of the wrong side, or of another
            normaliser than the other side.
        CheckFailedError: a snapshot was not verified.
        ServiceError: an alias' name is taken, or the cluster refuses. The aliases are unchanged.
    """
    now = _aliased(cluster, prefix)
    new = {side: _publishable(cluster, prefix, side, id_) for side, id_ in snapshots.items()}
    pair = [state for side in SIDES for state in ([new[side]] if side in new else now[side])]
    check_normalisers({state.snapshot: str(state.meta.get("normaliser")) for state in pair})
    actions: list[dict[str, Any]] = []
    for side, state in new.items():
        alias, others = alias_name(prefix, side), [o for o in now[side] if o.name != state.name]
        actions += [_removal(other.name, alias) for other in others]
        if len(others) == len(now[side]):
            actions.append({"add": {"index": state.name, "alias": alias}})
    if actions:
        body, doing = {"actions": actions}, f"switching the aliases of {prefix}"
        cluster.call("POST", "/_aliases", body=body, doing=doing, retry_connection=False)
    return {side: now[side][0].snapshot if now[side] else None for side in new}


def _removal(index: str, alias: str) -> dict[str, Any]:
    """The alias action, which fails where the alias has moved meanwhile."""
    return {"remove": {"index": index, "alias": alias, "must_exist": True}}


def serving(cluster: Cluster, prefix: str) -> dict[Side, str | None]:
    """The snapshot that each alias names, or None.

    One request reads both, so they are consistent.
    """
    aliased = _aliased(cluster, prefix)
    states = {side: _only(prefix, side, aliased[side]) for side in SIDES}
    return {side: state.snapshot if state else None for side, state in states.items()}


def serving_index(cluster: Cluster, prefix: str, side: Side) -> IndexState | None:
    """The index that serves one side.

    Raises:
        ServiceError: the alias names several indexes, or one that cogr did not write.
    """
    return _only(prefix, side, _aliased(cluster, prefix, (side,))[side])


def _only(prefix: str, side: Side, states: list[IndexState]) -> IndexState | None:
    if len(states) > 1:
        names = " and ".join(state.name for state in states)
        raise ServiceError(
            f"The alias {alias_name(prefix, side)} names {names} at once; publish one snapshot "
            "to repair it."
        )
    return states[0] if states else None


def pushed_index(cluster: Cluster, prefix: str, snapshot_id: str) -> IndexState:
    """The index of a pushed snapshot. Raises SnapshotError when there is none."""
    state = read_index(cluster, index_name(prefix, snapshot_id))
    if state is None or state.snapshot != snapshot_id:
        raise SnapshotError(
            f"Snapshot {snapshot_id} is not in OpenSearch at {cluster.url} under the prefix "
            f"{prefix}; run cogr-index push {snapshot_id}."
        )
    return state


def complete_index(cluster: Cluster, prefix: str, snapshot_id: str) -> IndexState:
    """The index of a completely pushed snapshot.

    Raises SnapshotError otherwise, ServiceError when it is not scored.
    """
    state = pushed_index(cluster, prefix, snapshot_id)
    if not state.complete:
        raise SnapshotError(
            f"The index {state.name} is half-written; run cogr-index push {snapshot_id}, which "
            "goes on."
        )
    check_scored(state, cluster.version)
    return state


def listed(cluster: Cluster, prefix: str) -> list[Listed]:
    """Every pushed snapshot under the prefix, with its size, by side and id."""
    states = [state for state in _all(cluster, prefix) if _is_whole(prefix, state)]
    if not states:
        return []
    path, doing = f"/{_pattern(prefix)}/_stats/docs,store", "reading the sizes of the indexes"
    sizes = cluster.call("GET", path, doing=doing)["indices"]
    found = []
    for state in states:
        side, size = side_of(state.snapshot), sizes.get(state.name)
        found.append(
            Listed(
                snapshot=state.snapshot,
                side=side,
                documents=size["primaries"]["docs"]["count"] if size else 0,
                bytes=size["total"]["store"]["size_in_bytes"] if size else None,
                serving=alias_name(prefix, side) in state.aliases,
                complete=state.complete,
            )
        )
    return sorted(found, key=lambda one: (one.side, one.snapshot))


def _pattern(prefix: str) -> str:
    """A pattern for every index of a prefix, and for none of a longer prefix."""
    return ",".join(f"{alias_name(prefix, side)}-{side}-r*" for side in SIDES)


def _all(cluster: Cluster, prefix: str) -> list[IndexState]:
    """The indexes of a prefix that cogr wrote."""
    found = cluster.call("GET", f"/{_pattern(prefix)}", doing="listing the indexes")
    states = (IndexState.read(name, answer) for name, answer in found.items())
    return [state for state in states if state.snapshot]


def _is_whole(prefix: str, state: IndexState) -> bool:
    """Whether an index has the name of its snapshot, as a draft has not."""
    return state.name == index_name(prefix, state.snapshot)


def left_behind(cluster: Cluster, prefix: str) -> list[str]:
    """Abandoned indexes: drafts of dead pushes by difference, and indexes whose name is not that of
    their snapshot.

    Both must be older than DRAFT_SECONDS, longer than a push under way takes.
    """
    oldest = (time.time() - DRAFT_SECONDS) * 1e3
    return sorted(
        state.name
        for state in _all(cluster, prefix)
        if not state.aliases
        and not _is_whole(prefix, state)
        and float(state.settings["creation_date"]) < oldest
    )


def remove_index(cluster: Cluster, name: str) -> None:
    """Remove an index that serves nothing, such as a draft, if it is there."""
    cluster.call("DELETE", f"/{name}", doing=f"removing the index {name}", missing_ok=True)


def delete(cluster: Cluster, prefix: str, snapshot_id: str) -> None:
    """Remove the index of a snapshot.

    Where another snapshot serves the side, one atomic call removes the index and fails if the alias
    has changed. So a publish from another store, which shares no lease with this one, can't lose
    its index.

    Raises:
        SnapshotError: it is not there, or an alias names it.
        ServiceError: the alias was switched meanwhile; nothing is removed.
    """
    side = side_of(snapshot_id)
    alias, serves = alias_name(prefix, side), _aliased(cluster, prefix, (side,))[side]
    state = pushed_index(cluster, prefix, snapshot_id)
    if state.aliases:
        raise SnapshotError(
            f"Snapshot {snapshot_id} serves as {', '.join(state.aliases)}; publish another one "
            "before deleting it."
        )
    doing = f"deleting the index {state.name}"
    stays = [
        action
        for one in serves
        for action in (
            _removal(one.name, alias),
            {"add": {"index": one.name, "alias": alias, **one.alias_options[alias]}},
        )
    ]
    body = {"actions": [*stays, {"remove_index": {"index": state.name}}]}
    try:
        if stays:
            cluster.call("POST", "/_aliases", body=body, doing=doing, retry_connection=False)
    except ForbiddenError:
        stays = []
    if not stays:
        # Nothing serves, or this user may remove indexes but not change aliases (the role writer).
        cluster.call("DELETE", f"/{state.name}", doing=doing)


def _aliased(
    cluster: Cluster, prefix: str, sides: Sequence[Side] = SIDES
) -> dict[Side, list[IndexState]]:
    """The indexes that the alias of each of these sides names, by one request.

    Raises:
        ServiceError: a name belongs to an index, or an alias names an index that cogr did not
            write.
    """
    names = {side: alias_name(prefix, side) for side in sides}
    path, doing = ",".join(names.values()), f"looking at the aliases of {prefix}"
    found = cluster.call("GET", f"/{path}", params={"ignore_unavailable": "true"}, doing=doing)
    states = [IndexState.read(name, answer) for name, answer in sorted(found.items())]
    for alias in names.values():
        if alias in found:
            raise ServiceError(
                f"The name {alias} at {cluster.url} is taken by an index, so it can't be an "
                "alias; rename or remove the index, or choose another opensearch.prefix."
            )
    aliased = {
        side: [state for state in states if name in state.aliases] for side, name in names.items()
    }
    for side, state in ((side, state) for side, some in aliased.items() for state in some):
        if not state.snapshot:
            raise ServiceError(
                f"The alias {names[side]} at {cluster.url} names the index {state.name}, which "
                "was not written by cogr; choose another opensearch.prefix."
            )
    return aliased


def _publishable(cluster: Cluster, prefix: str, side: Side, snapshot_id: str) -> IndexState:
    check_side(snapshot_id, side)
    state = complete_index(cluster, prefix, snapshot_id)
    if not state.verified:
        raise CheckFailedError(
            f"The index {state.name} has not passed verification; run cogr-index verify "
            f"{snapshot_id}."
        )
    health = cluster.call(
        "GET", f"/_cluster/health/{state.name}", doing=f"asking for the health of {state.name}"
    )
    if health["status"] == "red":
        raise CheckFailedError(
            f"The index {state.name} has shards that are not there (red); see the cluster's "
            "health, or push the snapshot again."
        )
    return state
