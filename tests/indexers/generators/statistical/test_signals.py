"""Numbers of pairs as evidence: clicks, purchases, what else a team knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from _new_items import retrieved_by

from cogr.errors import GeneratorError
from cogr.records import Dataset, Item, Query
from cogr.store import Store
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.fitting import fit
from indexers.generators.statistical.generator import Statistical, StatisticalOptions
from indexers.generators.statistical.ranking.text_index import PairSignals
from indexers.generators.statistical.storage import open_artefact, save
from tests.indexers.generators.statistical.retrieval import f1
from tests.shops import sample_shop

pytestmark = pytest.mark.slow


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
def clicked(sample: Dataset) -> Artefact:
    return fit(sample, pair_signals=["clicks"])


def test_clicks_help_the_queries_that_have_them_and_harm_no_others(
    sample: Dataset, artefact: Artefact, clicked: Artefact
) -> None:
    with_clicks, without = sample.queries["test"][::2], sample.queries["test"][1::2]
    for queries, least in ((with_clicks, 0.05), (without, -0.03)):
        before, after = (
            f1(sample, retrieved_by(one, sample, queries)) for one in (artefact, clicked)
        )
        assert after - before > least


def test_queries_find_their_clicks_by_their_text(
    sample: Dataset, clicked: Artefact, tmp_path: Path
) -> None:
    query = sample.queries["test"][0]
    other = Query("another id", f"  {query.text.upper()} ")
    assert clicked.query_keywords([other]) == clicked.query_keywords([query])
    save(clicked, Store(tmp_path))
    opened = open_artefact(Store(tmp_path))
    assert opened.query_keywords([other]) == clicked.query_keywords([query])
    (items, _), item = clicked.probabilities([query])[0], clicked.numbers
    assert {item[id_] for id_ in sample.pair_signals["clicks"][query.id]} <= set(items.tolist())


def test_what_is_fitted_and_what_is_opened_see_the_same_clicks(
    clicked: Artefact, tmp_path: Path
) -> None:
    save(clicked, Store(tmp_path))
    both = (clicked, open_artefact(Store(tmp_path)))
    (fitted,), (opened,) = (one.sources.queries.pair_signals for one in both)
    assert (fitted != opened).nnz == 0


def test_another_click_is_another_generator(sample: Dataset, tmp_path: Path) -> None:
    told, item = sample.pair_signals["clicks"], sample.items[0]
    query = sample.queries["test"][0].id
    more = replace(sample, pair_signals={"clicks": {**told, query: {item.id: 99.0}}})
    options, store = StatisticalOptions(pair_signals=("clicks",)), Store(tmp_path)
    one, other = (Statistical(data, store, options).fingerprint for data in (sample, more))
    assert one != other
    assert Statistical(sample, store).fingerprint == Statistical(more, store).fingerprint


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
    with pytest.raises(GeneratorError, match=r"pair_signals .*'carts'.*pairs\.\*"):
        PairSignals.read(data, ["carts"])
