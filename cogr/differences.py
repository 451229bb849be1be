"""Differences of two snapshots of one side, entity by entity. Streaming, and linear in their size.

Used by updates of an index, `cogr-index diff` and the reports of training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cogr.errors import SnapshotError
from cogr.snapshots import Row, Snapshot, rows_of

_COMPARED = ("text", "keywords", "weights", "confidence", "body", "fields")
# Made of nulls: an array from Python lists would import pandas, which takes a second.
_NONE = pa.RecordBatch.from_arrays([pa.nulls(0, pa.string())], ["id"])


@dataclass(frozen=True, slots=True)
class Difference:
    """One entity that is not the same in both snapshots.

    Attributes:
        before: its row in the older one; None for a new entity.
        after: its row in the newer one; None for a removed one.
    """

    before: Row | None
    after: Row | None

    @property
    def id(self) -> str:
        row = self.after or self.before
        assert row is not None, "a difference has at least one row"
        return row.id

    @property
    def gained(self) -> tuple[str, ...]:
        """Keywords that only `after` has, in its order."""
        return _without(self.after, self.before)

    @property
    def lost(self) -> tuple[str, ...]:
        """Keywords that only `before` had, in its order."""
        return _without(self.before, self.after)


def _without(row: Row | None, other: Row | None) -> tuple[str, ...]:
    known = other.keywords if other else ()
    return tuple(word for word in row.keywords if word not in known) if row else ()


def differences(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    """New, removed and changed entities (text, keywords, their order and weights, confidence, an
    item's long text, extra fields), in id order.

    Memory: a few batches of rows of each snapshot, whatever its size.

    Raises:
        SnapshotError: one snapshot is of items and the other of queries.
    """
    if before.side != after.side:
        raise SnapshotError(
            f"{before.id} and {after.id} are of different sides; compare two of items or two of "
            "queries."
        )
    old, new = _Window(before), _Window(after)
    while bound := min(filter(None, (old.last(), new.last())), default=None):
        yield from _compare(old.take(bound), new.take(bound))


class _Window:
    def __init__(self, snapshot: Snapshot) -> None:
        self._batches = snapshot.batches()
        self._rows = _NONE

    def last(self) -> str | None:
        while not len(self._rows):
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._rows = batch
        return str(self._rows["id"][-1].as_py())

    def take(self, bound: str) -> pa.RecordBatch:
        # Arrow compares bytes, which is the order of code points.
        count = pc.sum(pc.less_equal(self._rows["id"], bound)).as_py() or 0
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return taken


def _compare(old: pa.RecordBatch, new: pa.RecordBatch) -> Iterator[Difference]:
    before, after = _spelled(old), _spelled(new)
    gone = {row.id: row for row in rows_of(_without_equal(old, before, after))}
    come = {row.id: row for row in rows_of(_without_equal(new, after, before))}
    for id_ in sorted(gone.keys() | come.keys()):
        yield Difference(gone.get(id_), come.get(id_))


def _without_equal(rows: pa.RecordBatch, own: pa.Array, other: pa.Array) -> pa.RecordBatch:
    return rows.filter(pc.invert(pc.is_in(own, value_set=other)))


def _spelled(rows: pa.RecordBatch) -> pa.Array:
    """Each row as one text, another for each other row."""
    parts = [rows["id"], *(_texts(rows, name) for name in _COMPARED)]
    # Only ids and texts can have line ends themselves; the length tells where the id ends.
    length = pc.binary_length(rows["id"]).cast(pa.string())
    return pc.binary_join_element_wise(length, *parts, "\n")


def _texts(rows: pa.RecordBatch, name: str) -> pa.Array:
    if name not in rows.schema.names:
        return pa.repeat("", len(rows))
    column = rows[name]
    if pa.types.is_list(column.type):
        column = pc.binary_join(column.cast(pa.list_(pa.string())), "\0")
    return pc.fill_null(column.cast(pa.string()), "")
