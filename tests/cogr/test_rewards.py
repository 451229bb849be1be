"""Rewards against brute force: a plain-Python restatement that rebuilds everything from sets of
strings.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.errors import DataError, SettingsError
from cogr.matching.mirror import Mirror
from cogr.records import Query
from cogr.rewards import World, item_reward, load_reward, query_reward, transposed_reward

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
    k_max: int
    uncounted: dict[str, set[str]] = field(default_factory=dict)

    def retrieved(self, keywords: set[str]) -> set[str]:
        return {
            item
            for item, words in self.items.items()
            if (words | {self.item_own[item]} - {""}) & keywords
        }

    def f1(self, found: set[str], wanted: set[str], mass: dict[str, float] | None = None) -> float:
        def weigh(ids: set[str]) -> float:
            return math.fsum(mass[id_] for id_ in ids) if mass is not None else len(ids)

        precision = weigh(found & wanted) / weigh(found) if weigh(found) else 0.0
        recall = weigh(found & wanted) / weigh(wanted) if weigh(wanted) else 0.0
        below = precision + recall
        return 2 * precision * recall / below if below else 0.0

    def query_reward(self, query: str, keywords: list[str]) -> float:
        if len(set(keywords)) > self.k_max:
            return 0.0
        found = self.retrieved(set(keywords) | {self.query_own[query]} - {""})
        return self.f1(found, self.relevant[query])

    def objective(self) -> float:
        return math.fsum(
            self.query_weights[query]
            * self.f1(
                self.retrieved(self.queries[query] | {self.query_own[query]} - {""}),
                self.relevant[query],
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
        found = {
            query
            for query in self.relevant
            if (self.queries[query] | {self.query_own[query]} - {""}) & words
        }
        wanted = {query for query, items in self.relevant.items() if item in items}
        return self.f1(found, wanted, self.query_weights)

    def world(self) -> World:
        sets = {**self.queries, **self.uncounted}
        return World.of(
            Mirror.from_sets([*self.items], [*self.items.values()], [*self.item_own.values()]),
            [
                Query(query, self.query_own[query], self.query_weights[query])
                for query in self.relevant
            ],
            self.relevant,
            query_mirror=Mirror.from_sets(
                [*sets], [*sets.values()], [self.query_own.get(query, "") for query in sets]
            ),
            k_max=self.k_max,
        )


@st.composite
def plain_worlds(draw: st.DrawFn) -> Plain:
    items = {f"i{number}": one for number, one in enumerate(draw(entities))}
    queries = {f"q{number}": one for number, one in enumerate(draw(entities))}
    return Plain(
        items={id_: set(words) for id_, (words, _) in items.items()},
        item_own={id_: own for id_, (_, own) in items.items()},
        queries={name: set(words) for name, (words, _) in queries.items()},
        query_own={name: own for name, (_, own) in queries.items()},
        relevant={name: draw(st.sets(st.sampled_from([*items]))) for name in queries},
        query_weights={name: draw(weights) for name in queries},
        k_max=draw(st.integers(1, 6)),
        uncounted={"other": set(draw(keyword_sets))},
    )


def close(found: float, expected: float, scale: float = 1.0) -> bool:
    return abs(found - expected) <= 1e-12 * max(1.0, scale)


@settings(max_examples=40, deadline=None)
@given(plain_worlds(), st.data())
def test_rewards_and_updates_equal_a_rebuild(plain: Plain, data: st.DataObject) -> None:
    world, scale = plain.world(), sum(plain.query_weights.values())
    for query in plain.relevant:
        keywords = data.draw(keyword_sets)
        assert close(query_reward(world, query, keywords), plain.query_reward(query, keywords))
    for _ in range(4):
        assert close(world.reference.objective, plain.objective(), scale)
        for item in plain.items:
            words = data.draw(keyword_sets)
            assert close(item_reward(world, item, words), plain.item_reward(item, words), scale)
            assert close(transposed_reward(world, item, words), plain.transposed(item, words))
        accepted = data.draw(st.sampled_from([*plain.items]))
        keywords = data.draw(keyword_sets.filter(lambda words: len({*words}) <= plain.k_max))
        world.reference.update(accepted, keywords)
        plain.items[accepted] = set(keywords)


def small_world(**how: object) -> World:
    """Three items, two queries that count and one that does not."""
    items = Mirror.from_sets(
        ["i1", "i2", "i3"], [["sofa"], ["couch"], ["lamp"]], ["red sofa", "", "lamp"]
    )
    queries = Mirror.from_sets(
        ["q1", "q2", "held out"], [["sofa", "couch"], ["lamp"], ["lamp"]], ["divan", "light", ""]
    )
    records = [Query("q1", "Divan!"), Query("q2", "light")]
    relevant = {"q1": {"i1", "i2"}, "q2": {"i1"}}
    return World.of(items, records, relevant, **{"query_mirror": queries, **how})  # type: ignore[arg-type]


def test_budget_counts_distinct_keywords() -> None:
    world = small_world(k_max=2)
    assert query_reward(world, "q1", ["sofa", "sofa", "couch"]) == 1.0
    assert query_reward(world, "q1", ["sofa", "couch", "lamp"]) == 0.0
    assert item_reward(world, "i1", ["sofa", "sofa", "x"]) == 0.0
    assert item_reward(world, "i1", ["sofa", "couch", "lamp"]) == -1.0
    assert transposed_reward(world, "i1", ["sofa", "couch", "light"]) == 0.0
    with pytest.raises(DataError, match="budget is 2"):
        world.reference.update("i1", ["a", "b", "c"])


def test_missing_things_raise() -> None:
    world = small_world()
    with pytest.raises(KeyError, match="held out"):
        query_reward(world, "held out", ["sofa"])
    for reward in (item_reward, transposed_reward):
        with pytest.raises(DataError, match="'nobody'"):
            reward(world, "nobody", ["sofa"])
        with pytest.raises(DataError, match="query mirror"):
            reward(small_world(query_mirror=None), "i1", ["sofa"])
    with pytest.raises(DataError, match="'q2'"):
        item_reward(small_world(query_mirror=Mirror.from_sets(["q1"], [[]])), "i1", [])
    with pytest.raises(DataError, match="'i9'"):
        World.of(world.items, [Query("q1", "x")], {"q1": {"i9"}})


def precision_reward(world: World, query_id: str, keywords: Sequence[str]) -> float:
    """A reward of one's own, for the test below."""
    found = world.items.retrieved([*keywords, world.own[query_id]])
    return found.intersection_cardinality(world.relevant[query_id]) / max(len(found), 1)


def test_load_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "my_rewards", sys.modules[__name__])
    assert load_reward("my_rewards:precision_reward")(small_world(), "q1", ["sofa", "lamp"]) == 0.5
    assert load_reward("cogr.rewards:query_reward") is query_reward
    bad = ("query_reward", "cogr.rewards", ":x", "no_such_module:x")
    for path in (*bad, "cogr.rewards:nothing", "cogr.rewards:__name__"):
        with pytest.raises(SettingsError, match=f"reward {path!r}"):
            load_reward(path)
