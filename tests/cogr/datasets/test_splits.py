"""Splits by a hash: new queries move no old one, and near-equal queries stay together."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cogr.datasets.builder import Builder, Options, cluster_key
from cogr.datasets.reading import Place
from cogr.errors import SettingsError
from cogr.records import SPLITS

HERE = Place("here", 1)


def split_of(texts: Iterable[str]) -> dict[str, str]:
    """The split of each query of a shop, by its text."""
    builder = Builder("shop", Options(dev_share=0.1, split_by="cluster"))
    builder.item(HERE, "a", "Chair", "")
    for text in texts:
        builder.query(HERE, text, text)
        builder.judgement(HERE, text, "a", 1)
    queries = builder.build().queries
    return {query.text: split for split in SPLITS for query in queries[split]}


def test_new_queries_move_no_old_one() -> None:
    few = split_of(f"chair {n}" for n in range(200))
    many = split_of(f"chair {n}" for n in reversed(range(1000)))
    assert few.items() <= many.items()
    sizes = {split: [*many.values()].count(split) for split in SPLITS}
    assert 70 <= sizes["test"] <= 130
    assert 60 <= sizes["dev"] <= 120


def test_near_equal_queries_are_in_one_split() -> None:
    pairs = [(f"red chairs {n}", f"{n} Chair, RED!") for n in range(100)]
    found = split_of(text for pair in pairs for text in pair)
    assert all(found[one] == found[other] for one, other in pairs)
    assert cluster_key("Running shoes for men") == cluster_key("men shoe for running")
    assert cluster_key("stühle 2") != cluster_key("stühle 3")


def test_own_splits_stay() -> None:
    builder = Builder("shop", Options(split_by="cluster"))
    builder.item(HERE, "a", "Chair", "")
    builder.query(HERE, "q", "chair", split="train")
    builder.judgement(HERE, "q", "a", 1)
    with pytest.raises(SettingsError, match=r"has its own splits; remove dataset.split_by"):
        builder.build()
