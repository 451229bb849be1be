"""Baselines: BM25's cutoff is chosen on training queries only, and its published
figures come out.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cogr.datasets import load_dataset
from cogr.errors import DataError
from cogr.metrics import full_set, measure
from cogr.records import Dataset
from indexers.text import Lexical
from trainers.evaluation import Baseline, bm25

SHOP = Path(__file__).parents[2] / "trainers" / "demo" / "data"


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load_dataset("jsonl", SHOP)


def f1(dataset: Dataset, baseline: Baseline) -> float:
    relevant = {query: dataset.relevant[query] for query in baseline.runs}
    return full_set(
        {query: frozenset(ids) for query, ids in baseline.runs.items()}, relevant
    ).means["f1"]


def test_the_cutoff_is_the_best_one_for_the_training_queries(dataset: Dataset) -> None:
    found = bm25(dataset, "test")
    lexical = Lexical(dataset.items)
    train = {
        query.id: [item.id for item, _ in lexical.rank(query.text, 400)]
        for query in dataset.queries["train"]
    }
    by_cutoff = {
        k: f1(dataset, Baseline("", "", {id_: ids[:k] for id_, ids in train.items()}, {}))
        for k in range(1, 60)
    }
    assert found.cutoff == max(by_cutoff, key=lambda k: by_cutoff[k])
    assert all(len(ids) <= found.cutoff for ids in found.runs.values())
    assert found.runs.keys() == {query.id for query in dataset.queries["test"]}


def test_rank_metrics_see_bm25s_whole_rankings_and_sets_its_best_items(dataset: Dataset) -> None:
    found, queries = bm25(dataset, "test"), dataset.queries["test"]
    assert found.cutoff is not None
    assert {id_: ids[: found.cutoff] for id_, ids in found.rankings.items()} == found.runs
    row = found.row(dataset, "test")
    whole, cut = (measure(dataset, queries, some).means for some in (found.rankings, found.runs))
    assert {name: row[name] for name in ("r@100", "ndcg@100", "mrr@100")} == {
        name: whole[name] for name in ("r@100", "ndcg@100", "mrr@100")
    }
    assert row["r@100"] > cut["r@100"]
    assert {name: row[name] for name in ("p", "r", "f1")} == {
        name: cut[name] for name in ("p", "r", "f1")
    }
    assert row["sets"].startswith(f"the best {found.cutoff} items of each ranking")


def test_an_empty_split_is_refused(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="dev"):
        bm25(replace(dataset, queries={**dataset.queries, "dev": ()}), "dev")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cutoff", "expected"), [("nfcorpus", 17, 0.1532)])
def test_reference_figures(name: str, cutoff: int, expected: float) -> None:
    dataset = published(name)
    found = bm25(dataset, "test")
    assert abs(found.cutoff - cutoff) <= 2
    assert f1(dataset, found) == pytest.approx(expected, abs=0.002)


def published(name: str) -> Dataset:
    root = os.environ.get("COGR_DATA_DIR")
    if root is None or not (Path(root) / name).is_dir():
        pytest.skip(f"COGR_DATA_DIR has no {name}")
    return load_dataset(name)
