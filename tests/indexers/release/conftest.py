"""A shop in which two pairs have served; some item snapshots that may serve next are pushed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest

from cogr.records import Side
from cogr.snapshots import open_snapshot
from cogr.store import Store
from indexers.generators import Failure
from indexers.release.history import History
from indexers.workspace import Workspace
from tests.indexers.faulty import faulty
from tests.shops import ITEMS, LABELS, QUERIES, SCRIPTED, rebuild_here, write_jsonl, write_shop

NEW = {"id": "new", "title": "Stool", "text": "A stool of oak"}
CANDIDATES: Mapping[str, list[dict[str, str]]] = {
    "fine": [*ITEMS[:3], {**ITEMS[3], "text": "A leather sofa, red, living room classic"}],
    "worse": [{"id": item["id"], "title": "zzz", "text": "zzz"} for item in ITEMS],
    # The generator fails for these two.
    "set aside": [*ITEMS, *({"id": id_, "title": id_, "text": "no answer"} for id_ in "ef")],
}
CHANGED: Mapping[str, list[dict[str, Any]]] = {
    "new item": [NEW],
    "item gone": [{"op": "delete", "id": "d"}],
    "new query": [{"id": "q-new", "text": "stool"}],
}
FAILING = faulty(answers={id_: Failure(id_, "broken") for id_ in "ef"})
RULES = "rule,query,item,keyword\nadd,,a,ottoman\nadd,couch,,ottoman\n"


@dataclass
class Catalogue:
    """The shop in a folder of its own; `ids` are the snapshots of the candidates."""

    folder: Path
    store: Store
    ids: Mapping[str, str]

    def copied(self, folder: Path) -> Self:
        """The same, with its store, in another folder."""
        shutil.copytree(self.folder, folder)
        return replace(self, folder=folder, store=Store(folder / ".cogr"))

    def workspace(self, *sets: str) -> Workspace:
        """Its configuration; by default the gate lets everything pass."""
        first = (f"store={self.store.url}", "publish.tolerance=1")
        return Workspace.open(self.folder / "cogr.toml", [*first, *sets])

    @property
    def found(self) -> Any:
        """What serves, and the history: what was published, one switch after the other."""
        backend = self.workspace().backend
        serving, pushed = dict(backend.serving()), {one.snapshot for one in backend.list()}
        assert set(serving.values()) <= pushed, "what serves is there"
        for id_ in serving.values():
            open_snapshot(self.store, str(id_))
        history = History(self.store, backend.catalogue).entries
        return serving, [dict(one["serving"]) for one in history]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """To be copied, not to be changed."""
    folder = tmp_path_factory.mktemp("catalogue")
    write_shop(folder, ITEMS, QUERIES, LABELS, SCRIPTED)
    for name, records in CHANGED.items():
        write_jsonl(folder / f"{name}.jsonl", records)
    (folder / "rules.csv").write_text(RULES)
    made = Catalogue(folder, Store(folder / ".cogr"), {})

    def rebuilt(side: Side, items: Sequence[Mapping[str, str]], *, publish: bool = True) -> str:
        write_jsonl(folder / "data" / "items.jsonl", items)
        all_pass = made.workspace("rebuild.max_failure_share=1")
        return rebuild_here(all_pass, side, publish=publish).snapshot.id

    with pytest.MonkeyPatch.context() as here:
        here.setattr("indexers.generators.extractive.Scripted", FAILING)
        rebuilt("query", ITEMS)
        rebuilt("item", [{**ITEMS[0], "text": "first of all"}, *ITEMS[1:]])
        rebuilt("item", ITEMS)
        made.ids = {n: rebuilt("item", items, publish=False) for n, items in CANDIDATES.items()}
    # What a rebuild would write next.
    write_jsonl(folder / "data" / "items.jsonl", [*ITEMS, {**NEW, "id": "rebuilt"}])
    return made
