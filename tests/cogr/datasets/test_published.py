"""The published data sets, when COGR_DATA_DIR names a folder that holds them: every count and
split, exactly.
"""

from __future__ import annotations

import os
import random
import statistics
from functools import cache
from pathlib import Path

import pytest

from cogr.datasets import load_dataset
from cogr.errors import DataError
from cogr.records import Dataset


def folder_of(name: str) -> Path:
    folder = os.environ.get("COGR_DATA_DIR")
    if not folder or not (Path(folder) / name).is_dir():
        pytest.skip(f"COGR_DATA_DIR names no folder with {name}/")
    return Path(folder) / name


@cache
def load(name: str) -> Dataset:
    folder_of(name)
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
    assert (round(statistics.mean(counts), 1), statistics.median(counts), max(counts)) == (
        38.2,
        16,
        475,
    )
    assert dataset.notes == {
        "judgements of unknown items": 500,
        "queries without a relevant item": 34,
    }
    assert all(len(item.title.split()) <= 8 for item in dataset.items)


@pytest.mark.slow
def test_msrd() -> None:
    dataset = load("msrd")
    assert len(dataset.items) == 9750
    assert sizes(dataset) == {"train": 14652, "dev": 0, "test": 1627}
    counts = relevant_counts(dataset, "train") + relevant_counts(dataset, "test")
    assert len(counts) == 16279
    assert (round(statistics.mean(counts), 1), statistics.median(counts)) == (3.5, 2)
    assert sum(count >= 10 for count in counts) == 1208
    # Every one of the 374 is the one judged film that the corpus lacks.
    assert dataset.notes == {"judgements of unknown items": 374}
    assert {query.id for query in dataset.queries["test"]} == first_part(dataset, 10)


def test_chorus() -> None:
    dataset = load("chorus")
    assert len(dataset.items) == 19406
    assert sizes(dataset) == {"train": 91, "dev": 0, "test": 22}
    counts = relevant_counts(dataset, "train") + relevant_counts(dataset, "test")
    assert (round(statistics.mean(counts)), statistics.median(counts), max(counts)) == (14, 7, 42)
    assert dataset.notes == {"queries without a relevant item": 135 - 113}
    assert {query.id for query in dataset.queries["test"]} == first_part(dataset, 5)


def first_part(dataset: Dataset, parts: int) -> set[str]:
    """The fixed evaluation split, spelled out independently of the code under test."""
    ids = sorted(dataset.relevant)
    random.Random(0).shuffle(ids)
    return set(ids[: len(ids) // parts])


def test_fixed_split_does_not_depend_on_the_seed() -> None:
    dataset = load("chorus")
    other = load_dataset("chorus", dev_share=0.2, seed=7)
    assert other.queries["test"] == dataset.queries["test"]
    assert len(other.queries["dev"]) == len(dataset.queries["train"]) // 5
    assert set(other.queries["dev"]) | set(other.queries["train"]) == set(dataset.queries["train"])


def test_wands_has_the_paper_s_sizes(tmp_path: Path) -> None:
    """The real queries; the products and labels around them are made up, as the real ones may not
    be there.
    """
    queries = folder_of("wands") / "query.csv"
    if not queries.is_file():
        pytest.skip(f"{queries} is not there")
    (tmp_path / "query.csv").write_bytes(queries.read_bytes())
    (tmp_path / "product.csv").write_text(
        "product_id\tproduct_name\tproduct_description\n7\tChair\tTo sit on.\n"
    )
    ids = [line.split("\t")[0] for line in queries.read_text().splitlines()[1:]]
    labels = "".join(f"{number}\t{id_}\t7\tPartial\n" for number, id_ in enumerate(ids))
    (tmp_path / "label.csv").write_text("id\tquery_id\tproduct_id\tlabel\n" + labels)
    dataset = load_dataset("wands", tmp_path)
    assert sizes(dataset) == {"train": 430, "dev": 0, "test": 50}
    assert 'writing desk 48"' in {query.text for query in dataset.all_queries()}


def test_wands_without_products_says_what_to_fetch() -> None:
    folder = folder_of("wands")
    if (folder / "product.csv").exists():
        pytest.skip("the products are there")
    with pytest.raises(DataError, match=r"wands has no product\.csv .*: fetch .*WANDS"):
        load_dataset("wands")
