"""Metrics against their definitions, with ties, missing queries and empty sets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.errors import DataError
from cogr.metrics import (
    MEASURES,
    Figures,
    MeasurePlace,
    f1_of,
    full_set,
    measure,
    measures_of,
    ranked,
    sets_of,
    sweep_cutoff,
)
from cogr.records import Item
from tests.shops import training_shop

ITEMS = [f"i{number}" for number in range(12)]
QUERIES = [f"q{number}" for number in range(5)]
runs = st.dictionaries(st.sampled_from(QUERIES), st.lists(st.sampled_from(ITEMS), unique=True))
labels = st.dictionaries(
    st.sampled_from(QUERIES), st.frozensets(st.sampled_from(ITEMS)), min_size=1
)


def of(figures: Figures, query: str) -> dict[str, float]:
    at = figures.queries.index(query)
    return {name: float(values[at]) for name, values in figures.values.items()}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_f1_of_arrays_is_f1_of_each_and_0_for_two_empty_sets(extra: list[tuple[int, int]]) -> None:
    hits = np.arange(len(extra)) % 3
    retrieved, relevant = (hits + [pair[side] for pair in extra] for side in (0, 1))
    found = f1_of(hits, retrieved, relevant)
    each = zip(hits.tolist(), retrieved.tolist(), relevant.tolist(), strict=True)
    assert found.tolist() == [f1_of(*counts) for counts in each]
    assert f1_of(0, 0, 0) == 0
    assert f1_of(hits.astype(np.float32), retrieved.astype(np.float32), 1.0).dtype == np.float32


quarters = st.dictionaries(
    st.sampled_from(QUERIES),
    st.dictionaries(st.sampled_from(ITEMS), st.integers(-2, 12)),
    min_size=1,
)


@settings(max_examples=60, deadline=None)
@given(runs, quarters)
def test_figures_are_those_of_ir_measures(
    run: dict[str, list[str]], judged: dict[str, dict[str, int]]
) -> None:
    """Of fractional grades nDCG is that of their multiples."""
    import ir_measures
    from ir_measures import RR, SetF, SetP, SetR, nDCG

    relevant = {
        query: frozenset(id_ for id_, grade in grades.items() if grade > 4)
        for query, grades in judged.items()
    }
    binary = {query: dict.fromkeys(ids, 1) for query, ids in relevant.items() if ids}
    # pytrec_eval dies of grades below 0; for nDCG they are 0.
    graded = {
        query: {id_: max(0, grade) for id_, grade in grades.items()}
        for query, grades in judged.items()
        if grades
    }
    fractions = {
        query: {id_: grade / 4 for id_, grade in grades.items()} for query, grades in judged.items()
    }
    for k in (3, 10):
        scored = {
            query: {id_: float(-rank) for rank, id_ in enumerate(ids[:k])}
            for query, ids in run.items()
            if ids
        }
        names = {SetP: f"P@{k}", SetR: f"R@{k}", SetF: f"F1@{k}", RR @ k: f"MRR@{k}"}
        names[nDCG @ k] = f"nDCG@{k}"
        expected = {(query, name): 0.0 for query in judged for name in names.values()}
        for qrels, asked in ((binary, [*names][:4]), (graded, [nDCG @ k])):
            for row in ir_measures.iter_calc(asked, qrels, scored) if qrels and scored else ():
                expected[row.query_id, names[row.measure]] = row.value
        found = ranked(run, relevant, cutoffs=[k], grades=fractions)
        for (query, name), value in expected.items():
            assert of(found, query)[name] == pytest.approx(value), (query, name)


def test_weights_and_standard_errors() -> None:
    relevant = {"q1": {"a"}, "q2": {"a"}, "q3": {"a"}}
    retrieved = {"q1": {"a"}, "q2": {"a", "b"}}
    even = full_set(retrieved, relevant)
    assert even.standard_errors["p"] == pytest.approx(np.std([1, 0.5, 0], ddof=1) / math.sqrt(3))
    weighted = full_set(retrieved, relevant, {"q1": 2.0, "q2": 1.0, "q3": 1.0})
    assert weighted.means["p"] == pytest.approx((2 * 1 + 0.5) / 4)
    assert weighted.standard_errors["p"] > 0
    assert full_set(retrieved, {"q1": {"a"}}).standard_errors["p"] == 0.0
    lone = ({"q1": 1.0}, {"q1": -1.0, "q2": 1.0, "q3": 1.0}, dict.fromkeys(relevant, 0.0))
    # Each of the last is finite, their sum is not: means of them would be 0 or no number.
    for wrong in (*lone, dict.fromkeys(relevant, 1e308)):
        with pytest.raises(DataError, match="finite"):
            full_set(retrieved, relevant, wrong)
    with pytest.raises(DataError, match="queries"):
        full_set({}, {})


@given(runs.filter(lambda run: any(run.values())), labels)
def test_sweep_equals_trying_every_cutoff(
    run: dict[str, list[str]], relevant: dict[str, frozenset[str]]
) -> None:
    longest = max(len(run.get(query, ())) for query in relevant)
    shop = training_shop([], {query: (query, [*ids]) for query, ids in relevant.items()})
    asked = [replace(one, weight=1.0 + n) for n, one in enumerate(shop.queries["train"])]
    if not longest:
        with pytest.raises(DataError, match="ranking"):
            sweep_cutoff(run, shop, asked)
        return
    weights = {query.id: query.weight for query in asked}
    tried = [
        full_set(sets_of({query: ids[:k] for query, ids in run.items()}), relevant, weights)
        for k in range(1, longest + 1)
    ]
    k, f1 = sweep_cutoff(run, shop, asked)
    f1s = [figures.means["f1"] for figures in tried]
    assert [f1, f1s[k - 1]] == pytest.approx([max(f1s)] * 2)


def test_what_is_shown_is_measured() -> None:
    """A figure is declared once, for every place that shows or checks it."""
    shop = training_shop([Item("a", "x")], {"q": ("x", ["a"])})
    found = measure(shop, shop.queries["train"], {"q": ["a"]}).means
    places = {place: measures_of(place) for place in get_args(MeasurePlace)}
    assert {key for keys in places.values() for key in keys} == {*MEASURES}
    assert {*MEASURES} <= {*found}
    assert all(places.values())
