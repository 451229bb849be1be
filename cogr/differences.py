"""What differs between two snapshots of one side, entity by entity. Streaming, and linear in their size.

Pure data: what a difference means for an index is `indexers.backends`, what it means for people is `indexers.diffing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cogr.errors import SnapshotError
from cogr.snapshots import SCHEMA, Row, Snapshot

_COLUMNS = ["id", "text", "keywords"]
# No keyword holds a control character (`cogr.keywords.normalise`).
_BETWEEN = "\0"


@dataclass(frozen=True, slots=True)
class Difference:
    """One entity that is not the same in both: new (`before` is None), gone (`after` is None), or changed."""

    before: Row | None
    after: Row | None

    @property
    def id(self) -> str:
        """The entity's id."""
        row = self.after or self.before
        assert row is not None, "a difference has at least one row"
        return row.id


def differences(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    """Entities that are new, gone or changed (text, keywords, or their order), in id order.

    Memory: a few batches of rows of each.

    Raises:
        SnapshotError: the snapshots are of two sides.
    """
    if before.side != after.side:
        raise SnapshotError(f"{before.id} and {after.id} are of two sides; compare snapshots of one side.")
    # Decoding is most of the work, and leaves the interpreter to others.
    with ThreadPoolExecutor(2, "differences") as readers:
        old, new = _Window(before, readers), _Window(after, readers)
        while bound := min(filter(None, (old.last(), new.last())), default=None):
            yield from _compare(old.take(bound), new.take(bound))


class _Window:
    """The rows of a snapshot that are read and not yet compared; the next batch is read meanwhile."""

    def __init__(self, snapshot: Snapshot, readers: ThreadPoolExecutor) -> None:
        self._batches, self._readers = snapshot.batches(_COLUMNS), readers
        self._next = self._read()
        self._rows = _empty()

    def last(self) -> str | None:
        """The last id in sight; None when there are no more rows."""
        while not len(self._rows):
            batch = self._next.result()
            if batch is None:
                return None
            self._next = self._read()
            self._rows = pa.Table.from_batches([batch])
        return str(self._rows["id"][-1].as_py())

    def take(self, bound: str) -> pa.Table:
        """Take the rows up to this id out of the window. Arrow compares bytes, which is the order of code points."""
        count = pc.sum(pc.less_equal(self._rows["id"], bound)).as_py() or 0
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return taken

    def _read(self) -> Future[pa.RecordBatch | None]:
        return self._readers.submit(next, self._batches, None)


def _empty() -> pa.Table:
    return SCHEMA.empty_table().select(_COLUMNS)


def _compare(old: pa.Table, new: pa.Table) -> Iterator[Difference]:
    """Compare two runs of rows that cover the same span of ids."""
    at = pc.index_in(new["id"], value_set=old["id"].combine_chunks())
    gone = pc.invert(pc.is_in(old["id"], value_set=new["id"].combine_chunks()))
    there = old.take(at)
    same = pc.and_(
        pc.equal(there["text"], new["text"]),
        pc.equal(_joined(there), _joined(new)),
    )
    changed = np.flatnonzero(~pc.fill_null(same, False).to_numpy())
    pairs = [
        *((row, None) for row in _rows(old.filter(gone))),
        *zip(_rows(there.take(changed)), _rows(new.take(changed)), strict=True),
    ]
    found = [Difference(before, after) for before, after in pairs]
    yield from sorted(found, key=lambda one: one.id)


def _joined(table: pa.Table) -> pa.ChunkedArray:
    """Each row's keywords as one string."""
    # The kernel takes no list whose elements are declared never null.
    return pc.binary_join(table["keywords"].cast(pa.list_(pa.string())), _BETWEEN)


def _rows(table: pa.Table) -> Iterator[Row | None]:
    columns = (table[name].to_pylist() for name in _COLUMNS)
    for id_, text, keywords in zip(*columns, strict=True):
        yield None if id_ is None else Row(id_, text, tuple(keywords))
