"""Keyword selection: laws over random worlds, and quality against exhaustive search on
small ones.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cogr.metrics import f1_of
from indexers.generators.statistical.keyword_selection import (
    Ownership,
    Selection,
    exact_cut,
    select_keywords,
)

World = tuple[np.ndarray, Ownership, int, float, list[int]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """p, ownership, budget, expected relevant items, forced items."""
    n_items, n_keywords = draw(st.integers(1, 12)), draw(st.integers(0, 8))
    p = draw(
        st.lists(
            st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0]),
            min_size=n_items,
            max_size=n_items,
        )
    )
    pair = st.tuples(st.integers(0, n_items - 1), st.integers(0, max(n_keywords - 1, 0)))
    pairs = draw(st.lists(pair, max_size=40)) if n_keywords else []
    ownership = Ownership([i for i, _ in pairs], [w for _, w in pairs], n_items, n_keywords)
    forced = draw(st.lists(st.integers(0, n_items - 1), max_size=3))
    return (
        np.array(p),
        ownership,
        draw(st.integers(0, 4)),
        sum(p) * draw(st.sampled_from([1.0, 1.25, 1.5])),
        forced,
    )


def best_by_search(world: World) -> float:
    """The highest value of any keyword set within the budget."""
    p, ownership, limit, expected, forced = world
    sizes = range(min(limit, ownership.n_keywords) + 1)
    return max(
        value_of(p, ownership, chosen, forced, expected)
        for size in sizes
        for chosen in combinations(range(ownership.n_keywords), size)
    )


def value_of(
    p: np.ndarray, ownership: Ownership, chosen: tuple[int, ...], forced: list[int], expected: float
) -> float:
    covered = {*forced, *(int(i) for keyword in chosen for i in ownership.owners(keyword))}
    return f1_of(sum(p[i] for i in covered), len(covered), expected)


def run(world: World) -> Selection:
    p, ownership, limit, expected, forced = world
    return select_keywords(p, ownership, limit=limit, expected_relevant=expected, forced=forced)


@given(worlds())
def test_the_budget_holds_and_the_value_is_what_it_says(world: World) -> None:
    p, ownership, limit, expected, forced = world
    found = run(world)
    assert len(found.keywords) == len(set(found.keywords)) <= limit
    assert found.value == pytest.approx(value_of(p, ownership, found.keywords, forced, expected))
    assert found.value >= value_of(p, ownership, (), forced, expected) - 1e-9
    assert found.value <= best_by_search(world) + 1e-9


@given(worlds())
def test_the_exact_cut_is_the_best_prefix_and_bounds_every_keyword_set(world: World) -> None:
    p, ownership, limit, expected, _ = world
    cut, bound = exact_cut(p, expected)
    assert bound == pytest.approx(f1_of(p[cut].sum(), cut.size, expected))
    ranked = sorted(p, reverse=True)
    prefixes = [f1_of(sum(ranked[:k]), k, expected) for k in range(len(p) + 1)]
    assert bound == pytest.approx(max(prefixes))
    banned = range(0, ownership.n_keywords, 2)
    found = select_keywords(p, ownership, limit=limit, expected_relevant=expected, banned=banned)
    assert found.value <= bound + 1e-9
    assert not set(found.keywords) & set(banned)


@given(worlds(), st.floats(0, 0.2))
def test_every_keyword_with_a_cost_brings_as_much(world: World, price: float) -> None:
    """Without any chosen keyword the value falls by more than it costs, and what is maximised is
    never below that of no keywords.
    """
    p, ownership, limit, expected, forced = world
    costs = price * (np.arange(ownership.n_keywords) % 2)
    found = select_keywords(
        p, ownership, limit=limit, expected_relevant=expected, forced=forced, costs=costs
    )
    assert found.cost == pytest.approx(sum(costs[keyword] for keyword in found.keywords))
    assert found.net >= value_of(p, ownership, (), forced, expected) - 1e-9
    for keyword in found.keywords:
        others = tuple(other for other in found.keywords if other != keyword)
        without = value_of(p, ownership, others, forced, expected)
        assert found.value - without >= costs[keyword] - 1e-9


def test_quality_against_exhaustive_search() -> None:
    """300 worlds of up to 13 items, 10 keywords and a budget of 4: the optimum in 98 of 100, 0.999
    of it in the mean.
    """
    rng = np.random.default_rng(0)
    ratios = []
    for number in range(300):
        n_items, n_keywords = int(rng.integers(4, 14)), int(rng.integers(3, 11))
        items, keywords = np.nonzero(rng.random((n_items, n_keywords)) < rng.uniform(0.1, 0.4))
        p = rng.beta(0.4, 1, n_items) if number % 2 else (rng.random(n_items) < 0.3).astype(float)
        forced = (
            [int(i) for i in np.flatnonzero(rng.random(n_items) < 0.1)] if number % 3 == 0 else []
        )
        expected = float(p.sum()) * float(rng.choice([1, 1.25, 1.5]))
        world = (
            p,
            Ownership(items, keywords, n_items, n_keywords),
            int(rng.integers(1, 5)),
            expected,
            forced,
        )
        if (best := best_by_search(world)) > 0:
            ratios.append(run(world).value / best)
    assert np.mean(ratios) > 0.998
    assert np.mean(np.array(ratios) > 1 - 1e-9) > 0.98
    assert min(ratios) > 0.8
