"""Nothing that a command was acknowledged for is undone by another one at the same moment: every
pair of commands that switch, the first one held at each of its requests. What serves, and the
history, are then what one of the two orders gives.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cogr.snapshots import Row, open_snapshot
from cogr.store import Store
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.push import write_documents
from indexers.rebuild.run import RebuildRequest, rebuild_side
from indexers.rebuild.update import UpdateRequest, update_side
from indexers.release import order, release, roll_back
from indexers.release.external import ForeignIndex
from indexers.release.inventory import prune
from indexers.release.order import History, read_history
from indexers.workspace import Workspace
from tests.indexers.backends.backend_worlds import frozen
from tests.indexers.conftest import ITEMS, LABELS, QUERIES
from tests.indexers.release.interleaving import Action, interleavings, no_bar, watched
from tests.shops import rebuild_here, write_jsonl, write_shop

CONFIGURATION = """
[generator]
name = "scripted"
[publish]
tolerance = 1
"""
RULES = "rule,query,item,keyword\nadd,,a,ottoman\nadd,couch,,ottoman\n"
NEW = {"id": "new", "title": "Stool", "text": "A stool of oak"}
CHANGED: Mapping[str, list[dict[str, Any]]] = {
    "new item": [NEW],
    "item gone": [{"op": "delete", "id": "d"}],
    "new query": [{"id": "q-new", "text": "stool"}],
}


@dataclass
class World:
    """A catalogue in which two pairs have served; and a third one is pushed."""

    folder: Path
    store: Store
    waiting: str

    def workspace(self, *sets: str) -> Workspace:
        config = self.folder / "cogr.toml"
        return Workspace.open(config, [f"store={self.store.url}", *sets])

    @property
    def found(self) -> Any:
        workspace = self.workspace()
        backend = workspace.backend
        serving, pushed = dict(backend.serving()), {one.snapshot for one in backend.list()}
        assert set(serving.values()) <= pushed, "what serves is there"
        for id_ in serving.values():
            open_snapshot(self.store, str(id_))
        history = [dict(one["serving"]) for one in read_history(self.store, backend.catalogue)]
        return serving, history

    def update(self, what: str, side: Any, say: Any) -> None:
        request = UpdateRequest(side, changed=self.folder / f"{what}.jsonl")
        update_side(self.workspace(), request, no_bar, say)

    def rebuild(self, say: Any) -> None:
        rebuild_side(self.workspace(), RebuildRequest("item"), no_bar, say)

    def publish(self, say: Any) -> None:
        release(self.workspace(), [self.waiting], say=say)

    def rules(self, say: Any) -> None:
        release(self.workspace(f"publish.rules={self.folder / 'rules.csv'}"), [], say=say)

    def rollback(self, say: Any) -> None:
        roll_back(self.workspace(), [], say)

    def prune(self, say: Any) -> None:
        workspace = self.workspace()
        prune(workspace.store, workspace.backend, 0, files=True, dry_run=False, say=say)

    @property
    def actions(self) -> dict[str, Action]:
        return {
            "new item": partial(self.update, "new item", "item"),
            "item gone": partial(self.update, "item gone", "item"),
            "new query": partial(self.update, "new query", "query"),
            "rebuild": self.rebuild,
            "publish": self.publish,
            "rules": self.rules,
            "rollback": self.rollback,
            "prune": self.prune,
        }


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("switches")
    config = write_shop(folder, ITEMS, QUERIES, LABELS, CONFIGURATION)
    for name, records in CHANGED.items():
        write_jsonl(folder / f"{name}.jsonl", records)
    (folder / "rules.csv").write_text(RULES)

    def rebuilt(side: Any, items: Sequence[Mapping[str, str]], *, publish: bool = True) -> str:
        write_jsonl(folder / "data" / "items.jsonl", items)
        return rebuild_here(Workspace.open(config), side, publish=publish).snapshot.id

    rebuilt("query", ITEMS)
    rebuilt("item", [{**ITEMS[0], "text": "first of all"}, *ITEMS[1:]])
    rebuilt("item", ITEMS)
    other = [{**ITEMS[1], "text": "another text"}, ITEMS[0], *ITEMS[2:]]
    waiting = rebuilt("item", other, publish=False)
    # What a rebuild would write next.
    write_jsonl(folder / "data" / "items.jsonl", [*ITEMS, {**NEW, "id": "rebuilt"}])
    return folder, waiting


@pytest.fixture
def worlds(template: tuple[Path, str], tmp_path: Path) -> Iterator[Callable[[], World]]:
    """New worlds in folders."""
    folder, waiting = template
    numbers = iter(range(100_000))

    def made() -> World:
        here = tmp_path / str(next(numbers))
        shutil.copytree(folder, here)
        return World(here, Store(here / ".cogr"), waiting)

    with watched():
        yield made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_commands_that_switch_at_once(worlds: Callable[[], World]) -> None:
    names = ("new item", "new query", "rebuild", "publish", "rules", "rollback", "prune")
    assert sum(interleavings(worlds, names, 1).values()) > 40


@pytest.mark.drill
@pytest.mark.timeout(3600)
def test_two_commands_that_switch_at_once_held_at_many_requests(
    worlds: Callable[[], World],
) -> None:
    ended = interleavings(worlds, [*worlds().actions], 8, seed=1)
    assert sum(ended.values()) > 400


@dataclass
class Team:
    """Three item and two query snapshots in a cluster; some have served in CoGR's own indexes, and
    some in an index of a team, behind an alias. All of it is made anew for each pair of commands,
    but for the pushed indexes.
    """

    folder: Path
    store: Store
    cluster: Cluster
    items: Sequence[str]
    queries: Sequence[str]

    @property
    def alias(self) -> str:
        return f"{self.cluster.settings.prefix}-shop"

    def workspace(self, *, into: bool = False, rules: str = "") -> Workspace:
        own = self.cluster.settings
        sets = [f"store={self.store.url}", f"opensearch.url={own.url}"]
        sets += [f"opensearch.prefix={own.prefix}", "backend=opensearch"]
        sets += [f"serving.into.index={self.alias}"] if into else []
        sets += [f"publish.rules={self.folder / rules}"] if rules else []
        return Workspace.open(self.folder / "cogr.toml", sets)

    def reset(self) -> None:
        """The team's index made anew, and what served first."""
        for name in (f"{self.alias}-1", f"{self.alias}-2"):
            self.cluster.call("DELETE", f"/{name}", doing="starting", missing_ok=True)
            body = {"mappings": {"properties": {"title": {"type": "text"}}}}
            if name.endswith("1"):
                body["aliases"] = {self.alias: {}}
            self.cluster.call("PUT", f"/{name}", body=body, doing="starting")
            documents = ((item["id"], {"title": item["title"]}) for item in ITEMS)
            write_documents(self.cluster, name, documents)
        self.cluster.call("POST", "/_aliases", body={"actions": self._none()}, doing="starting")
        for item, query in ((0, 0), (1, 1)):
            ids = [self.items[item], self.queries[query]]
            release(self.workspace(), ids, gate=False, rules=False)
            ForeignIndex(self.workspace(into=True)).publish(ids, print, gate=False)

    def _none(self) -> list[dict[str, Any]]:
        pattern = {"index": f"{self.cluster.settings.prefix}-*", "must_exist": False}
        names = (f"{self.cluster.settings.prefix}-{side}" for side in ("items", "queries"))
        return [{"remove": {**pattern, "alias": name}} for name in names]

    @property
    def found(self) -> Any:
        workspace = self.workspace(into=True)
        place = ForeignIndex(workspace)
        history = History(self.store, place.catalogue)
        state = dict(place.state(history))
        pushed = {one.snapshot for one in workspace.backend.list()}
        assert {state["item"], state["query"]} <= pushed, "what serves is there"
        coverage = place.verify().coverage if state[place.items] else None
        assert coverage is None or (coverage.lacking, coverage.different) == (0, 0), coverage
        return state, [dict(entry["serving"]) for entry in history.entries]

    def own(self, number: int, say: Any) -> None:
        release(self.workspace(), [self.items[number]], say=say)

    def back(self, into: bool, say: Any) -> None:
        if into:
            ForeignIndex(self.workspace(into=True)).roll_back([], say)
        else:
            roll_back(self.workspace(), [], say)

    def into(self, ids: Sequence[str], say: Any) -> None:
        ForeignIndex(self.workspace(into=True)).publish(ids, say, gate=False)

    def rules(self, say: Any) -> None:
        place = ForeignIndex(self.workspace(into=True, rules="rules.csv"))
        place.publish([], say)

    def prune(self, say: Any) -> None:
        workspace = self.workspace()
        prune(workspace.store, workspace.backend, 0, files=False, dry_run=False, say=say)

    @property
    def actions(self) -> dict[str, Action]:
        return {
            "publish": partial(self.own, 2),
            "rollback": partial(self.back, False),
            "into": partial(self.into, [self.items[2]]),
            "pair into": partial(self.into, [self.items[2], self.queries[0]]),
            "repair": partial(self.into, []),
            "rules into": self.rules,
            "rollback into": partial(self.back, True),
            "prune": self.prune,
        }


@pytest.fixture
def team(
    template: tuple[Path, str], cluster: Cluster, tmp_path: Path
) -> Iterator[Callable[[], Team]]:
    """The same cluster again and again, with a store of its own each time."""
    folder, first = template[0], tmp_path / "first"
    shutil.copytree(folder, first, ignore=shutil.ignore_patterns(".cogr"))
    store = Store(first / ".cogr")
    items, queries = (
        [
            frozen(store, side, [Row(i["id"], i["title"], (f"k{n}",)) for i in ITEMS], 0).id
            for n in numbers
        ]
        for side, numbers in (("item", range(3)), ("query", range(3, 5)))
    )
    team = Team(first, store, cluster, items, queries)
    for id_ in (*items, *queries):
        order.push_and_verify(team.workspace().backend, open_snapshot(store, id_))
    numbers = iter(range(100_000))

    def made() -> Team:
        here = tmp_path / str(next(numbers))
        shutil.copytree(first, here)
        one = Team(here, Store(here / ".cogr"), cluster, items, queries)
        for id_ in (*items, *queries):
            order.push_and_verify(one.workspace().backend, open_snapshot(store, id_))
        one.reset()
        return one

    with watched():
        yield made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_commands_at_once_in_an_index_of_a_team(team: Callable[[], Team]) -> None:
    names = ("publish", "into", "repair", "rollback into")
    assert sum(interleavings(team, names, 1).values()) >= 8


@pytest.mark.drill
@pytest.mark.timeout(7200)
def test_two_commands_at_once_in_an_index_of_a_team_held_at_many_requests(
    team: Callable[[], Team],
) -> None:
    assert sum(interleavings(team, [*team().actions], 4, seed=1).values()) >= 150
