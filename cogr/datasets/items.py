"""Items of a data set as one sequence over memory-mapped files, whose pages the kernel can drop, so
a million items take hardly any memory. An `Item` object is made on access.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cogr.datasets.reading import Place
from cogr.errors import DataError
from cogr.mapped import StringIndex, Strings, StringsSpool, arrow_strings, integers
from cogr.records import Item, Query

_E = TypeVar("_E", Item, Query, Item | Query)
_BLOCK = 4096


class Items(Sequence[Item]):
    """Items by position. Slices are views.

    Args:
        columns: ids, titles, texts and extra fields of all items.
        chosen: uint32, the rows that belong to this sequence, in its order; None for all of them.
    """

    def __init__(
        self, columns: Sequence[Strings], chosen: NDArray[np.uint32] | None = None
    ) -> None:
        self._columns = columns
        self._chosen = chosen
        self._rows = range(len(self.ids)) if chosen is None else chosen.data

    @property
    def ids(self) -> Strings:
        """The ids of all items, by row."""
        return self._columns[0]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> Items: ...
    def __getitem__(self, at: int | slice) -> Item | Items:
        if isinstance(at, slice):
            return Items(self._columns, np.array(self._rows[at], np.uint32))
        row = self._rows[at]
        return Item(*(column[row] for column in self._columns))

    def __iter__(self) -> Iterator[Item]:
        # Block by block takes a third of the time of one by one.
        for start in range(0, len(self), _BLOCK):
            yield from map(
                Item, *(texts.to_pylist() for texts in self._arrow(slice(start, start + _BLOCK)))
            )

    @cached_property
    def in_id_order(self) -> Items:
        """A view of the same items with ids ascending by code point."""
        ids = next(self._arrow(slice(None)))
        if len(ids) < 2 or pc.all(pc.less(ids[:-1], ids[1:])).as_py():
            return self
        order = integers(pc.sort_indices(ids))
        chosen = order if self._chosen is None else self._chosen[order]
        return Items(self._columns, chosen.astype(np.uint32))

    def _arrow(self, part: slice) -> Iterator[pa.Array]:
        if self._chosen is None:
            return (column.arrow[part] for column in self._columns)
        rows = np.ascontiguousarray(self._chosen[part])
        positions = pa.Array.from_buffers(pa.uint32(), len(rows), [None, pa.py_buffer(rows)])
        return (column.arrow.take(positions) for column in self._columns)


def in_id_order(entities: Sequence[_E]) -> Sequence[_E]:
    """Entities with ids ascending by code point."""
    return (
        entities.in_id_order
        if isinstance(entities, Items)
        else sorted(entities, key=lambda entity: entity.id)
    )


class ItemsSpool:
    """Items that are added, and then read as `Items`. Raises StorageError when the disk is full."""

    def __init__(self) -> None:
        self._columns = [StringsSpool() for _ in range(4)]
        self._waiting: list[tuple[str, str, str, str]] = []

    def add(self, item: Item) -> None:
        """Add an item, whose texts hold no lone surrogate."""
        self._waiting.append((item.id, item.title, item.text, item.fields_json))
        if len(self._waiting) == _BLOCK:
            self._flush()

    def items(self) -> Items:
        """All items. After this call nothing may be added."""
        self._flush()
        return Items([Strings(column.arrow()) for column in self._columns])

    def _flush(self) -> None:
        for column, texts in zip(self._columns, zip(*self._waiting, strict=True), strict=False):
            column.append(arrow_strings(texts))
        self._waiting.clear()


class ItemTable:
    """The items of a data set while it is read: added one by one, and then asked for.

    In memory: some 16 bytes an item, none of its texts.
    """

    def __init__(self) -> None:
        self._spool = ItemsSpool()
        self._lines = array("I")
        # Most sources hold many items: position of the first item of each source, and its place.
        self._runs: list[tuple[int, Place]] = []

    def add(self, place: Place, item: Item) -> None:
        """Add an item. Add all items before calling another method."""
        if not self._runs or self._runs[-1][1].source is not place.source:
            self._runs.append((len(self._lines), place))
        self._lines.append(place.number)
        self._spool.add(item)

    def __contains__(self, id_: str) -> bool:
        """Whether an item has this id."""
        return self._index.find(id_) >= 0

    def distinct(self) -> tuple[Items, int]:
        """All items without repeats, of several equal items the first; how many are left out.

        Raises DataError when two others have one id; names both places.
        """
        repeats = self._index.repeats()
        for repeated in repeats:
            first = self._index.find(self._items.ids[repeated])
            if self._items[repeated] != self._items[first]:
                raise DataError(
                    f"{self._place(repeated)}: the item id {self._items[first].id!r} is already "
                    f"taken by {self._place(first)} and has other texts or fields there; give each "
                    "item its own id."
                )
        if not repeats:
            return self._items, 0
        spool, left_out = ItemsSpool(), frozenset(repeats)
        for row, item in enumerate(self._items):
            if row not in left_out:
                spool.add(item)
        return spool.items(), len(left_out)

    @cached_property
    def _items(self) -> Items:
        return self._spool.items()

    @cached_property
    def _index(self) -> StringIndex:
        return StringIndex(self._items.ids)

    def _place(self, position: int) -> Place:
        at = bisect_right(self._runs, position, key=itemgetter(0)) - 1
        return self._runs[at][1]._replace(number=self._lines[position])
