"""Updates: the snapshot that a rebuild of the changed data would give, for what changed alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cogr.snapshots import open_snapshot
from cogr.store import Store
from tests.commands import Command, done, rebuilt_pair, sets
from tests.indexers.faulty import faulty
from tests.shops import SCRIPTED, read_jsonl, write_data, write_jsonl, write_shop

DATA = [
    {
        "id": f"i{n:02d}",
        "title": f"thing {n}",
        "text": f"word{n % 5} more{n % 3}",
        "updated": f"2026-01-{n + 1:02d}",
    }
    for n in range(25)
]
QUERIES = [
    {"id": f"q{n}", "text": f"word{n}", "split": "train" if n < 3 else "test"} for n in range(5)
]
LABELS = [{"query": f"q{n % 5}", "item": f"i{n:02d}"} for n in range(25)]
CHANGES: list[dict[str, Any]] = [
    {"id": "i03", "title": "thing 3", "text": "something else"},
    {"id": "i07", "title": "renamed", "text": "word2 more1"},
    {"id": "i05", "title": "not yet gone", "text": "x"},
    {"id": "new", "title": "thing new", "text": "word1"},
    {"id": "i05", "deleted": True},
    {"id": "never there", "deleted": True},
]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # 25 items are too few for the gate's shares.
    write_shop(tmp_path, DATA, QUERIES, LABELS, SCRIPTED + "[publish]\ntolerance = 1\n")
    write_jsonl(tmp_path / "changes.jsonl", CHANGES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


UPDATE = ("update", "--side", "item")
BY_FILE = (*UPDATE, "--changed", "changes.jsonl")
FROM_LOG = ("update", "--side", "query", "--from-log")


def rebuilt(cogr_index: Command, *more: str) -> Any:
    return done(cogr_index, "rebuild", "--side", "item", *more)


def write_changed(folder: Path, changes: list[dict[str, Any]] = CHANGES) -> None:
    """The data after the changes, in another order."""
    after = {record["id"]: record for record in DATA}
    for record in changes:
        after.pop(record["id"], None)
        if not record.get("deleted"):
            after[record["id"]] = record
    labels = [label for label in LABELS if label["item"] in after]
    write_data(folder, items=after.values(), queries=QUERIES, labels=labels)


def expected(shop: Path, cogr_index: Command, *more: str) -> str:
    """Id of the snapshot that a rebuild of the changed data gives, in a store of its own."""
    write_changed(shop / "after")
    elsewhere = sets("dataset.path=after", f"store={shop / 'other'}")
    return str(rebuilt(cogr_index, *elsewhere, *more)["snapshot"])


@pytest.mark.parametrize("kind", ["scripted", "extractive"])
def test_an_update_equals_a_rebuild_of_the_changed_data(
    shop: Path, cogr_index: Command, kind: str
) -> None:
    generator = ("--set", f"generator.name={kind}")
    first = rebuilt(cogr_index, *generator)["snapshot"]
    made = done(cogr_index, *BY_FILE, *generator)
    id_ = expected(shop, cogr_index, *generator)
    path = f"snapshots/{id_}/keywords.parquet"
    assert (shop / ".cogr" / path).read_bytes() == (shop / "other" / path).read_bytes()
    assert (made["snapshot"], made["parent"], made["published"]) == (id_, first, True)
    # A generator that reads the collection sees all of it otherwise.
    counts = (3, 22) if kind == "scripted" else (25, 0)
    assert (made["generated"], made["carried"]) == counts
    assert open_snapshot(Store(".cogr"), id_).manifest.parent == first


def test_times_are_looked_up_in_the_data_set(shop: Path, cogr_index: Command) -> None:
    rebuilt(cogr_index)
    id_ = expected(shop, cogr_index)
    # A new one counts whatever its time.
    late = [{**c, "updated": "2026-03-01T10:00:00Z"} for c in CHANGES if c["id"] != "new"]
    write_changed(shop / "data", [*late, {**CHANGES[3], "updated": "2020-01-01"}])
    by_time = done(cogr_index, *UPDATE, "--since", "2026-03-01", "--no-publish")
    assert by_time["snapshot"] == id_
    assert [by_time[key] for key in ("changed", "gone", "generated")] == [3, 1, 3]
    assert not by_time["published"]


def test_what_was_set_aside_stays_so_with_its_reason(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.generators.extractive.Scripted", faulty(fail_every=6))
    failing = ("--set", "rebuild.max_failure_share=1")
    assert rebuilt(cogr_index, *failing)["failures"] > 0
    second = done(cogr_index, *BY_FILE, *failing)
    file = shop / ".cogr/snapshots" / second["snapshot"] / "set_aside.jsonl"
    aside = [record["id"] for record in read_jsonl(file)]
    assert second["failures"] == len(set(aside)) == len(aside)
    assert second["snapshot"] == expected(shop, cogr_index, *failing)


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    (UPDATE, "exactly one"),
    ((*BY_FILE, "--since", "2026-01-01"), "exactly one"),
    ((*UPDATE, "--changed", "bad.jsonl"), "bad.jsonl, line 1: 'deleted' is 'yes'"),
    ((*BY_FILE, "--set", "keywords.k_max=7"), "with a budget of 30 keywords instead of 7"),
    ((*BY_FILE, "--set", "generator.name=extractive"), "by another generator"),
    ((*UPDATE, "--from-log", "log.txt"), "with --side query"),
    ((*FROM_LOG, "log.csv"), "line 2: 'count' is the string 'many'; write it"),
    (("update", "--side", "query", "--changed", "log.txt", "--save", "x"), "use it with"),
    (
        (*FROM_LOG, "log.txt", "--min-count", "1", "--save", "no/x.jsonl"),
        "/no does not exist; create it",
    ),
]


def test_what_can_not_be_done_is_said_in_one_line(shop: Path, cogr_index: Command) -> None:
    rebuilt_pair(cogr_index)
    (shop / "bad.jsonl").write_text('{"id": "i1", "deleted": "yes"}\n')
    (shop / "log.txt").write_text("one\ntwo\n")
    (shop / "log.csv").write_text("query,count\ntwo,many\n")
    for arguments, told in MISTAKES:
        ended = cogr_index(*arguments)
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert told in ended.err


def test_a_generator_of_whole_collections_needs_the_whole_collection(
    shop: Path, cogr_index: Command
) -> None:
    extractive = ("--set", "generator.name=extractive")
    rebuilt(cogr_index, *extractive)
    done(cogr_index, *BY_FILE, *extractive)
    write_jsonl(shop / "more.jsonl", [{"id": "other", "title": "Other"}])
    ended = cogr_index(*UPDATE, "--changed", "more.jsonl", *extractive)
    assert (ended.status, "'i05', only in the data set)" in ended.err) == (2, True)


def test_the_log_is_counted_in_words_and_numbers(shop: Path, cogr_index: Command) -> None:
    done(cogr_index, "rebuild", "--side", "query")
    lines = ["1,word1,9", "2,often,3", "3,rare,1", "4,???,1", "5,,1", '6,"red, soft",4']
    (shop / "log.csv").write_text("\n".join(["id,query,count", *lines]))
    flags = (*FROM_LOG, "log.csv", "--min-count", "3")
    told = "log: 6 lines, 2 without, 4 queries, 1 known, 1 rare, 2 taken"
    assert told in cogr_index(*flags).err.splitlines()
    again = done(cogr_index, *flags)
    assert (again["changed"], again["log"]["known"], again["log"]["taken"]) == (0, 3, 0)


def test_the_queries_of_a_log_are_saved_once(shop: Path, cogr_index: Command) -> None:
    """A shop without labels: its own query file may grow by a log, and everything works on."""
    (shop / "data/labels.jsonl").unlink()
    file = write_jsonl(shop / "data/queries.jsonl", [{"id": "q0", "text": "word0"}])
    rebuilt_pair(cogr_index)
    (shop / "log.txt").write_text("new words\nnew words\nword0\nword0\n")
    flags = (*FROM_LOG, "log.txt", "--min-count", "2", "--save", "data/queries.jsonl")
    first = done(cogr_index, *flags)["log"]
    assert (first["taken"], first["saved"]) == (1, 1)
    saved = read_jsonl(file)
    assert [record["text"] for record in saved] == ["word0", "new words"]
    assert done(cogr_index, *flags)["log"]["saved"] == 0
    assert read_jsonl(file) == saved
    done(cogr_index, "rebuild", "--side", "query")


def test_the_first_log_of_a_shop_without_queries_passes_the_gate(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.generators.extractive.SCRIPTED_WORDS", 0)
    for name in ("queries", "labels"):
        (shop / f"data/{name}.jsonl").unlink()
    silent = ("--set", "publish.tolerance=0")
    rebuilt_pair(cogr_index, *silent)
    (shop / "log.txt").write_text("often\n" * 30)
    made = done(cogr_index, *FROM_LOG, "log.txt", *silent)
    assert (made["log"]["taken"], made["published"]) == (1, True)
