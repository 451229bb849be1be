"""The items of a data set while it is read: where each stood, whether its id is taken, and which
ids there are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cogr.datasets.items import Items, ItemsSpool
from cogr.datasets.reading import Place
from cogr.errors import DataError
from cogr.records import Item
from cogr.strings import StringIndex, Strings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_NEVER = -(2**63)


class ItemTable:
    """Items that are added one by one, and then asked for.

    In memory: some 40 bytes an item, none of its texts.
    """

    def __init__(self) -> None:
        self._spool = ItemsSpool()
        self._hashes = array("q")
        self._lines = array("I")
        self._micros = array("q")
        # Most sources hold many items: position of the first of each run, and that run's place.
        self._starts: list[int] = []
        self._runs: list[Place] = []

    def add(self, place: Place, item: Item, updated: datetime | None = None) -> None:
        """Add an item, and when it last changed.

        All of them must be there before the first question.
        """
        if not self._runs or self._runs[-1].source is not place.source:
            self._starts.append(len(self._lines))
            self._runs.append(place)
        self._hashes.append(hash(item.id))
        self._lines.append(place.number)
        self._micros.append(_NEVER if updated is None else (updated - _EPOCH) // _MICRO)
        self._spool.add(item)

    def __contains__(self, id_: str) -> bool:
        """Whether an item has this id."""
        return self._index.find(id_) >= 0

    @cached_property
    def whole(self) -> Items:
        """All items; of several that are equal in all that is read, the first.

        Raises DataError when two others have one id; names both places.
        """
        repeats = self._index.repeats()
        for repeated in repeats:
            first = self._index.find(self._items.ids[repeated])
            if (
                self._items[repeated] != self._items[first]
                or self._micros[repeated] != self._micros[first]
            ):
                raise DataError(
                    f"{self._place(repeated)}: the item id {self._items[first].id!r} is already "
                    "taken by "
                    f"{self._place(first)} and has other texts or fields there; give each item "
                    "its own id."
                )
        return self._without(frozenset(repeats)) if repeats else self._items

    @property
    def repeats(self) -> int:
        """How many items `whole` leaves out."""
        return len(self._items) - len(self.whole)

    def _without(self, rows: Container[int]) -> Items:
        spool = ItemsSpool()
        for row, item in enumerate(self._items):
            if row not in rows:
                spool.add(item)
        return spool.items()

    @property
    def times(self) -> Mapping[str, datetime]:
        """When each item last changed, of those that say so."""
        micros = np.frombuffer(self._micros, np.int64).copy()
        micros[self._index.repeats()] = _NEVER  # equal items are one
        return ItemTimes(self._items.ids, self._index, micros)

    @cached_property
    def _items(self) -> Items:
        return self._spool.items()

    @cached_property
    def _index(self) -> StringIndex:
        return StringIndex(self._items.ids, np.frombuffer(self._hashes, np.int64))

    def _place(self, position: int) -> Place:
        run = self._runs[bisect_right(self._starts, position) - 1]
        return run._replace(number=self._lines[position])


class ItemTimes(Mapping[str, datetime]):
    """Times by id, in UTC: 20 bytes an item.

    Args:
        ids: of all items.
        index: finds them.
        micros: int64, microseconds since 1970, or the smallest number for none.
    """

    def __init__(self, ids: Strings, index: StringIndex, micros: NDArray[np.int64]) -> None:
        self._ids = ids
        self._index = index
        self._micros = micros
        self._known = micros != _NEVER

    def __getitem__(self, id_: str) -> datetime:
        position = self._index.find(id_)
        if position < 0 or not self._known[position]:
            raise KeyError(id_)
        return _EPOCH + int(self._micros[position]) * _MICRO

    def __iter__(self) -> Iterator[str]:
        return (self._ids[position] for position in np.flatnonzero(self._known).tolist())

    def __len__(self) -> int:
        return int(self._known.sum())
