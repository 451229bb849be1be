"""Rewards: functions (world, entity id, keywords) -> float, computed on mirrors.

| function            | formula                              | in the paper              |
|---------------------|--------------------------------------|---------------------------|
| `query_reward`      | F1(I_ret(q), rel(q))                 | eq. 2                     |
| `item_reward`       | sum over q of F1_cand(q) - F1_ref(q) | eq. 3, by its appendix    |
| `transposed_reward` | F1(Q_ret(i), rel(i))                 | ablation, "Transposed F1" |

"Its appendix" is "Efficient Implementation of Item-Side Reward". A missing id, mirror or weight
raises an error; it never becomes a number. `trainers` samples keyword sets and learns from their
rewards.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import cast

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from cogr.errors import DataError, SettingsError
from cogr.keywords import over_budget, self_keyword
from cogr.matching.mirror import Mirror
from cogr.matching.postings import to_array
from cogr.metrics import f1_of
from cogr.records import Query


@dataclass(frozen=True)
class World:
    """The data that rewards are computed against. Make one with `World.of`.

    Attributes:
        relevant: query id -> dense ids of its relevant items. Its keys are the queries whose F
            counts: the training queries.
        own: query id -> the query's own text as a keyword.
        queries: the frozen query mirror; item rewards need it. It may have further queries.
    """

    items: Mirror
    relevant: Mapping[str, BitMap]
    own: Mapping[str, str]
    queries: Mirror | None
    k_max: int
    query_weights: Mapping[str, float]

    @classmethod
    def of(
        cls,
        items: Mirror,
        queries: Sequence[Query],
        relevant: Mapping[str, Collection[str]],
        *,
        query_mirror: Mirror | None = None,
        k_max: int = 30,
    ) -> World:
        """A world of a data set's records.

        Args:
            relevant: query id -> ids of its relevant items; a query that is not in it has none.

        Raises DataError for an id that a mirror lacks.
        """
        return cls(
            items=items,
            relevant={
                query.id: BitMap(map(items.dense, relevant.get(query.id, ()))) for query in queries
            },
            own={query.id: self_keyword(query.text) for query in queries},
            queries=query_mirror,
            k_max=k_max,
            query_weights={query.id: query.weight for query in queries},
        )

    @cached_property
    def reference(self) -> Reference:
        """The cached counts that item rewards need; computed at first use."""
        return Reference(self)


Reward = Callable[[World, str, Sequence[str]], float]
"""(world, entity id, normalised keywords without the own text) -> reward.

The signature of a reward; your own needs the same.
"""


def query_reward(world: World, query_id: str, keywords: Sequence[str]) -> float:
    """F1 of the full retrieved set of S_q ∪ {q}; 0 above the budget (paper, eq. 2).

    Raises KeyError for a query that does not count.
    """
    relevant = world.relevant[query_id]
    if over_budget(keywords, world.k_max):
        return 0.0
    retrieved = world.items.retrieved((*keywords, world.own[query_id]))
    return f1_of(retrieved.intersection_cardinality(relevant), len(retrieved), len(relevant))


def item_reward(world: World, item_id: str, keywords: Sequence[str]) -> float:
    """Change of the weighted sum of F1 over all queries when this item alone gets `keywords`; -1
    above the budget (paper, eq. 3). Raises DataError for an unknown item or without a query mirror.
    """
    item = world.reference.item(item_id)
    if over_budget(keywords, world.k_max):
        return -1.0
    return world.reference.marginal(item, keywords)


def transposed_reward(world: World, item_id: str, keywords: Sequence[str]) -> float:
    """F of the queries that S_i ∪ {i} retrieves; 0 above the budget (paper, "Transposed F1" of the
    ablation on training design).

    The item is taken as a query, and the queries that it is relevant to as its relevant set. Sums
    of query weights replace counts. Raises as `item_reward`.
    """
    reference = world.reference
    item = reference.item(item_id)
    if over_budget(keywords, world.k_max):
        return 0.0
    retrieved = reference.queries_of(item, keywords) & reference.members
    hits, size, wanted = (
        float(reference.weights[to_array(queries)].sum())
        for queries in (retrieved & item.relevant, retrieved, item.relevant)
    )
    return f1_of(hits, size, wanted)


@dataclass(slots=True)
class ItemState:
    """One item in the reference index.

    Attributes:
        dense: its dense id in the item mirror.
        own: its own text as a keyword; "" for none.
        relevant: the queries that it is relevant to, by dense id of the query mirror.
        queries: Q_ref, the queries that retrieve it, likewise.
    """

    dense: int
    own: str
    relevant: BitMap
    queries: BitMap


class Reference:
    """The retrieval state under the reference item index (paper, appendix "Efficient Implementation
    of Item-Side Reward"). With it an item's reward takes one lookup and a few F.

    For each query, by dense id of the query mirror: n_tp, n_ret, n_rel, F1 and its weight.
    n_rel is infinite where no item is relevant, and for a query that does not count, so that
    its F is always 0. For each item, at first use: Q_ref.

    Attributes:
        members: dense ids of the queries that count.

    Raises:
        DataError: the world has no query mirror, or one that lacks a query.
    """

    def __init__(self, world: World) -> None:
        if world.queries is None:
            raise DataError(
                "Item rewards need a query mirror, but this world has none; give it the frozen "
                "query snapshot's."
            )
        self._world = world
        self._queries = world.queries
        # array instead of numpy: reading one number costs a fifth, and numpy can use the same
        # memory.
        self._tp, self._ret, self._f, self._weight = (
            array("d", bytes(8 * len(world.queries))) for _ in range(4)
        )
        self._rel = array("d", [math.inf]) * len(world.queries)
        self.members = BitMap()
        self._relevant: dict[int, BitMap] = {}
        self._items: dict[str, ItemState] = {}
        for query_id, relevant in world.relevant.items():
            self._count(query_id, relevant)

    def _count(self, query_id: str, relevant: BitMap) -> None:
        world, query = self._world, self._queries.dense(query_id)
        self.members.add(query)
        for item in relevant:
            self._relevant.setdefault(item, BitMap()).add(query)
        retrieved = world.items.retrieved(self._queries.keywords_of(query))
        self._weight[query] = world.query_weights[query_id]
        self._tp[query] = retrieved.intersection_cardinality(relevant)
        self._ret[query] = len(retrieved)
        self._rel[query] = len(relevant) or math.inf
        self._f[query] = self._f_of(query)

    def _f_of(self, query: int) -> float:
        return 2.0 * self._tp[query] / (self._ret[query] + self._rel[query])

    @property
    def objective(self) -> float:
        """The weighted sum of F over all queries: R_old of eq. 3."""
        return float(np.dot(self._weight, self._f))

    def item(self, item_id: str) -> ItemState:
        """The state of one item. Raises DataError for an id that the item mirror does not hold."""
        state = self._items.get(item_id)
        if state is None:
            items = self._world.items
            dense = items.dense(item_id)
            state = self._items[item_id] = ItemState(
                dense=dense,
                own=items.own_keyword(dense),
                relevant=self._relevant.get(dense, BitMap()),
                queries=self._queries.retrieved(items.keywords_of(dense)),
            )
        return state

    def queries_of(self, item: ItemState, keywords: Sequence[str]) -> BitMap:
        """Q_cand: queries of the mirror that would retrieve the item if it had `keywords`."""
        return self._queries.retrieved((*keywords, item.own))

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weight of each query by dense id of the query mirror, (queries,)."""
        return np.frombuffer(self._weight)

    def marginal(self, item: ItemState, keywords: Sequence[str]) -> float:
        """Sum of F_cand - F_ref over Q_cand △ Q_ref, without a budget."""
        candidate = self.queries_of(item, keywords)
        joined, left = candidate - item.queries, item.queries - candidate
        return self._change(joined, item, 1.0) + self._change(left, item, -1.0)

    def _change(self, queries: BitMap, item: ItemState, one: float) -> float:
        tp, ret, rel, f, weight = self._tp, self._ret, self._rel, self._f, self._weight
        relevant, total = item.relevant, 0.0
        for query in queries:
            hits = tp[query] + one if query in relevant else tp[query]
            new = 2.0 * hits / (ret[query] + one + rel[query]) if hits else 0.0
            total += weight[query] * (new - f[query])
        return total

    def update(self, item_id: str, keywords: Sequence[str]) -> None:
        """Make `keywords` the item's reference set, as when a sampled set is accepted. Raises
        DataError for an unknown item, or a set over the budget.
        """
        if over_budget(keywords, self._world.k_max):
            raise DataError(
                f"Item {item_id!r} can't take {len(set(keywords))} keywords; the budget is "
                f"{self._world.k_max}."
            )
        item = self.item(item_id)
        candidate = self.queries_of(item, keywords)
        self._move(candidate - item.queries, item, 1.0)
        self._move(item.queries - candidate, item, -1.0)
        item.queries = candidate

    def _move(self, queries: BitMap, item: ItemState, one: float) -> None:
        for query in queries:
            self._tp[query] += one if query in item.relevant else 0.0
            self._ret[query] += one
            self._f[query] = self._f_of(query)


def load_reward(path: str) -> Reward:
    """A reward by its import path "module:function", as settings name it. Raises SettingsError."""
    try:
        reward = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"The reward {path!r} can't be imported ({error}); write it as module:function, of a "
            "module that is installed."
        ) from error
    if not callable(reward):
        raise SettingsError(
            f"The reward {path!r} is not a function; name one that takes (world, id, keywords)."
        )
    return cast(Reward, reward)
