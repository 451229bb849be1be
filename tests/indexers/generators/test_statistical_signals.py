"""Numeric fields of the items as evidence: popularity, price, and what else a team knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cogr.errors import GeneratorError
from cogr.records import Dataset, Item
from indexers.generators.statistical.artefact import exact_cut_run
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.generator import Statistical, StatisticalOptions
from indexers.generators.statistical.ranking.features import rank_shares
from indexers.generators.statistical.ranking.text_index import item_signals
from indexers.generators.statistical.storage import open_artefact, save
from tests.indexers.generators.statistical_worlds import f1, small

COLOURS = [f"colour{n}" for n in range(40)]


def shelf(colour: str, sold: Mapping[int, float]) -> list[Item]:
    """Ten lamps of a colour that differ in nothing but how often they sell."""
    return [
        Item(f"{colour} {n}", f"{colour} lamp", "", json.dumps({"sold": times}))
        for n, times in sold.items()
    ]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """Only the three that sell best are relevant to a query for a colour."""
    rng = np.random.default_rng(0)
    items: list[Item] = []
    queries = {}
    for colour in COLOURS:
        sold = dict(enumerate(rng.permutation(10).tolist()))
        items += shelf(colour, sold)
        best = sorted(sold, key=lambda n: -sold[n])[:3]
        queries[colour] = (colour, [f"{colour} {n}" for n in best])
    made = small(items, queries)
    train, test = made.queries["train"][:30], made.queries["train"][30:]
    return replace(made, queries={"train": train, "dev": [], "test": test})


def test_a_signal_tells_apart_what_texts_do_not(dataset: Dataset, tmp_path: Path) -> None:
    queries = dataset.queries["test"]
    blind, seeing = fit(dataset), fit(dataset, signals=["sold"])
    for artefact, least, most in ((blind, 0.3, 0.6), (seeing, 0.8, 1.0)):
        cut = {query: frozenset(ids) for query, ids in exact_cut_run(artefact, queries).items()}
        assert least < f1(dataset, cut) <= most
    save(seeing, tmp_path)
    assert open_artefact(tmp_path).query_keywords(queries) == seeing.query_keywords(queries)


def test_a_signal_is_the_share_of_items_with_no_more() -> None:
    fields = ['{"price": 5}', '{"price": 1.5}', "", '{"price": "on request"}', '{"price": 5}']
    items = [Item(str(n), "", "", text) for n, text in enumerate(fields)]
    assert item_signals(items, ["price"]).ravel().tolist() == pytest.approx([1, 1 / 3, 0, 0, 1])
    assert item_signals(items, []).shape == (5, 0)


def test_a_signal_that_no_item_has_is_refused(dataset: Dataset) -> None:
    with pytest.raises(GeneratorError, match=r"names 'margin'.*publish\.fields"):
        fit(dataset, signals=["margin"])


def test_places_are_counted_within_a_query() -> None:
    found = rank_shares(np.array([0, 0, 0, 2, 2]), np.array([0.1, 0.9, 0.5, 7, 3], np.float32))
    assert found.tolist() == pytest.approx([1 / 3, 1, 2 / 3, 1, 0.5])


def test_another_price_is_another_generator(dataset: Dataset) -> None:
    options = StatisticalOptions(signals=("sold",))
    sold = replace(dataset.items[0], fields_json='{"sold": 99}')
    changed = replace(dataset, items=[sold, *dataset.items[1:]])
    assert changed.dataset_hash == dataset.dataset_hash
    before, after = (Statistical(data, options).fingerprint for data in (dataset, changed))
    assert before != after
    assert Statistical(dataset).fingerprint == Statistical(changed).fingerprint
