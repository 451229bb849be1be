"""The items of a data set while it is read: where each stood, whether its id is taken, and which ids there are."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import cached_property

import numpy as np

from cogr.datasets.reading import Place
from cogr.errors import DataError
from cogr.items import Items, ItemsSpool
from cogr.records import Item
from cogr.strings import StringIndex


class ItemTable:
    """Items that are added one by one, and then asked for. In memory: some 30 bytes an item, none of its texts."""

    def __init__(self) -> None:
        self._spool = ItemsSpool()
        self._hashes = array("q")
        self._lines = array("I")
        # Most sources hold many items: position of the first of each run, and that run's place.
        self._starts: list[int] = []
        self._runs: list[Place] = []

    def add(self, place: Place, item: Item) -> None:
        """Add an item. All of them must be there before the first question."""
        if not self._runs or self._runs[-1].source is not place.source:
            self._starts.append(len(self._lines))
            self._runs.append(place)
        self._hashes.append(hash(item.id))
        self._lines.append(place.number)
        self._spool.add(item)

    def __contains__(self, id_: str) -> bool:
        """Whether an item has this id."""
        return self._index.find(id_) >= 0

    @cached_property
    def whole(self) -> Items:
        """All items. Raises DataError when two have one id; names both places."""
        repeated = self._index.first_repeat()
        if repeated is not None:
            id_ = self._items[repeated].id
            raise DataError(
                f"{self._place(repeated)}: the item id {id_!r} is already taken by "
                f"{self._place(self._index.find(id_))}; give each item its own id."
            )
        return self._items

    @cached_property
    def _items(self) -> Items:
        return self._spool.items()

    @cached_property
    def _index(self) -> StringIndex:
        return StringIndex(self._items.ids, np.frombuffer(self._hashes, np.int64))

    def _place(self, position: int) -> Place:
        run = self._runs[bisect_right(self._starts, position) - 1]
        return run._replace(number=self._lines[position])
