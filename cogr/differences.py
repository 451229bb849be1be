"""Differences of two snapshots of one side, entity by entity. Streaming, and linear in their size.

Used by updates of an index, `cogr-index diff` and the reports of training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cogr.errors import SnapshotError
from cogr.snapshots import Row, Snapshot, rows_of

_COLUMNS = ["id", "text", "keywords"]
_COLUMNS_OF_QUERIES = [*_COLUMNS, "weights", "confidence"]
_STRINGS = pa.list_(pa.string())
_SCHEMA = pa.schema(
    [("id", pa.string()), ("text", pa.string()), ("keywords", _STRINGS), ("fields", pa.string())]
)
# Made of nulls: an array from Python lists would import pandas, which takes a second.
_NONE = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in _SCHEMA], schema=_SCHEMA)
_Ints = npt.NDArray[np.integer[Any]]


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
        columns = _COLUMNS_OF_QUERIES if snapshot.side == "query" else [*_COLUMNS, "body"]
        columns = [*columns, "fields"] if snapshot.manifest.fields else columns
        self._batches = snapshot.batches(columns)
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
    at = pc.fill_null(pc.index_in(new["id"], value_set=old["id"]), -1).to_numpy()
    known = np.flatnonzero(at >= 0)
    places = at[known]
    same = np.zeros(len(new), dtype=bool)
    same[known] = True
    for name in dict.fromkeys((*old.schema.names, *new.schema.names)):
        if name != "id":
            before, after = (_spelled(old, name).take(_at(places)), _spelled(new, name))
            same[known] &= pc.equal(before, after.take(_at(known))).to_numpy(zero_copy_only=False)
    gone = np.setdiff1d(np.arange(len(old)), places, assume_unique=True)
    changed = np.flatnonzero(~same)
    before = [None if place < 0 else place for place in at[changed].tolist()]
    pairs = [
        *((row, None) for row in _rows(old, gone.tolist())),
        *zip(_rows(old, before), _rows(new, changed.tolist()), strict=True),
    ]
    changes = [Difference(before, after) for before, after in pairs]
    yield from sorted(changes, key=lambda one: one.id)


def _at(places: _Ints | Sequence[int]) -> pa.Array:
    return pa.array(places, pa.int64())


def _spelled(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        return pa.repeat("", len(batch))
    column = batch[name]
    if pa.types.is_list(column.type):
        column = pc.binary_join(column.cast(_STRINGS), "\0")
    return pc.fill_null(column.cast(pa.string()), "")


def _rows(batch: pa.RecordBatch, places: Sequence[int | None]) -> Iterator[Row | None]:
    some = batch.take(_at([place for place in places if place is not None]))
    rows = rows_of(some)
    yield from (None if place is None else next(rows) for place in places)
