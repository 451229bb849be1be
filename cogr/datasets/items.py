"""Items of a data set as one sequence over flat files: a million of them cost no memory but what
the kernel can drop.

An `Item` is made when it is asked for. Items come from a loader by `ItemsSpool`; nothing here reads
formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cogr.records import Item, Query
from cogr.strings import Strings, StringsSpool, arrow_strings, integers

_E = TypeVar("_E", Item, Query, Item | Query)
_BLOCK = 4096


class Items(Sequence[Item]):
    """Items by position. Slices are views. Equal to any sequence of the same items.

    Args:
        columns: ids, titles, texts and, where an item has any, extra fields; of all items.
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
        return self._item(self._rows[at])

    def __iter__(self) -> Iterator[Item]:
        # Block by block: a third of the time that asking one by one takes.
        for start in range(0, len(self), _BLOCK):
            yield from map(
                Item, *(texts.to_pylist() for texts in self._arrow(slice(start, start + _BLOCK)))
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == its for mine, its in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Items({len(self)})"

    @cached_property
    def in_id_order(self) -> Items:
        """The same items, ids ascending."""
        ids = next(self._arrow(slice(None)))
        if len(ids) < 2 or pc.all(pc.less(ids[:-1], ids[1:])).as_py():
            return self
        order = integers(pc.sort_indices(ids))
        return Items(
            self._columns,
            (order if self._chosen is None else self._chosen[order]).astype(np.uint32),
        )

    def _arrow(self, part: slice) -> Iterator[pa.Array]:
        """The columns of a part; no copy where all rows are chosen."""
        columns = (column.arrow() for column in self._columns)
        if self._chosen is None:
            return (column[part] for column in columns)
        rows = np.ascontiguousarray(self._chosen[part])
        positions = pa.Array.from_buffers(pa.uint32(), len(rows), [None, pa.py_buffer(rows)])
        return (column.take(positions) for column in columns)

    def _item(self, row: int) -> Item:
        return Item(*(column[row] for column in self._columns))


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
        self._columns = [StringsSpool(), StringsSpool(), StringsSpool()]
        self._waiting: list[tuple[str, str, str, str]] = []
        self._written = 0

    def add(self, item: Item) -> None:
        """Add an item, whose texts hold no lone surrogate."""
        self._waiting.append((item.id, item.title, item.text, item.fields_json))
        if len(self._waiting) == _BLOCK:
            self._flush()

    def items(self) -> Items:
        """All of them. Nothing may be added any more."""
        self._flush()
        return Items([column.strings() for column in self._columns])

    def _flush(self) -> None:
        rows = list(zip(*self._waiting, strict=True))
        if len(self._columns) == 3 and rows and any(rows[3]):
            self._columns.append(
                StringsSpool()
            )  # the first item with fields: those before it have none
            self._columns[3].append(arrow_strings([""] * self._written))
        for column, texts in zip(self._columns, rows, strict=False):
            column.append(arrow_strings(texts))
        self._written += len(self._waiting)
        self._waiting.clear()
