"""Nothing that a command was acknowledged for is undone by another one at the same moment: every
pair of commands that switch, the first one held at each of its requests. What serves, and the
history, are then what one of the two orders gives.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest

from cogr.errors import LockedError, SnapshotError
from cogr.records import Side
from cogr.snapshots import Row, open_snapshot
from cogr.store import Store
from indexers.backends import Verified
from indexers.backends.memory import MemoryBackend
from indexers.backends.opensearch import OpenSearchBackend, foreign_field
from indexers.backends.opensearch.client import Cluster
from indexers.rebuild.run import RebuildRequest, RebuildRun
from indexers.rebuild.update import GainingQueries, UpdateRequest, update_side
from indexers.release import external, order, release, roll_back
from indexers.release.external import ForeignIndex
from indexers.release.history import History
from indexers.release.inventory import prune
from indexers.workspace import Workspace
from tests.commands import Command, rebuilt_pair
from tests.indexers.backends.fault_proxy import proxy_to
from tests.indexers.backends.opensearch_worlds import filled, move_alias, overrides_of
from tests.indexers.release.conftest import CHANGED, Catalogue
from tests.indexers.release.interleaving import (
    REQUESTS,
    Action,
    interleave,
    interleavings,
    no_bar,
    requests_of,
    requests_so_far,
    watched,
)
from tests.shops import ITEMS, catalogue_records, frozen, write_jsonl, write_shop
from tests.web_server import Answer, Request


@dataclass
class World(Catalogue):
    """Where commands switch that change the shop's own indexes."""

    def begin(self) -> None:
        """What serves first, serves."""

    @property
    def actions(self) -> dict[str, Action]:
        def update(what: str) -> Action:
            side: Side = "query" if "query" in what else "item"
            request = UpdateRequest(side, changed=self.folder / f"{what}.jsonl")
            return lambda say: update_side(self.workspace(), request, no_bar, say)

        item, fine = RebuildRequest("item"), [self.ids["fine"]]
        rules = f"publish.rules={self.folder / 'rules.csv'}"
        return {
            **{what: update(what) for what in CHANGED},
            "rebuild": lambda say: RebuildRun(self.workspace(), item, no_bar, say).carry_out(),
            "publish": lambda say: release(self.workspace(), fine, say=say),
            "rules": lambda say: release(self.workspace(rules), [], say=say),
            "rollback": lambda say: roll_back(self.workspace(), [], say),
            "prune": lambda say: pruned(self.workspace(), say),
        }


def pruned(workspace: Workspace, say: Any, *, files: bool = True) -> Any:
    return prune(workspace.store, workspace.backend, 0, files=files, dry_run=False, say=say)


@pytest.fixture
def world(template: Catalogue, tmp_path: Path) -> World:
    return World(**vars(template)).copied(tmp_path / "shop")


def once_before_the_switch(action: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process does this when the next snapshot is pushed and verified."""
    real = MemoryBackend.verify

    def verify(self: MemoryBackend, *given: Any, **named: Any) -> Verified:
        monkeypatch.setattr(MemoryBackend, "verify", real)
        verified = real(self, *given, **named)
        action()
        return verified

    monkeypatch.setattr(MemoryBackend, "verify", verify)


def test_an_update_beside_a_rollback_starts_from_what_serves_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    rolled_back = world.found[1][1]["item"]
    once_before_the_switch(partial(world.actions["rollback"], print), monkeypatch)
    world.actions["new item"](said.append)
    (told,) = [one for one in said if "the update starts from what serves" in one]
    assert re.search(r"item-\S+, by process \d+ on \S+ \(rollback\) at \S+, serves", told), told
    serving = open_snapshot(world.store, world.found[0]["item"])
    parent = open_snapshot(world.store, str(serving.manifest.parent))
    assert {*serving.ids()} == {*parent.ids(), "new"}
    assert parent.id == rolled_back


def test_a_rebuild_beside_a_rollback_is_refused_and_names_it(
    world: World, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    once_before_the_switch(partial(world.actions["rollback"], print), monkeypatch)
    monkeypatch.chdir(world.folder)
    no_gate = ("--set", "publish.tolerance=1")
    ended = cogr_index("rebuild", "--side", "item", *no_gate)
    serving = world.found[0]["item"]
    assert ended.status == 1, ended.err
    assert re.search(rf"now {serving}, by process \d+ on \S+ \(rollback\) at", ended.sentence)
    # The snapshot is kept, and the sentence says how it may serve.
    command = ended.sentence.rpartition("cogr-index ")[2].rstrip(".").split()
    assert cogr_index(*command, *no_gate).status == 0
    assert world.found[0]["item"] == command[1] != serving


def test_a_switch_that_is_refused_leaves_no_trace_and_gives_another_ones_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish slept between its note and its switch; another process has taken the note away."""
    history = History(world.store, "memory")
    serving = {**history.entries[-1]["serving"], "item": world.ids["fine"]}
    before = [dict(one["serving"]) for one in history.entries]
    history.write([*history.entries, {"time": "2026-01-01T00:00:00Z", "serving": serving}])
    real = MemoryBackend.publish

    def late(self: MemoryBackend, *given: Any) -> Any:
        monkeypatch.undo()
        real(self, {"item": world.ids["fine"]})
        return real(self, *given)

    monkeypatch.setattr(MemoryBackend, "publish", late)
    with pytest.raises(LockedError):
        world.actions["new query"](print)
    entries = [dict(one["serving"]) for one in History(world.store, "memory").entries]
    assert entries == [*before, serving]


def test_a_publish_that_slept_after_its_switch_leaves_the_history_of_a_rollback(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise enter its switch again, which the rollback has taken back."""
    before = world.found

    def woken(place: order.Destination, *given: Any) -> None:
        monkeypatch.undo()
        place.backend.publish({"item": before[0]["item"]})
        history = History(world.store, place.catalogue)
        history.write(history.entries[:-1])
        order._enter(place, *given)

    monkeypatch.setattr(order, "_enter", woken)
    world.actions["publish"](print)
    assert world.found == before


@pytest.mark.parametrize("died", [False, True])
def test_a_field_is_remembered_where_its_name_stands_for_another_index(
    tmp_path: Path, *, died: bool
) -> None:
    """The alias was moved by hand. Perhaps a publish died before its switch."""
    served = [{"item": "i0"}, {"item": "i0", "shop/keywords": "i0"}]
    entries = [*served, *([{"item": "i1", "shop/keywords": "i0"}] if died else [])]
    history = History(Store(tmp_path), "opensearch-cogr")
    history.write([{"time": "2026-01-01T00:00:00Z", "serving": one} for one in entries])
    history.settle({"item": "i0", "query": None, "shop/keywords": None})
    assert [one["serving"] for one in history.entries] == served
    assert history.last("shop/keywords") == "i0"


@pytest.mark.slow
def test_update_of_both_sides_holds_them_until_its_switch(
    tmp_path: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update of items in between would be undone by it, so it is refused; after a rollback it
    starts again.
    """
    items, queries, labels = catalogue_records()
    write_shop(tmp_path, items[1:], queries, labels, "[publish]\ntolerance = 1\n")
    write_jsonl(tmp_path / "new.jsonl", items[:1])
    write_jsonl(tmp_path / "gone.jsonl", [{"op": "delete", "id": items[1]["id"]}])
    monkeypatch.chdir(tmp_path)
    rebuilt_pair(cogr_index)
    assert cogr_index("update", "--side", "item", "--changed", "gone.jsonl").status == 0
    real, here = GainingQueries.load, partial(Workspace.open, Path("cogr.toml"))

    def load(self: GainingQueries) -> Any:
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        gone = UpdateRequest("item", changed=Path("gone.jsonl"))
        with pytest.raises(LockedError, match="holds the lock rebuild-item"):
            update_side(here(), gone, no_bar, print)
        roll_back(here(), [])
        return real(self)

    monkeypatch.setattr(GainingQueries, "load", load)
    both = cogr_index("update", "--side", "both", "--changed", "new.jsonl")
    assert (both.status, "the update starts from what serves" in both.err) == (0, True), both.err
    serving = [one for one in cogr_index("list", "--json").json["snapshots"] if one["serving"]]
    ids = {*open_snapshot(Store(".cogr"), serving[0]["snapshot"]).ids()}
    assert {items[0]["id"], items[1]["id"]} <= ids


@pytest.fixture
def buckets(s3: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Store]:
    """The store of a folder as one in a bucket, where no lock of a host helps. A lease is short
    there.
    """
    import s3fs

    monkeypatch.setitem(REQUESTS, s3fs.S3FileSystem, ("pipe_file", "rm"))
    monkeypatch.setattr("indexers.lease.CATALOGUE_SECONDS", 1.0)
    monkeypatch.setattr("indexers.rebuild.run.REBUILD_SECONDS", 1.0)

    def stored(folder: Path) -> Store:
        store = Store(f"{s3}/{uuid.uuid4().hex}")
        store.fs.put(f"{folder}/.cogr/", f"{store.root}/", recursive=True)
        return store

    return stored


@pytest.mark.parametrize("late", ["an item", "a query", "a removal", "the first"])
def test_a_call_that_comes_late_changes_no_alias(
    cluster: Cluster, tmp_path: Path, late: str
) -> None:
    """Another process switches after this one has looked, and just before its call."""
    store = Store(tmp_path)
    old, new, other = (frozen(store, "item", [Row("a", "A", (f"k{n}",))]) for n in range(3))
    query = frozen(store, "query", [Row("q", "Q", ("k0",))])
    with (
        proxy_to(cluster.url) as proxy,
        closing(OpenSearchBackend(cluster.settings, store)) as direct,
    ):
        for one in (old, new, other, query):
            order.push_and_verify(direct, one)
        if late != "the first":
            direct.publish({"item": old.id})
        came = {"a removal": new.id}.get(late, other.id)
        there = cluster.settings.model_copy(update={"url": proxy.url})

        def switched_first(request: Request, forward: Callable[[Request], Answer]) -> Answer | None:
            if request.is_for("POST", "/_aliases"):
                proxy.rewrite = None
                direct.publish({"item": came})
            return None

        proxy.rewrite = switched_first
        with closing(OpenSearchBackend(there, store)) as slow:
            one, seen = query if late == "a query" else new, slow.serving()
            action = partial(slow.publish, {one.side: one.id}, seen)
            with pytest.raises(LockedError):
                (partial(slow.delete, new.id) if late == "a removal" else action)()
        assert direct.serving() == {"item": came, "query": None}
        assert {one.id for one in (old, new, other)} <= {one.snapshot for one in direct.list()}


def test_a_publish_that_slept_beside_a_removal_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before the one writes what serves, the other one removes that; and the other way
    round.
    """
    store = Store(tmp_path)
    backend, other = MemoryBackend(store), MemoryBackend(store)
    old, new = (frozen(store, "item", [Row("a", "A", (f"k{n}",))]) for n in range(2))
    for one in (old, new):
        order.push_and_verify(backend, one)
    backend.publish({"item": old.id})

    def beside(name: str, action: Callable[[], Any]) -> None:
        real = getattr(Store, name)

        def first(*given: Any) -> Any:
            monkeypatch.undo()
            action()
            return real(*given)

        monkeypatch.setattr(Store, name, first)

    beside("remove", partial(other.publish, {"item": new.id}))
    with pytest.raises(SnapshotError, match="serves"):
        backend.delete(new.id)
    assert backend.serving()["item"] == new.id
    backend.publish({"item": old.id})
    beside("swap", partial(other.delete, new.id))
    with pytest.raises(LockedError):
        backend.publish({"item": new.id})
    assert backend.serving()["item"] == old.id


TITLES = {"properties": {"title": {"type": "text"}}}


@dataclass
class Team(Catalogue):
    """Three item and two query snapshots in a cluster; some have served in CoGR's own indexes, and
    some in an index of a team, behind an alias. All of it is made anew for each pair of commands,
    but for the pushed indexes.
    """

    cluster: Cluster
    items: Sequence[str]
    queries: Sequence[str]

    @classmethod
    def of(cls, shop: Catalogue, cluster: Cluster) -> Self:
        """A team whose snapshots are in the shop's store, and pushed."""

        def snapshot(side: Side, n: int) -> str:
            rows = [Row(i["id"], i["title"], (f"k{n}",)) for i in ITEMS]
            return frozen(shop.store, side, rows).id

        items, queries = (
            [snapshot("item", n) for n in range(3)],
            [snapshot("query", n) for n in (3, 4)],
        )
        team = cls(**vars(shop), cluster=cluster, items=items, queries=queries)
        for id_ in (*items, *queries):
            order.push_and_verify(team.workspace().backend, open_snapshot(shop.store, id_))
        return team

    @property
    def alias(self) -> str:
        return f"{self.cluster.settings.prefix}-shop"

    def workspace(self, *sets: str, into: bool = False) -> Workspace:
        own = ("backend=opensearch", *overrides_of(self.cluster.settings))
        there = (f"serving.into.index={self.alias}",) if into else ()
        return super().workspace(*own, *there, *sets)

    def place(self, *sets: str) -> ForeignIndex:
        return ForeignIndex(self.workspace(*sets, into=True))

    def begin(self) -> None:
        """The team's index made anew, and what served first."""
        for name in (f"{self.alias}-1", f"{self.alias}-2"):
            self.cluster.call("DELETE", f"/{name}", doing="starting", missing_ok=True)
            documents = ((item["id"], {"title": item["title"]}) for item in ITEMS)
            filled(self.cluster, name, documents, mappings=TITLES)
        move_alias(self.cluster, self.alias, f"{self.alias}-1")
        prefix = self.cluster.settings.prefix
        pattern = {"index": f"{prefix}-*", "must_exist": False}
        none = [{"remove": {**pattern, "alias": f"{prefix}-{one}"}} for one in ("items", "queries")]
        self.cluster.call("POST", "/_aliases", body={"actions": none}, doing="starting")
        for item, query in ((0, 0), (1, 1)):
            ids = [self.items[item], self.queries[query]]
            release(self.workspace(), ids, gate=False)
            self.place().publish(ids, print, gate=False)

    @property
    def found(self) -> Any:
        place = self.place()
        history, state = place.look()
        pushed = {one.snapshot for one in place.backend.list()}
        assert {state["item"], state["query"]} <= pushed, "what serves is there"
        coverage = place.verify().coverage if state[place.items] else None
        assert coverage is None or (coverage.lacking, coverage.different) == (0, 0), coverage
        return dict(state), [dict(entry["serving"]) for entry in history.entries]

    @property
    def actions(self) -> dict[str, Action]:
        def into(*ids: str) -> Action:
            return lambda say: self.place().publish(ids, say, gate=False)

        new, rules = self.items[2], f"publish.rules={self.folder / 'rules.csv'}"
        return {
            "publish": lambda say: release(self.workspace(), [new], say=say),
            "rollback": lambda say: roll_back(self.workspace(), [], say),
            "into": into(new),
            "pair into": into(new, self.queries[0]),
            "repair": into(),
            "rules into": lambda say: self.place(rules).publish([], say),
            "rollback into": lambda say: self.place().roll_back([], say),
            "prune": lambda say: pruned(self.workspace(), say, files=False),
        }


Makers = Callable[..., Callable[[], Any]]


@pytest.fixture
def makers(template: Catalogue, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Makers]:
    """What makes new worlds of a kind again and again, in folders, and with `asleep` with stores in
    a bucket; those of a team are in the same cluster.
    """
    numbers = count()

    def maker(kind: type[World | Team], *, asleep: bool = False) -> Callable[[], Any]:
        stored = request.getfixturevalue("buckets") if asleep else None
        first = template.copied(tmp_path / "first")
        whole: World | Team = World(**vars(first))
        if kind is Team:
            whole = Team.of(first, request.getfixturevalue("cluster"))
        stack.enter_context(watched())

        def made() -> Any:
            one = whole.copied(tmp_path / str(next(numbers)))
            one.store = stored(one.folder) if stored else one.store
            one.begin()
            return one

        return made

    with ExitStack() as stack:
        yield maker


def case(kind: Any, names: str, least: int, mark: str, **how: Any) -> Any:
    """Commands by name, all without one; how they are held, and how many pairs of them at least."""
    marks = [getattr(pytest.mark, mark), pytest.mark.timeout(7200)]
    marks += [pytest.mark.server] if kind is Team else []
    return pytest.param(kind, [*filter(None, names.split(", "))], least, how, marks=marks)


@pytest.mark.parametrize(
    ("kind", "names", "least", "how"),
    [
        case(World, "", 16, "slow", most=1, pairs=16),
        case(World, "publish, rollback", 2, "slow", most=1, sleeps=True),
        case(Team, "publish, into, repair, rollback into", 3, "slow", most=1, pairs=3),
        case(World, "", 401, "drill", most=8, seed=1),
        case(
            World,
            "publish, rollback, prune, rules, new item",
            100,
            "drill",
            most=8,
            seed=1,
            sleeps=True,
        ),
        case(Team, "", 150, "drill", most=4, seed=1),
        case(Team, "into, repair, rollback into", 60, "drill", most=10, seed=1, sleeps=True),
    ],
)
def test_two_commands_that_switch_at_once_undo_nothing(
    makers: Makers, kind: Any, names: Sequence[str], least: int, how: Mapping[str, Any]
) -> None:
    """Whatever request one is held at, or sleeps at, beyond its lease."""
    made = makers(kind, asleep=how.get("sleeps", False))
    ended = interleavings(made, names or [*made().actions], **how)
    assert sum(ended.values()) >= least


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.server
def test_a_process_that_slept_points_no_field_to_what_it_filled(makers: Makers) -> None:
    """Just before the field alias is pointed to its field, another one rolls back."""
    made, at = makers(Team, asleep=True), list[int]()
    team, real = made(), foreign_field.point_to

    def noted(*given: Any) -> None:
        at.append(requests_so_far())
        real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external, "point_to", noted)
        requests_of(team.actions["pair into"])
    team = made()
    serving = team.found[0]
    outcomes = interleave(
        team.actions["pair into"], team.actions["rollback into"], at[0] + 1, sleeps=True
    )
    assert outcomes[0].error.startswith("LockedError"), outcomes
    assert not outcomes[1].error, outcomes
    # The rollback found half a switch, and went back to the whole pair before it.
    assert team.found[0] == serving
