"""Numbers of items and of pairs as evidence: popularity, price, clicks, what else a team knows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cogr.errors import GeneratorError
from cogr.records import Dataset, Item, Query
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.generator import Statistical, StatisticalOptions
from indexers.generators.statistical.ranking.features import rank_shares
from indexers.generators.statistical.ranking.text_index import PairSignals, item_signals
from indexers.generators.statistical.storage import open_artefact, save
from indexers.workspace import Workspace
from tests.indexers.generators.statistical.retrieval import exact_cut_run, f1, retrieved
from tests.shops import DATASET, sample_shop, training_shop, write_data

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
    made = training_shop(items, queries)
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


def test_places_are_counted_within_a_query() -> None:
    found = rank_shares(np.array([0, 0, 0, 2, 2]), np.array([0.1, 0.9, 0.5, 7, 3], np.float32))
    assert found.tolist() == pytest.approx([1 / 3, 1, 2 / 3, 1, 0.5])


def clicks(dataset: Dataset, queries: Iterable[Query], seed: int) -> dict[str, dict[str, float]]:
    """Of shoppers who click a third of what is relevant often, and a few other items less often."""
    rng, ids = np.random.default_rng(seed), [item.id for item in dataset.items]
    found = {}
    for query in queries:
        relevant = sorted(dataset.relevant[query.id])
        few = rng.choice(relevant, (len(relevant) + 2) // 3, replace=False).tolist()
        pairs = {item: float(rng.integers(1, 4)) for item in rng.choice(ids, 5).tolist()}
        found[query.id] = pairs | {item: float(rng.integers(3, 30)) for item in few}
    return found


@pytest.fixture(scope="module")
def sample() -> Dataset:
    """The sample shop, with clicks of all training queries and of half of the test queries."""
    made = sample_shop()
    asked = [*made.queries["train"], *made.queries["dev"], *made.queries["test"][::2]]
    return replace(made, pair_signals={"clicks": clicks(made, asked, 0)})


@pytest.fixture(scope="module")
def blind(sample: Dataset) -> Artefact:
    return fit(sample)


@pytest.fixture(scope="module")
def clicked(sample: Dataset) -> Artefact:
    return fit(sample, pair_signals=["clicks"])


def test_clicks_help_the_queries_that_have_them_and_harm_no_others(
    sample: Dataset, blind: Artefact, clicked: Artefact
) -> None:
    with_clicks, without = sample.queries["test"][::2], sample.queries["test"][1::2]
    for queries, least in ((with_clicks, 0.05), (without, -0.03)):
        before, after = (
            f1(sample, retrieved(artefact, sample.items, queries)) for artefact in (blind, clicked)
        )
        assert after - before > least


def test_queries_find_their_clicks_by_their_text(
    sample: Dataset, clicked: Artefact, tmp_path: Path
) -> None:
    query = sample.queries["test"][0]
    other = Query("another id", f"  {query.text.upper()} ")
    assert clicked.query_keywords([other]) == clicked.query_keywords([query])
    save(clicked, tmp_path)
    opened = open_artefact(tmp_path)
    assert opened.query_keywords([other]) == clicked.query_keywords([query])
    assert opened.index.pair_signals.digest == clicked.index.pair_signals.digest
    (items, _), item = clicked.probabilities([query])[0], clicked.numbers
    assert {item[id_] for id_ in sample.pair_signals["clicks"][query.id]} <= set(items.tolist())


def test_another_price_or_click_is_another_generator(sample: Dataset) -> None:
    told, (item, other) = sample.pair_signals["clicks"], sample.items[:2]
    query = sample.queries["test"][0].id
    more = replace(sample, pair_signals={"clicks": {**told, query: {item.id: 99.0}}})
    known = replace(other, fields_json='{"sold": 5}')
    sold, dearer = (
        replace(sample, items=[replace(item, fields_json=fields), known, *sample.items[2:]])
        for fields in ('{"sold": 9}', '{"sold": 1}')
    )
    for one, two, options in (
        (sample, more, StatisticalOptions(pair_signals=("clicks",))),
        (sold, dearer, StatisticalOptions(signals=("sold",))),
    ):
        assert Statistical(one, options).fingerprint != Statistical(two, options).fingerprint
        assert Statistical(one).fingerprint == Statistical(two).fingerprint


def test_a_signal_that_nothing_has_is_refused(sample: Dataset) -> None:
    with pytest.raises(GeneratorError, match=r"names 'margin'.*publish\.fields"):
        fit(sample, signals=["margin"])
    with pytest.raises(GeneratorError, match=r"pair_signals names 'carts'.*pairs\.\*"):
        fit(sample, pair_signals=["carts"])


def test_queries_of_one_text_share_the_highest_number() -> None:
    items = [Item("a", "A"), Item("b", "B")]
    told = {"1": {"a": 3.0}, "2": {"a": 8.0, "b": 1.0}, "3": {"b": 5.0}}
    asked = [Query("1", "Red"), Query("2", "red ")]
    data = Dataset("small", items, {"train": asked, "dev": [], "test": []}, {}, {}, "5" * 64)
    data = replace(data, unlabelled=[Query("3", "blue")], pair_signals={"clicks": told})
    found = PairSignals.read(data, ["clicks"])
    (column,) = found.of(["blue", "green", "red"])
    assert np.expm1(column.toarray()) == pytest.approx(np.array([[0, 5], [0, 0], [8, 1]]))
    (column,) = found.without(["blue"]).of(["blue", "red"])
    assert np.expm1(column.toarray()) == pytest.approx(np.array([[0, 0], [8, 1]]))


def test_the_configuration_names_the_columns(tmp_path: Path) -> None:
    write_data(
        tmp_path / "data",
        items=[{"id": "a", "title": "Red chair"}],
        queries=[{"id": "q", "text": "chair"}],
        pairs=[{"query": "q", "item": "a", "carts": 4}],
    )
    config = tmp_path / "cogr.toml"
    config.write_text(DATASET + '[generator.statistical]\npair_signals = ["carts"]\n')
    workspace = Workspace.open(config, None)
    assert workspace.dataset.pair_signals == {"carts": {"q": {"a": 4.0}}}
