"""Confidence: laws of the parts, and the sample shop's test queries."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.records import Dataset
from indexers.generators.statistical.artefact import Artefact, calibrate
from tests.indexers.generators.statistical.retrieval import f1, retrieved


def test_a_skewed_estimate_is_straightened() -> None:
    """Expected F1 of 0.2 to 0.8 that is twice too hopeful in its logit."""
    rng = np.random.default_rng(0)
    expected = rng.uniform(0.2, 0.8, 2000)
    true = 1 / (1 + np.exp(-(0.5 * np.log(expected / (1 - expected)) - 1)))
    found = calibrate(expected, rng.binomial(10, true) / 10)(expected)
    assert np.abs(found - true).max() < 0.05


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_confidence_rises_with_expected_f1(pairs: list[tuple[float, float]]) -> None:
    expected, true = np.array(pairs).T
    line = calibrate(expected, true)
    sure = line(np.linspace(0, 1, 50))
    assert (np.diff(sure) >= 0).all()
    assert ((sure > 0) & (sure < 1)).all()


def test_the_shops_confidence_tells_good_sets_from_bad_ones(
    dataset: Dataset, artefact: Artefact
) -> None:
    """Test queries, of which the fit knows nothing: mean within 0.1 of F1, and the surer half is
    better.
    """
    queries = dataset.queries["test"]
    sure = {
        query.id: a.confidence for query, a in zip(queries, artefact.answers(queries), strict=True)
    }
    sets = retrieved(artefact, dataset.items, queries)
    assert abs(np.mean([*sure.values()]) - f1(dataset, sets)) < 0.1
    order = sorted(sure, key=lambda id_: sure[id_])
    worse, better = (
        f1(dataset, {id_: sets[id_] for id_ in half}) for half in (order[:25], order[25:])
    )
    assert better > worse + 0.1
