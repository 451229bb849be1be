"""Whatever file of a store is damaged: a command refuses in one sentence or recovers, and nobody is
served other keywords.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cogr.errors import CogrError
from cogr.store import Store
from indexers.backends.memory import MemoryBackend
from indexers.cli import app
from tests.commands import Command, done, rebuilt_pair
from tests.damages import HARMS, damage, files_below
from tests.shops import CONFIGURATION, ITEMS, LABELS, QUERIES, write_jsonl, write_shop

TEXTS = ("living room sofa", "green couch", "oak table")
Pair = tuple[str | None, str | None]
Answers = Mapping[str, tuple[list[str], list[tuple[str, float]]]]


def run(*arguments: str) -> Result:
    """`cogr-index` in this process, with whatever it raises."""
    return CliRunner().invoke(app, arguments)


def serving() -> Pair:
    now = MemoryBackend(Store(".cogr")).serving()
    return now["item"], now["query"]


def answered() -> Answers:
    """What searches answer now; those that refuse are left out."""
    found = {}
    for text in TEXTS:
        met = run("search", text, "--json")
        if met.exit_code == 0:
            said = json.loads(met.stdout)
            found[text] = (said["keywords"], [(hit["id"], hit["score"]) for hit in said["hits"]])
    return found


@dataclass(frozen=True)
class World:
    """A store with two snapshots a side, both with all that belongs to them, and what each pair of
    them answers.
    """

    folder: Path
    ids: list[str]
    expected: Mapping[Pair, Answers]
    files: list[Path]

    @property
    def commands(self) -> list[str]:
        old_item, old_query, item, query = self.ids
        return [
            "list",
            "list --json",
            "search sofa",
            "prune --keep 1 --files",
            "prune --keep 0 --dry-run",
            "rollback",
            "verify",
            "verify --quick",
            f"publish {item} --no-switch",
            f"publish {old_item} {old_query}",
            f"publish {item} {query}",
            f"diff {old_item} {item}",
            "export keywords out.jsonl",
            "update --side item --changed changes.jsonl",
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("damaged")
    write_shop(folder, ITEMS, QUERIES, LABELS, CONFIGURATION + "[publish]\ntolerance = 1\n")
    write_jsonl(folder / "changes.jsonl", ITEMS[:1])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = [
            run("rebuild", "--side", side, "--generator", generator, "--json")
            for generator in ("scripted", "extractive")
            for side in ("item", "query")
        ]
        assert [met.exit_code for met in made] == [0] * 4, made
        ids = [json.loads(met.stdout)["snapshot"] for met in made]
        expected = {}
        for pair in ((ids[0], ids[1]), (ids[0], ids[3]), (ids[2], ids[1]), (ids[2], ids[3])):
            assert run("publish", *pair).exit_code == 0
            expected[serving()] = answered()
    shutil.copytree(folder / ".cogr", folder / "whole")
    files = [
        file.relative_to(folder / "whole")
        for file in files_below(folder / "whole", without=("locks", "memory", "text_index"))
        if not file.name.startswith("history-")
    ]
    return World(folder, ids, expected, files)


@pytest.mark.parametrize("trials", [1, pytest.param(20, marks=pytest.mark.drill)])
@pytest.mark.parametrize("how", HARMS)
def test_nothing_ends_in_a_traceback_serves_other_keywords_or_stays_broken(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str, trials: int
) -> None:
    monkeypatch.chdir(world.folder)
    last = (world.ids[2], world.ids[3])
    for number in range(trials):
        draw = random.Random(f"{how} {number}")
        shutil.rmtree(".cogr")
        shutil.copytree("whole", ".cogr")
        harmed = draw.choice(world.files)
        damage(Path(".cogr") / harmed, how, draw)
        for command in draw.sample(world.commands, 2):
            met = run(*command.split())
            status = getattr(met.exception, "exit_status", met.exit_code)
            ours = met.exception is None or isinstance(met.exception, CogrError | SystemExit)
            assert (ours, status in (0, 1, 2)) == (True, True), (harmed, command, met.exc_info)
        # What is answered is what the pair that serves answered before; without a query side it may
        # be generated otherwise.
        if (pair := serving()) in world.expected:
            assert answered().items() <= world.expected[pair].items(), harmed
        for side in draw.sample(["item", "query"], 2):
            met = run("rebuild", "--side", side)
            assert met.exit_code == 0, (harmed, met)
        assert serving() == last, harmed
        assert answered() == world.expected[last], harmed


@pytest.mark.parametrize("name", ["keywords.parquet", "manifest.json"])
@pytest.mark.parametrize("how", HARMS)
def test_a_rebuild_makes_a_damaged_snapshot_again_and_says_so(
    shop: Path, cogr_index: Command, caplog: pytest.LogCaptureFixture, name: str, how: str
) -> None:
    made = done(cogr_index, "rebuild", "--side", "item")["snapshot"]
    file = shop / ".cogr/snapshots" / made / name
    damage(file, how, random.Random(1))
    assert done(cogr_index, "rebuild", "--side", "item")["snapshot"] == made
    assert cogr_index("verify").status == 0
    # A folder without a manifest does not exist: nothing is wrong with it.
    assert ("was damaged, and is written again" in caplog.text) is (
        (name, how) != ("manifest.json", "gone")
    )
    assert done(cogr_index, "list")["snapshots"][0]["state"] == "serving"


def test_nothing_is_searched_without_the_rules_of_a_damaged_snapshot(
    shop: Path, cogr_index: Command
) -> None:
    _, queries = rebuilt_pair(cogr_index)
    assert cogr_index("search", "sofa").status == 0
    (shop / ".cogr/snapshots" / queries / "manifest.json").write_bytes(b"")
    assert cogr_index("search", "sofa").status != 0
    done(cogr_index, "rebuild", "--side", "query")
    assert cogr_index("search", "sofa").status == 0


@pytest.mark.parametrize("name", ["keywords.parquet", "manifest.json"])
@pytest.mark.parametrize("harmed", ["item", "query"])
def test_rules_leave_out_what_serves_and_is_damaged(
    shop: Path, cogr_index: Command, harmed: str, name: str
) -> None:
    (shop / "rules.csv").write_text("rule,query,item,keyword\nadd,sofa,,one\n")
    flags = ("--set", "publish.rules=rules.csv", "--set", "publish.tolerance=1")
    for side in ("item", "query"):
        done(cogr_index, "rebuild", "--side", side, *flags)
    serving = done(cogr_index, "list")["serving"]
    (shop / ".cogr/snapshots" / serving[harmed] / name).write_bytes(b"")
    (shop / "rules.csv").write_text("rule,query,item,keyword\nadd,sofa,,two\n")
    rebuild = ("rebuild", "--generator", "scripted", *flags)
    for side in ("item", "query"):
        done(cogr_index, *rebuild, "--side", side)
    assert "two" in done(cogr_index, "search", "sofa", *flags)["keywords"]


def test_list_and_prune_show_a_damaged_snapshot_and_go_on(shop: Path, cogr_index: Command) -> None:
    rebuild = ("rebuild", "--side", "item", "--no-publish", "--generator")
    broken, whole = (
        done(cogr_index, *rebuild, kind)["snapshot"] for kind in ("scripted", "extractive")
    )
    cogr_index("publish", whole)
    (shop / ".cogr/snapshots" / broken / "manifest.json").write_bytes(b"")
    rows = {row["snapshot"]: row for row in done(cogr_index, "list")["snapshots"]}
    states = {id_: row["state"] for id_, row in rows.items()}
    assert states == {broken: "damaged", whole: "serving"}
    assert "is broken" in rows[broken]["damage"]
    prune = ("prune", "--keep", 1, "--files")
    planned = done(cogr_index, *prune, "--dry-run")
    assert (planned["from_store"], list(planned["damaged"])) == ([broken], [broken])
    done(cogr_index, *prune)
    assert [row["snapshot"] for row in done(cogr_index, "list")["snapshots"]] == [whole]


def test_a_prune_goes_on_where_one_died(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the manifest and its folder: then nothing lists the snapshot."""
    made = done(cogr_index, "rebuild", "--side", "item", "--no-push")["snapshot"]
    folder, real = shop / ".cogr/snapshots" / made, Store.remove

    def dies(store: Store, path: str) -> None:
        if path == f"snapshots/{made}":
            raise KeyboardInterrupt
        real(store, path)

    prune = ("prune", "--keep", 0, "--files")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "remove", dies)
        cogr_index(*prune)
    assert (folder / "keywords.parquet").exists()
    assert not (folder / "manifest.json").exists()
    # A rebuild may be writing it.
    assert done(cogr_index, *prune)["from_store"] == []
    os.utime(folder, (0, 0))
    assert done(cogr_index, *prune, "--dry-run")["from_store"] == [made]
    assert done(cogr_index, *prune)["from_store"] == [made]
    assert not folder.exists()


def test_a_manifest_of_another_name_makes_nothing_outside_the_store_go(
    shop: Path, cogr_index: Command
) -> None:
    id_ = "../../precious"
    precious = shop / "precious"
    precious.mkdir()
    (precious / "manifest.json").write_text("{}")
    rebuild = ("rebuild", "--side", "item")
    made = done(cogr_index, *rebuild, "--generator", "scripted", "--no-push")["snapshot"]
    cogr_index(*rebuild)
    file = shop / ".cogr/snapshots" / made / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "id": id_, "checksum": ""}))
    assert cogr_index("publish", made).status == 2
    assert "id or checksum differs" in cogr_index("list").out
    assert cogr_index("prune", "--keep", 0, "--files").status == 0
    assert (precious / "manifest.json").exists()


@pytest.mark.parametrize("name", ["history-memory.json", "memory/serving.json"])
def test_a_damaged_record_of_what_serves_is_refused_until_it_is_removed(
    shop: Path, cogr_index: Command, name: str
) -> None:
    cogr_index("rebuild", "--side", "item")
    (shop / ".cogr" / name).write_bytes(b"[{")
    again = ("rebuild", "--side", "item", "--generator", "scripted")
    for command in (("rollback",), again):
        refused = cogr_index(*command)
        assert refused.status == 2
        assert all(told in refused.err for told in (f"{name} in ", "is damaged; ", "remove it"))
    (shop / ".cogr" / name).unlink()
    assert cogr_index(*again).status == 0
