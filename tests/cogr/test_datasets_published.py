"""The published data sets, when COGR_DATA_DIR names a folder that holds them: every count and split, exactly."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from cogr.datasets import load_dataset
from cogr.records import Dataset


def load(name: str) -> Dataset:
    folder = os.environ.get("COGR_DATA_DIR")
    if not folder or not (Path(folder) / name).is_dir():
        pytest.skip(f"COGR_DATA_DIR names no folder with {name}/")
    return load_dataset(name)


def sizes(dataset: Dataset) -> dict[str, int]:
    return {split: len(queries) for split, queries in dataset.queries.items()}


def relevant_counts(dataset: Dataset, split: str) -> list[int]:
    return [len(dataset.relevant[query.id]) for query in dataset.queries[split]]


def test_nfcorpus() -> None:
    dataset = load("nfcorpus")
    assert len(dataset.items) == 3395
    assert sizes(dataset) == {"train": 2563, "dev": 324, "test": 323}
    counts = relevant_counts(dataset, "test")
    assert (round(statistics.mean(counts), 1), statistics.median(counts), max(counts)) == (38.2, 16, 475)
    assert dataset.notes == {"judgements of unknown items": 500, "queries without a relevant item": 34}
    assert all(len(item.title.split()) <= 8 for item in dataset.items)
