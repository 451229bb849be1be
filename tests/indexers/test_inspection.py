"""What inspect says of data and labels: figures counted by hand on a small shop, the advice on each
kind of data.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cogr.records import Dataset, Item
from cogr.settings import load_settings
from indexers.inspection import (
    examine,
    holes,
    inspect_dataset,
    leakage,
    runs_of,
)
from indexers.workspace import Workspace
from tests.commands import Command
from tests.shops import training_shop, write_shop

LONG = "a green velvet sofa with wooden legs and two cushions for the living room"
ITEMS = [
    {"id": "a", "title": "Velvet sofa", "text": LONG},
    {"id": "b", "title": "Velvet sofa", "text": LONG.upper()},
    {"id": "c", "title": "Oak table", "text": "a dining table"},
    {"id": "d", "title": "Floor lamp", "text": "brass, for reading"},
    {"id": "e", "title": "Desk lamp", "text": "with a switch"},
    {"id": "f", "title": "", "text": ""},
]
QUERIES = [
    {"id": "q1", "text": "velvet sofas", "split": "train"},
    {"id": "q2", "text": "reading lamp", "split": "train"},
    {"id": "q3", "text": "Velvet  Sofas", "split": "test"},
    {"id": "q4", "text": "sofa velvet", "split": "test"},
    {"id": "q5", "text": "readinng lamp", "split": "dev"},
    {"id": "q6", "text": "couch", "split": "test"},
]
LABELS = [
    {"query": "q1", "item": "a", "grade": 1},
    {"query": "q1", "item": "b", "grade": 0},
    {"query": "q2", "item": "d", "grade": 1},
    {"query": "q2", "item": "e", "grade": 0},
    {"query": "q3", "item": "a", "grade": 1},
    {"query": "q4", "item": "b", "grade": 1},
    {"query": "q5", "item": "d", "grade": 1},
    {"query": "q6", "item": "a", "grade": 1},
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("shop")
    config = write_shop(folder, ITEMS, QUERIES, LABELS)
    data, store = folder / "data", folder / "store"
    return Workspace(load_settings(config, [f"dataset.path={data}", f"store={store}"]))


@pytest.fixture(scope="module")
def dataset(workspace: Workspace) -> Dataset:
    return workspace.dataset


def test_what_is_there_is_counted(dataset: Dataset) -> None:
    report = inspect_dataset(dataset)
    assert report.items == 6
    assert report.queries == {"train": 2, "dev": 1, "test": 3}
    assert report.relevant_per_query == {"train": 1, "dev": 1, "test": 1}
    assert report.duplicates == {"titles": 1, "texts": 1, "queries": 1}
    assert report.judgements == len(LABELS)
    assert report.notes["items without title and text"] == 1
    assert json.loads(json.dumps(report.as_dict())) == report.as_dict()


@pytest.mark.parametrize(
    ("train", "relevant", "verdict", "words"),
    [
        (
            100,
            2,
            "train",
            "There is enough to train on: 100 training queries have 2.0 relevant items each",
        ),
        (99, 2, "label more", "With 99 training queries there is too little to train on"),
        (100, 1, "keep BM25", "The median training query has 1 relevant item"),
        (0, 0, "label more", "No query is in the train split"),
        (-1, 0, "label more", "This is a catalogue without labelled queries"),
    ],
)
def test_the_advice_follows_the_labels(train: int, relevant: int, verdict: str, words: str) -> None:
    asked = {f"q{number}": (f"seat {number}", "ab"[:relevant]) for number in range(train)}
    shop = training_shop([Item("a", "Red chair"), Item("b", "Blue chair")], asked)
    if train == 0:
        other = training_shop(shop.items, {"t": ("seat", "a")})
        shop = replace(other, queries={"test": other.queries["train"]})
    report = inspect_dataset(shop)
    assert report.verdict == verdict
    assert report.advice[0].startswith(words)
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in report.advice)


def test_test_queries_that_are_known_from_training_are_found(dataset: Dataset) -> None:
    found = leakage(dataset)
    assert (found.queries, found.known, found.share) == (4, 2, 0.5)
    assert found.examples == [("Velvet  Sofas", "velvet sofas"), ("sofa velvet", "velvet sofas")]


def test_holes_are_what_is_found_and_was_not_judged(workspace: Workspace) -> None:
    queries = [query for query in workspace.dataset.all_queries() if query.id in ("q2", "q6")]
    found = holes(runs_of(workspace, queries, 2)[0], workspace.dataset)
    assert {*found} == {"bm25"}
    bm25 = found["bm25"]  # q2: d and e, both judged; q6: nothing is found
    assert (bm25.queries, bm25.judged_share, bm25.relevant_share) == (2, 1.0, 0.5)


def test_what_serves_is_a_retriever_too(shop: Path, cogr_index: Command) -> None:
    for side in ("item", "query"):
        assert cogr_index("rebuild", "--side", side).status == 0
    found = cogr_index("inspect", "--json").json
    assert found["holes"]["keywords"]["queries"] == 3
    assert found["verdict"] in ("keep BM25", "label more")
    shown = cogr_index("inspect").out
    assert shown.splitlines()[0] == f"What to do: {found['verdict']}"
    assert found["advice"][0].split()[0] in shown


def test_lineage_of_labels_goes_into_snapshots(shop: Path, cogr_index: Command) -> None:
    (shop / "data" / "lineage.json").write_text('{"source": "clicks", "filters": {"k": 5}}')
    id_ = cogr_index("rebuild", "--side", "item", "--json").json["snapshot"]
    workspace = Workspace.open(shop / "cogr.toml")
    lineage = workspace.snapshot(id_, "item").manifest.notes["lineage"]
    assert lineage == {"source": "clicks", "filters": {"k": 5}}
    assert examine(workspace).lineage == lineage
    (shop / "data" / "lineage.json").write_text("no JSON")
    ended = cogr_index("inspect")
    assert (ended.status, "lineage.json, line 1" in ended.sentence) == (2, True)


def test_one_verdict_is_given_and_nothing_that_is_set_is_advised(workspace: Workspace) -> None:
    found = examine(workspace)
    assert found.as_dict()["verdict"] == "keep BM25"
    assert 'set dataset.split_by = "cluster"' in " ".join(found.advice)
    settings = workspace.settings.model_copy(deep=True)
    object.__setattr__(settings.dataset, "split_by", "cluster")
    other = Workspace(settings).with_dataset(workspace.dataset)
    advice = " ".join(examine(other).advice)
    assert "near-equal training query" in advice
    assert "split_by" not in advice
