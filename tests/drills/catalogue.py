"""A catalogue in editions: what a rebuild or an update turns it into, and what an undisturbed one
makes of each edition.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cogr.matching.mirror import Mirror
from cogr.snapshots import Snapshot
from indexers.workspace import Workspace
from tests.shops import SCRIPTED, rebuild_here, thing, write_jsonl, write_thing_shop

TOP = 20
"""Hits of a search that the reader compares."""
CHANGED = 0.1
"""Share of the items that an update changes."""

QUERIES = [[f"word{n}", f"more{n % 5}"] for n in range(6)]

Item = Mapping[str, str]


class Catalogue:
    """Items whose texts name the edition in which they last changed.

    Args:
        folder: gets `data/`, `cogr.toml` and the snapshots of undisturbed rebuilds.
        items: how many.
    """

    def __init__(self, folder: Path, items: int) -> None:
        self.folder = folder
        self.edition = 0
        self._draw = random.Random(1)
        self._items: dict[str, Item] = {f"i{n}": self._item(f"i{n}", n) for n in range(items)}
        write_thing_shop(folder, items, SCRIPTED + "[publish]\ntolerance = 0.5\n")
        self._save()

    def _item(self, id_: str, number: int) -> Item:
        more = f"edition{self.edition} edition{self.edition}of{number % 7}"
        return thing(number, id_, more)

    def rewrite(self) -> None:
        """The next edition: every item is another one."""
        self.edition += 1
        self._items = {id_: self._item(id_, int(id_[1:])) for id_ in self._items}
        self._save()

    def change(self) -> Path:
        """The next edition: some items are others, some are new, some gone.

        Returns the file of changes.
        """
        self.edition += 1
        labelled = [id_ for id_ in self._items if id_[0] == "i"]
        gone = [id_ for id_ in self._items if id_[0] == "n"][:20]
        changed = [
            self._item(id_, int(id_[1:]))
            for id_ in self._draw.sample(labelled, int(CHANGED * len(labelled)))
        ]
        new = [self._item(f"n{self.edition * 100 + n}", n) for n in range(20)]
        for item in (*changed, *new):
            self._items[item["id"]] = item
        for id_ in gone:
            del self._items[id_]
        self._save()
        deleted = [{"id": id_, "deleted": True} for id_ in gone]
        return write_jsonl(self.folder / "data" / "changes.jsonl", [*changed, *new, *deleted])

    def _save(self) -> None:
        write_jsonl(self.folder / "data" / "items.jsonl", self._items.values())

    def calm(self) -> Snapshot:
        """The present edition, rebuilt in this process in a store of its own where nothing happens
        to it.
        """
        own = [f"store={self.folder / 'calm'}"]
        workspace = Workspace.open(self.folder / "cogr.toml", own)
        return rebuild_here(workspace, push=False).snapshot

    def asked(self) -> list[list[str]]:
        """Queries that tell this edition from the one before, and some that both answer."""
        now = self.edition
        editions = [[f"edition{edition}", "word3"] for edition in (max(0, now - 1), now)]
        return [*editions, [f"edition{now}of3"], *QUERIES]


def answers(snapshot: Snapshot, queries: Iterable[list[str]]) -> list[Any]:
    """What the snapshot answers, by its mirror: the total, and the best hits with scores."""
    mirror = Mirror.build(snapshot)
    found = (mirror.search(words, TOP) for words in queries)
    return [
        [one.total, [[id_, score] for id_, score in zip(one.ids, one.scores.tolist(), strict=True)]]
        for one in found
    ]
