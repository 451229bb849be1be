"""Rewards against brute force: a plain-Python restatement that rebuilds everything from sets of strings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.errors import DataError, SettingsError
from cogr.mirror import Mirror
from cogr.records import Query
from cogr.rewards import (
    World,
    f_measure,
    item_reward,
    load_reward,
    query_reward,
    transposed_reward,
)

WORDS = [f"w{number}" for number in range(8)]
keyword_sets = st.lists(st.sampled_from(WORDS), max_size=7)
own_texts = st.sampled_from(["", "t1", "t2", *WORDS[:3]])
entities = st.lists(st.tuples(keyword_sets, own_texts), min_size=1, max_size=7)
weights = st.sampled_from([0.0, 0.5, 1.0, 3.25, 1000.0])


@dataclass
class Plain:
    """A world of Python sets, and every reward by rebuilding it."""

    items: dict[str, set[str]]
    item_own: dict[str, str]
    queries: dict[str, set[str]]
    query_own: dict[str, str]
    relevant: dict[str, set[str]]
    query_weights: dict[str, float]
    item_weights: dict[str, float] | None
    k_max: int
    beta: float
    uncounted: dict[str, set[str]] = field(default_factory=dict)

    def retrieved(self, keywords: set[str]) -> set[str]:
        return {item for item, words in self.items.items() if (words | {self.item_own[item]} - {""}) & keywords}

    def f(self, found: set[str], wanted: set[str], mass: dict[str, float] | None) -> float:
        def weigh(ids: set[str]) -> float:
            return math.fsum(mass[id_] for id_ in ids) if mass is not None else len(ids)

        precision = weigh(found & wanted) / weigh(found) if weigh(found) else 0.0
        recall = weigh(found & wanted) / weigh(wanted) if weigh(wanted) else 0.0
        below = self.beta**2 * precision + recall
        return (1 + self.beta**2) * precision * recall / below if below else 0.0

    def query_reward(self, query: str, keywords: list[str]) -> float:
        if len(set(keywords)) > self.k_max:
            return 0.0
        found = self.retrieved(set(keywords) | {self.query_own[query]} - {""})
        return self.f(found, self.relevant[query], self.item_weights)

    def objective(self) -> float:
        return math.fsum(
            self.query_weights[query]
            * self.f(
                self.retrieved(self.queries[query] | {self.query_own[query]} - {""}),
                self.relevant[query],
                self.item_weights,
            )
            for query in self.relevant
        )

    def item_reward(self, item: str, keywords: list[str]) -> float:
        if len(set(keywords)) > self.k_max:
            return -1.0
        before = self.objective()
        kept, self.items[item] = self.items[item], set(keywords)
        after = self.objective()
        self.items[item] = kept
        return after - before

    def transposed(self, item: str, keywords: list[str]) -> float:
        if len(set(keywords)) > self.k_max:
            return 0.0
        words = set(keywords) | {self.item_own[item]} - {""}
        found = {query for query in self.relevant if (self.queries[query] | {self.query_own[query]} - {""}) & words}
        wanted = {query for query, items in self.relevant.items() if item in items}
        return self.f(found, wanted, self.query_weights)

    def world(self) -> World:
        sets = {**self.queries, **self.uncounted}
        return World.of(
            Mirror.from_sets([*self.items], [*self.items.values()], [*self.item_own.values()]),
            [Query(query, self.query_own[query], self.query_weights[query]) for query in self.relevant],
            self.relevant,
            query_mirror=Mirror.from_sets([*sets], [*sets.values()], [self.query_own.get(query, "") for query in sets]),
            k_max=self.k_max,
            beta=self.beta,
            item_weights=self.item_weights,
        )


@st.composite
def plain_worlds(draw: st.DrawFn) -> Plain:
    items = draw(entities)
    queries = draw(entities)
    ids = [f"i{number}" for number in range(len(items))]
    names = [f"q{number}" for number in range(len(queries))]
    return Plain(
        items={id_: set(words) for id_, (words, _) in zip(ids, items, strict=True)},
        item_own={id_: own for id_, (_, own) in zip(ids, items, strict=True)},
        queries={name: set(words) for name, (words, _) in zip(names, queries, strict=True)},
        query_own={name: own for name, (_, own) in zip(names, queries, strict=True)},
        relevant={name: draw(st.sets(st.sampled_from(ids))) for name in names},
        query_weights={name: draw(weights) for name in names},
        item_weights=draw(st.none() | st.fixed_dictionaries(dict.fromkeys(ids, weights))),
        k_max=draw(st.integers(1, 6)),
        beta=draw(st.sampled_from([0.5, 1.0, 2.0])),
        uncounted={"other": set(draw(keyword_sets))},
    )


def close(found: float, expected: float, scale: float = 1.0) -> bool:
    return abs(found - expected) <= 1e-12 * max(1.0, scale)


@settings(max_examples=200, deadline=None)
@given(plain_worlds(), st.data())
def test_rewards_equal_a_rebuild(plain: Plain, data: st.DataObject) -> None:
    world = plain.world()
    scale = sum(plain.query_weights.values())
    assert close(world.reference.objective, plain.objective(), scale)
    for query in plain.relevant:
        keywords = data.draw(keyword_sets)
        assert close(query_reward(world, query, keywords), plain.query_reward(query, keywords))
    for item in plain.items:
        keywords = data.draw(keyword_sets)
        assert close(item_reward(world, item, keywords), plain.item_reward(item, keywords), scale)
        assert close(transposed_reward(world, item, keywords), plain.transposed(item, keywords))


@settings(max_examples=60, deadline=None)
@given(plain_worlds(), st.data())
def test_updates_equal_a_rebuild(plain: Plain, data: st.DataObject) -> None:
    world = plain.world()
    scale = sum(plain.query_weights.values())
    for _ in range(4):
        accepted = data.draw(st.sampled_from([*plain.items]))
        keywords = data.draw(keyword_sets.filter(lambda words: len(set(words)) <= plain.k_max))
        gain = item_reward(world, accepted, keywords)
        before = world.reference.objective
        world.reference.update(accepted, keywords)
        plain.items[accepted] = set(keywords)
        assert close(world.reference.objective, before + gain, scale)
        assert close(world.reference.objective, plain.objective(), scale)
        for item in plain.items:
            candidate = data.draw(keyword_sets)
            assert close(item_reward(world, item, candidate), plain.item_reward(item, candidate), scale)
