"""What inspect says of data and labels: figures counted by hand on a small shop, the advice on each
kind of data.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cogr.records import Item
from cogr.settings import load_settings
from indexers.inspection import examine, holes, runs_of
from indexers.workspace import Workspace
from tests.commands import Command, rebuilt_pair
from tests.shops import training_shop, write_shop

LONG = "a green velvet sofa with wooden legs and two cushions for the living room"
TEXTS = {
    "a": ("Velvet sofa", LONG),
    "b": ("Velvet sofa", LONG.upper()),
    "c": ("Oak table", "a dining table"),
    "d": ("Floor lamp", "brass, for reading"),
    "e": ("Desk lamp", "with a switch"),
    "f": ("", ""),
}
ASKED = {
    "velvet sofas": ("train", {"a": 1, "b": 0}),
    "reading lamp": ("train", {"d": 1, "e": 0}),
    "Velvet  Sofas": ("test", {"a": 1}),
    "sofa velvet": ("test", {"b": 1}),
    "readinng lamp": ("dev", {"d": 1}),
    "couch": ("test", {"a": 1}),
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("shop")
    config = write_shop(
        folder,
        [{"id": id_, "title": title, "text": text} for id_, (title, text) in TEXTS.items()],
        [{"id": text, "text": text, "split": split} for text, (split, _) in ASKED.items()],
        [
            {"query": text, "item": item, "grade": grade}
            for text, (_, grades) in ASKED.items()
            for item, grade in grades.items()
        ],
    )
    data, store = folder / "data", folder / "store"
    return Workspace(load_settings(config, [f"dataset.path={data}", f"store={store}"]))


def test_what_is_there_is_counted_and_nothing_that_is_set_is_advised(workspace: Workspace) -> None:
    found = examine(workspace)
    assert (found.items, found.judgements) == (6, 8)
    assert found.queries == {"train": 2, "dev": 1, "test": 3}
    assert found.relevant_per_query == {"train": 1, "dev": 1, "test": 1}
    assert found.duplicates == {"titles": 1, "texts": 1, "queries": 1}
    assert found.notes["items without title and text"] == 1
    leaks = found.leakage
    assert [leaks[name] for name in ("queries", "known", "share")] == [4, 2, 0.5]
    alike = [("Velvet  Sofas", "velvet sofas"), ("sofa velvet", "velvet sofas")]
    assert leaks["examples"] == alike
    assert found.verdict == "keep BM25"
    assert 'set dataset.split_by = "cluster"' in " ".join(found.advice)
    settings = workspace.settings.model_copy(deep=True)
    object.__setattr__(settings.dataset, "split_by", "cluster")
    advice = " ".join(examine(Workspace(settings).with_dataset(workspace.dataset)).advice)
    assert "near-equal training query" in advice
    assert "split_by" not in advice


@pytest.mark.parametrize(
    ("train", "relevant", "verdict", "words"),
    [
        (100, 2, "train", "100 training queries have 2.0 relevant items each"),
        (99, 2, "label more", "With 99 training queries"),
        (100, 1, "keep BM25", "The median training query has 1 relevant item"),
        (0, 0, "label more", "No query is in the train split"),
        (-1, 0, "label more", "without labelled queries"),
    ],
)
def test_the_advice_follows_the_labels(
    workspace: Workspace, train: int, relevant: int, verdict: str, words: str
) -> None:
    asked = {f"q{number}": (f"seat {number}", "ab"[:relevant]) for number in range(train)}
    shop = training_shop([Item("a", "Red chair"), Item("b", "Blue chair")], asked)
    if train == 0:
        other = training_shop(shop.items, {"t": ("seat", "a")})
        shop = replace(other, queries={"test": other.queries["train"]})
    shop = replace(
        shop, judged={id_: dict.fromkeys(ids, 1.0) for id_, ids in shop.relevant.items()}
    )
    report = examine(workspace.with_dataset(shop))
    assert report.verdict == verdict
    assert words in report.advice[0]
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in report.advice)


def test_holes_are_what_is_found_and_was_not_judged(workspace: Workspace) -> None:
    queries = [q for q in workspace.dataset.all_queries() if q.text in ("reading lamp", "couch")]
    found = holes(runs_of(workspace, queries, 2)[0], workspace.dataset)
    assert {*found} == {"bm25"}
    bm25 = found["bm25"]  # reading lamp: d and e, both judged; couch: nothing is found
    assert (bm25.queries, bm25.judged_share, bm25.relevant_share) == (2, 1.0, 0.5)


def test_what_serves_is_a_retriever_too_and_lineage_goes_into_snapshots(
    shop: Path, cogr_index: Command
) -> None:
    (shop / "data" / "lineage.json").write_text('{"source": "clicks", "filters": {"k": 5}}')
    items, _ = rebuilt_pair(cogr_index)
    found = cogr_index("inspect", "--json").json
    assert found["holes"]["keywords"]["queries"] == 3
    assert found["verdict"] in ("keep BM25", "label more")
    shown = cogr_index("inspect").out
    assert shown.splitlines()[0] == f"What to do: {found['verdict']}"
    assert found["advice"][0].split()[0] in shown
    lineage = {"source": "clicks", "filters": {"k": 5}}
    snapshot = Workspace.open(shop / "cogr.toml").snapshot(items, "item")
    assert found["lineage"] == snapshot.manifest.notes["lineage"] == lineage
    (shop / "data" / "lineage.json").write_text("no JSON")
    ended = cogr_index("inspect")
    assert (ended.status, "lineage.json, line 1" in ended.sentence) == (2, True)
