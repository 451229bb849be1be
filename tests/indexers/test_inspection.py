"""The data report: figures counted by hand on a small shop, and the advice on each kind of data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cogr.datasets import load_dataset
from cogr.datasets.reading import Place
from cogr.records import Dataset
from indexers.inspection import inspect_dataset
from tests.shops import untidy_shop as shop

HERE = Place("here", 1)


def test_figures_of_a_small_shop() -> None:
    report = inspect_dataset(shop())
    assert report.items == 4
    assert report.queries == {"train": 2, "dev": 0, "test": 1}
    assert report.relevant_per_query == {"train": 2, "test": 1}
    assert report.duplicates == {"titles": 1, "texts": 1, "queries": 1}
    assert report.judgements == 2 * 2 + 2
    assert report.notes["items without title and text"] == 1


def test_report_is_json() -> None:
    report = inspect_dataset(shop())
    assert json.loads(json.dumps(report.as_dict())) == report.as_dict()


@pytest.mark.parametrize(
    ("dataset", "verdict", "words"),
    [
        (
            shop(train=100),
            "train",
            "The data suits CoGR: 100 training queries have 2.0 relevant items each",
        ),
        (shop(train=99), "label more", "With 99 training queries there is too little to train on"),
        (
            shop(train=100, relevant=1),
            "keep BM25",
            "The median training query has 1 relevant item",
        ),
        (shop(train=0), "label more", "No query is in the train split"),
    ],
)
def test_advice(dataset: Dataset, verdict: str, words: str) -> None:
    report = inspect_dataset(dataset)
    assert report.verdict == verdict
    assert report.advice[0].startswith(words)
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in report.advice)


def test_catalogue_without_queries(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"id": "a", "title": "Chair"}\n')
    report = inspect_dataset(load_dataset("jsonl", tmp_path))
    assert report.relevant_per_query == {}
    assert "catalogue without labelled queries" in report.advice[0]
