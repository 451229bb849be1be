"""Who goes live, and back: one at a time, by real processes at the same moment; killed at any
write, the same command goes on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from cogr.records import Side
from cogr.snapshots import Row, Snapshot, list_snapshots
from cogr.store import Store
from indexers.backends import Backend
from indexers.backends.memory import MemoryBackend
from indexers.release import inventory
from indexers.release.history import History
from tests.commands import Command, Ended
from tests.indexers.backends.opensearch_worlds import backend_of, flags_of
from tests.shops import CONFIGURATION, frozen


@dataclass
class World:
    """A catalogue with some snapshots."""

    store: Store
    backend: Backend
    items: list[Snapshot]
    queries: list[Snapshot]

    @property
    def serving(self) -> dict[Side, str | None]:
        return dict(self.backend.serving())

    def serve(self, *pairs: tuple[int, int]) -> None:
        """Everything is pushed; these pairs have served one after the other, the last
        one serves.
        """
        pushed = {one.snapshot for one in self.backend.list()}
        for snapshot in (*self.items, *self.queries):
            if snapshot.id not in pushed:
                self.backend.push(snapshot)
                self.backend.verify(snapshot, [])
        entries: list[dict[str, object]] = []
        for item, query in pairs:
            after: dict[Side, str] = {"item": self.items[item].id, "query": self.queries[query].id}
            entries.append({"time": "", "serving": after})
            self.backend.publish(after)
        self.store.write_json(f"history-{self.backend.catalogue}.json", entries)

    @property
    def history(self) -> list[dict[Side, str]]:
        entries = History(self.store, self.backend.catalogue).entries
        return [dict(entry["serving"]) for entry in entries]


def world_of(store: Store, backend: Backend) -> World:
    items, queries = (
        [frozen(store, side, [Row("a", "Sofa", (f"k{n}",))], n) for n in range(count)]
        for side, count in (("item", 4), ("query", 2))
    )
    return World(store, backend, items, queries)


@pytest.fixture
def memory(shop: Path) -> World:
    store = Store(shop / ".cogr")
    return world_of(store, MemoryBackend(store))


# One at a time


def at_once(*commands: list[str]) -> list[Ended]:
    """How commands end that begin at the same moment."""
    program = Path(sys.executable).with_name("cogr-index")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [subprocess.Popen([program, *one], text=True, **pipes) for one in commands]
    said = [process.communicate(timeout=60) for process in started]
    return [Ended(one.returncode, *two) for one, two in zip(started, said, strict=True)]


@pytest.mark.parametrize(
    ("shared", "trials"),
    [
        pytest.param(False, 2, marks=pytest.mark.slow),
        pytest.param(True, 4, marks=[pytest.mark.drill, pytest.mark.server]),
    ],
)
def test_two_publishes_of_two_sides_at_once_both_count(
    request: pytest.FixtureRequest, shop: Path, shared: bool, trials: int
) -> None:
    """Neither is lost, nor its entry in the history. Machines that share a bucket have no lock of a
    host: the lease is files in the bucket alone.
    """
    with ExitStack() as stack:
        if shared:
            bucket = f"{request.getfixturevalue('s3')}/store"
            (shop / "cogr.toml").write_text(f'store = "{bucket}"\n{CONFIGURATION}')
            node, store = request.getfixturevalue("opensearch"), Store(bucket)
            backend = stack.enter_context(backend_of(node, store))
            world, flags = world_of(store, backend), flags_of(backend.cluster.settings)
        else:
            world, flags = request.getfixturevalue("memory"), []
        for _ in range(trials):
            world.serve((0, 0))
            new = {"item": world.items[1].id, "query": world.queries[1].id}
            ended = at_once(*(["publish", id_, "--no-gate", *flags] for id_ in new.values()))
            assert [one.status for one in ended] == [0, 0], ended
            assert world.serving == world.history[-1] == new
            assert len(world.history) == 3


# Back


def test_each_rollback_goes_one_further_back_and_says_from_what_to_what(
    memory: World, cogr_index: Command
) -> None:
    memory.serve((0, 0), (1, 0), (1, 1), (2, 1))
    ids = [(one.id, other.id) for one in memory.items for other in memory.queries]
    for pair in (ids[3], ids[2], ids[0]):
        before = memory.serving
        ended = cogr_index("rollback", "--json").json
        assert ended["serving"] == {"item": pair[0], "query": pair[1]} == memory.serving
        changed = {side for side in before if before[side] != memory.serving[side]}
        assert ended["before"] == {side: before[side] for side in changed}
    ended = cogr_index("rollback")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "Nothing was published before what serves now" in ended.err
    # What is published on top of that is what the next rollback leaves; what was rolled back stays
    # so.
    assert cogr_index("publish", memory.items[3].id, "--no-gate").status == 0
    shown = cogr_index("rollback")
    assert f"{memory.items[0].id} │ {memory.items[3].id} │" in " ".join(shown.out.split())
    assert memory.serving["item"] == memory.items[0].id
    assert cogr_index("rollback").status == 2


def test_a_rollback_to_a_named_snapshot_is_a_rollback_too(
    memory: World, cogr_index: Command
) -> None:
    memory.serve((0, 0), (1, 0), (2, 0), (3, 0))
    assert cogr_index("rollback", "--to", memory.items[1].id).status == 0
    assert cogr_index("rollback", "--json").json["serving"]["item"] == memory.items[0].id
    # One that has never served is new, and what served before it is before it.
    memory.serve((0, 0), (1, 0))
    assert cogr_index("rollback", "--to", memory.items[3].id).status == 0
    assert cogr_index("rollback", "--json").json["serving"]["item"] == memory.items[1].id


COMMAND = """
import json, os, signal, sys
from cogr.store import Store
from indexers import cli
path, number = sys.argv[1], int(sys.argv[2])
done, real = 0, Store.write

def write(self, name, data):
    global done
    real(self, name, data)
    if not name.startswith("leases/"):
        done += 1
        if done == number:
            os.kill(os.getpid(), signal.SIGKILL)

Store.write = write
sys.argv = ["cogr-index", *sys.argv[3:]]
cli.main()
"""


def kills(world: World, folder: Path, *command: str) -> Iterator[int]:
    """A command that dies after its first write to the store, its second, and so on: the number of
    the write. Before each, (0, 0), (1, 0) and (2, 0) have served.
    """
    for number in range(1, 10):
        world.serve((0, 0), (1, 0), (2, 0))
        arguments = [sys.executable, "-c", COMMAND, "", str(number), *command]
        ended = subprocess.run(arguments, cwd=folder, capture_output=True, check=False)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        if not ended.returncode:
            return
        yield number


@pytest.mark.drill
def test_a_rollback_killed_at_any_write_and_repeated_goes_back_once(
    memory: World, shop: Path, cogr_index: Command
) -> None:
    """Writes of a rollback: the note, the switch, the history."""
    number = 0
    for number in kills(memory, shop, "rollback"):
        # By the third write it is in the history: there is nothing left to repeat.
        if number < 3:
            repeated = cogr_index("rollback", "--json")
            ended = (repeated.status, memory.serving["item"])
            assert ended == (0, memory.items[1].id), (number, repeated.err)
            assert repeated.json["before"]["item"] == memory.items[2].id
            assert ("switched and died" in repeated.err) == (number == 2)
        assert cogr_index("rollback", "--json").json["serving"]["item"] == memory.items[0].id
    assert number == 3


@pytest.mark.slow
def test_a_publish_killed_at_any_write_is_in_the_history_if_it_serves(
    memory: World, shop: Path, cogr_index: Command
) -> None:
    killed, new = 0, memory.items[3].id
    for _ in kills(memory, shop, "publish", new, "--no-gate"):
        killed += 1
        serves = memory.serving["item"]
        # Whoever comes next under the lease finishes the note.
        assert cogr_index("prune", "--keep", "9").status == 0
        assert memory.history[-1]["item"] == serves
        assert len(memory.history) == (4 if serves == new else 3)
    assert killed == 2


# Ids and what comes next


def test_a_switch_to_two_rounds_is_refused_or_said_aloud(
    memory: World, cogr_index: Command
) -> None:
    """Such as a plain rebuild of items while a trained round serves: `/expand` and `search` would
    use no precomputed keywords.
    """
    memory.serve((0, 0), (1, 1))
    before = memory.serving
    why = "the items are of round 0 and the queries of round 1"
    for command in (["rebuild", "--side", "item"], ["publish", memory.items[0].id]):
        ended = cogr_index(*command)
        assert (ended.status, why in ended.err) == (1, True), ended.err
        assert "an item and a query snapshot of one round" in ended.err
        assert memory.serving == before
    asked = ["search", "Sofa", "--json"]
    assert (cogr_index(*asked).json["source"], cogr_index(*asked).json["note"]) == ("index", "")
    overruled = cogr_index("publish", memory.items[0].id, "--no-gate")
    assert (overruled.status, overruled.err.count("Warning: ")) == (0, 1)
    found = cogr_index(*asked)
    assert found.json["source"] != "index"
    assert f"{why[0].upper()}{why[1:]}. Run cogr-index publish" in found.err
    assert cogr_index("rollback", "--to", memory.items[2].id).err.count("Warning: ") == 1
    pair = cogr_index("publish", memory.items[0].id, memory.queries[0].id)
    assert (pair.status, pair.err.count("Warning: ")) == (0, 0)


def test_prune_keeps_a_snapshot_that_is_finished_while_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = Store(tmp_path), Store.is_at_rest
    manifest = f"snapshots/{frozen(store, 'item', [Row('a', 'A', ('b',))]).id}/manifest.json"
    content = store.read(manifest)
    store.remove(manifest)

    def finished_first(asked: Store, *given: str) -> bool:
        store.write(manifest, content)
        return real(asked, *given)

    monkeypatch.setattr(Store, "is_at_rest", finished_first)
    inventory.prune(store, MemoryBackend(store), 3, files=True, dry_run=False)
    assert len(list_snapshots(store)) == 1
