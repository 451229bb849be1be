"""Changes in the index that serves itself, for a few changed entities: nothing is copied and nothing switched.

The price: its statistics drift (drift.py), the snapshot before can't be rolled back to without a push, and between the first request and
the refresh at the end a death leaves some changes unseen; the same call goes on. The index then holds the new snapshot under the old one's
name (`_meta.index_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cogr.differences import Difference, differences
from cogr.errors import CheckFailedError, SnapshotError
from cogr.snapshots import Row, Snapshot
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.drift import (
    MOST_KEYWORDS,
    Drift,
    Statistics,
    deleted_documents,
    drift,
    exact_statistics,
    live_statistics,
)
from indexers.backends.opensearch.indexes import refresh
from indexers.backends.opensearch.mapping import IndexState, document, meta_of
from indexers.backends.opensearch.publish import serving_index
from indexers.backends.opensearch.writer import Document, change_documents


@dataclass(frozen=True)
class Changed:
    """What was changed, and how far the statistics are off now."""

    index: str
    written: int
    drift: Drift


def change(cluster: Cluster, prefix: str, base: Snapshot, snapshot: Snapshot, allowed: float) -> Changed:
    """Turn the index that serves `base` into one that serves `snapshot`; it is not verified then.

    Args:
        allowed: the largest drift (`Drift.largest`); what would drift further is not begun.

    Raises:
        SnapshotError: `base` does not serve, or its index has several shards.
        CheckFailedError: it would drift too far.
        ServiceError: the cluster went away; the same call goes on.
    """
    state = _serving(cluster, prefix, base, snapshot)
    changes = list(differences(base, snapshot))
    words = _words(changes)
    exact = exact_statistics(snapshot, words)
    written = _change(cluster, state, snapshot, changes, exact, allowed) if changes else 0
    found = drift(live_statistics(cluster, state.name, words), exact, deleted_documents(cluster, state.name))
    return Changed(state.name, written, found)


def _change(
    cluster: Cluster,
    state: IndexState,
    snapshot: Snapshot,
    changes: Sequence[Difference],
    exact: Statistics,
    allowed: float,
) -> int:
    """Make the changes, unless they would drift too far; how many documents."""
    words = exact.frequencies.keys()
    if state.meta.get("changing_to") != snapshot.id:
        expected = drift(_after(live_statistics(cluster, state.name, words), changes), exact, len(changes))
        if expected.largest > allowed:
            raise CheckFailedError(
                f"Changed in place, the statistics of {state.name} would be {expected.largest:.1%} off, and publish.max_drift is "
                f"{allowed:.1%}; run the update without --in-place, which writes an index with exact ones."
            )
    _mark(cluster, state, {**state.meta, "changing_to": snapshot.id})
    body = {"index": {"blocks.write": None}}
    cluster.call("PUT", f"/{state.name}/_settings", body=body, doing=f"letting {state.name} be written")
    written = change_documents(
        cluster,
        state.name,
        ((one.id, _document(snapshot, one.after)) if one.after else (one.id, None) for one in changes),
    )
    refresh(cluster, state.name)
    cluster.call("PUT", f"/{state.name}/_block/write", doing=f"freezing the index {state.name}")
    owner = {"index_of": state.owner, "in_place": True, "complete": True}
    _mark(cluster, state, {**meta_of(snapshot.manifest), **owner})
    return written


def _document(snapshot: Snapshot, row: Row) -> Document:
    return document(snapshot.side, row.id, row.text, row.self_keyword, list(row.keywords), row.fields_json)


def _serving(cluster: Cluster, prefix: str, base: Snapshot, snapshot: Snapshot) -> IndexState:
    state = serving_index(cluster, prefix, base.side)
    if state is None or state.snapshot != base.id or not state.complete:
        raise SnapshotError(
            f"Snapshot {base.id} does not serve, and only what serves is changed in place; run the update without --in-place."
        )
    if state.meta.get("changing_to") not in (None, snapshot.id):
        raise SnapshotError(
            f"The index {state.name} is half changed to {state.meta['changing_to']}; run that update again, or publish another snapshot."
        )
    if base.manifest.fields != snapshot.manifest.fields:
        raise SnapshotError(
            f"The item fields of {snapshot.id} are not of the types that the index {state.name} has; run the update without --in-place."
        )
    if state.shards != 1:
        raise SnapshotError(
            f"The index {state.name} has {state.shards} shards, and the drift of one shard alone can be measured; run the update without --in-place."
        )
    return state


def _mark(cluster: Cluster, state: IndexState, meta: dict[str, object]) -> None:
    cluster.call("PUT", f"/{state.name}/_mapping", body={"_meta": meta}, doing=f"marking the index {state.name}")


def _words(changes: Sequence[Difference]) -> list[str]:
    """Keywords of the changed entities, before and after."""
    rows = [row for one in changes for row in (one.before, one.after) if row]
    words = dict.fromkeys(word for row in rows for word in (row.self_keyword, *row.keywords) if word)
    return list(words)[:MOST_KEYWORDS]


def _after(live: Statistics, changes: Sequence[Difference]) -> Statistics:
    """Live statistics once the changes are made and nothing is merged away: what is replaced or removed counts on."""
    sets = [{word for word in (one.after.self_keyword, *one.after.keywords) if word} for one in changes if one.after]
    frequencies = {word: count + sum(word in own for own in sets) for word, count in live.frequencies.items()}
    return Statistics(live.documents + sum(map(bool, sets)), live.keywords + sum(len(own) for own in sets), frequencies)
