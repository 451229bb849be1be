"""Weights and order: laws over random ownerships and on the sample shop, and what they
bring there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.keywords import self_keyword
from cogr.matching.mirror import Mirror
from cogr.records import Dataset, Query
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.keyword_selection import Ownership
from indexers.generators.statistical.keyword_weights import (
    DIGITS,
    LEAST,
    MOST,
    ScoredIndex,
    weights_in,
)


def is_weight(weight: float) -> bool:
    return LEAST <= weight <= MOST and float(f"{weight:.{DIGITS}g}") == weight


Order = tuple[Ownership, list[int], tuple[int, np.ndarray], np.ndarray, int]


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """Ownership, a query's keywords, its own text, p of all items, limit."""
    n_items, n_keywords = draw(st.integers(1, 12)), draw(st.integers(1, 10))
    pair = st.tuples(st.integers(0, n_items - 1), st.integers(0, n_keywords - 1))
    pairs = draw(st.lists(pair, max_size=50))
    ownership = Ownership([i for i, _ in pairs], [w for _, w in pairs], n_items, n_keywords)
    words = draw(st.lists(st.integers(0, n_keywords - 1), unique=True, max_size=6))
    own = draw(st.integers(-1, n_keywords - 1))
    found = ownership.owners(own) if own >= 0 else np.zeros(0, dtype=np.int64)
    # The own text of a training query hides the items that have it from the labels.
    found = found[: draw(st.integers(0, found.size))]
    p = draw(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=n_items, max_size=n_items))
    return ownership, words, (own, found), np.array(p), draw(st.integers(0, 5))


@settings(max_examples=100, deadline=None)
@given(orders())
def test_the_retrieved_set_does_not_change(world: Order) -> None:
    ownership, words, own, p, limit = world
    chosen = [word for word in words if word != own[0]]
    items = ownership.covered(chosen, own[1])
    given = [*([own[0]] if own[1].size else []), *chosen]
    scored = ScoredIndex(ownership, ownership, np.zeros(ownership.n_keywords, bool))
    ordering, weights = scored.order(items, p[items], given, own=own, limit=limit)
    assert (ownership.covered([*chosen, *ordering], own[1]) == items).all()
    assert len(ordering) <= limit
    assert len({*given, own[0], *ordering}) == len({*given, own[0]}) + len(ordering)
    assert all(map(is_weight, weights))
    assert len(weights) == (len(given) + len(ordering) if weights else 0)


def test_ordering_keywords_are_said_by_people_or_titles(
    dataset: Dataset, artefact: Artefact
) -> None:
    readable = replace(artefact, facts={**artefact.facts, "readability": 0.01})
    costs = readable.costs
    for query in dataset.queries["test"]:
        ((items, p),) = readable.probabilities([query])
        spelled = readable.spell(query, items, p)
        first = spelled.own + len(readable.selected(query, items, p).keywords)
        assert (costs[list(spelled.words[first:])] < 0.01).all()


def test_other_writers_keywords_get_weights_too(dataset: Dataset, artefact: Artefact) -> None:
    """A list in which the keyword of the relevant item comes with a common one."""
    items, item = dataset.items, dataset.items[0]
    titles, sets = [self_keyword(one.title) for one in items], map(artefact.item_keywords, items)
    mirror = Mirror.from_sets([one.id for one in items], [*sets], titles)
    good, *_ = artefact.item_keywords(item)
    common = max(mirror.words, key=mirror.df)
    weights = weights_in(mirror, [common, good, "nobody has this"], {item.id: 0.9})
    assert set(weights) == {common, good}
    assert weights[good] > weights[common]
    assert all(map(is_weight, weights.values()))
    assert weights_in(mirror, [good], {}) == {}
    assert weights_in(mirror, ["nobody has this"], {item.id: 1.0}) == {}
    queries = [*dataset.queries["test"][:5], Query("new", "zxqv unheard of")]
    lists = [words[:3] for words in artefact.query_keywords(queries)]
    weighed = artefact.weigh(queries, lists, mirror)
    assert any(weighed)
    for query, words, found in zip(queries, lists, weighed, strict=True):
        assert set(found) <= {self_keyword(query.text), *words}
