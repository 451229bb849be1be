"""BM25 as a baseline: its cutoff is chosen on training queries only."""

from __future__ import annotations

import pytest

from cogr.metrics import measure, sets_of
from cogr.records import Dataset
from indexers.text import Lexical
from tests.indexers.generators.statistical.retrieval import f1
from tests.shops import sample_shop
from trainers.evaluation import bm25


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return sample_shop()


def test_the_cutoff_is_the_best_one_for_the_training_queries(dataset: Dataset) -> None:
    found, lexical = bm25(dataset, "test"), Lexical(dataset.items)
    train = {
        query.id: [id_ for id_, _ in lexical.rank(query.text, 400)]
        for query in dataset.queries["train"]
    }
    by_cutoff = {
        k: f1(dataset, sets_of({id_: ids[:k] for id_, ids in train.items()})) for k in range(1, 60)
    }
    assert found.cutoff == max(by_cutoff, key=lambda k: by_cutoff[k])
    assert found.runs.keys() == {query.id for query in dataset.queries["test"]}


def test_rank_metrics_see_bm25s_whole_rankings_and_sets_its_best_items(dataset: Dataset) -> None:
    found, queries = bm25(dataset, "test"), dataset.queries["test"]
    assert {id_: ids[: found.cutoff] for id_, ids in found.rankings.items()} == found.runs
    row = found.row(dataset, "test")
    whole, cut = (measure(dataset, queries, some).means for some in (found.rankings, found.runs))
    assert all(row[name] == whole[name] for name in ("r@100", "ndcg@100", "mrr@100"))
    assert all(row[name] == cut[name] for name in ("p", "r", "f1"))
    assert row["r@100"] > cut["r@100"]
    assert row["sets"].startswith(f"the best {found.cutoff} items of each ranking")
