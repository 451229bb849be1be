"""Keyword selection: from a probability of relevance per item to a small set of keywords that
retrieves the right items.

Given p(item) and who owns which keyword, `select_keywords` looks for at most K keywords whose
owners, taken together, have the highest expected F1. With a ranker's p it turns a query's ranking
into keywords. With the true relevance as p it gives oracle ceilings and greedy targets for
supervised fine-tuning. Only numpy arrays come in and go out: this module knows neither texts nor
the ranker nor the mirror.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.metrics import f1_of

Ints64 = NDArray[np.int64]
Floats64 = NDArray[np.float64]

LAMBDA_GRID = (1.3, 1.15, 1.0, 0.85, 0.7, 0.55, 0.4)
"""Prices per retrieved item that `select_keywords` tries, as shares of the upper bound that
`exact_cut` gives.
"""


class Ownership:
    """Which items own which keywords: an immutable bipartite graph, stored by keyword and by item
    (CSR both ways).

    Args:
        items: item of each pair, 0 to `n_items` - 1.
        keywords: keyword of each pair, 0 to `n_keywords` - 1. Repeated pairs count once.
        n_items: size of the item universe.
        n_keywords: size of the vocabulary.

    Attributes:
        by_keyword: items of all keywords, those of keyword w at `keyword_starts[w]:keyword_starts[w
            + 1]`, ascending.
        by_item: keywords of all items, laid out likewise by `item_starts`.
    """

    def __init__(self, items: Any, keywords: Any, n_items: int, n_keywords: int) -> None:
        item_ids = np.asarray(items, dtype=np.int64)
        keyword_ids = np.asarray(keywords, dtype=np.int64)
        pairs = keyword_ids * max(n_items, 1) + item_ids
        pairs.sort()
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        # int32, and sorted one after the other, to save memory: a million items have 16 million
        # pairs.
        by_keyword: NDArray[Any] = (pairs // max(n_items, 1)).astype(np.int32)
        self.keyword_starts = _starts(by_keyword, n_keywords)
        self.by_keyword: NDArray[Any] = (pairs % max(n_items, 1)).astype(np.int32)
        del pairs
        self.item_starts = _starts(self.by_keyword, n_items)
        self.by_item: NDArray[Any] = by_keyword[np.argsort(self.by_keyword, kind="stable")]

    @property
    def n_items(self) -> int:
        return self.item_starts.size - 1

    @property
    def n_keywords(self) -> int:
        return self.keyword_starts.size - 1

    def owners(self, keyword: int) -> Ints64:
        """Items that own the keyword, ascending."""
        return self.by_keyword[self.keyword_starts[keyword] : self.keyword_starts[keyword + 1]]

    def keywords(self, item: int) -> Ints64:
        """Keywords that the item owns, ascending."""
        return self.by_item[self.item_starts[item] : self.item_starts[item + 1]]

    def covered(self, keywords: Iterable[int], forced: Iterable[int] = ()) -> Ints64:
        """Items that own any of the keywords, and the forced ones: the retrieved set, ascending."""
        parts = [
            np.asarray(list(forced), dtype=np.int64),
            *(self.owners(keyword) for keyword in keywords),
        ]
        return np.unique(np.concatenate(parts))


def _starts(ids: Ints64, size: int) -> Ints64:
    starts = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(np.bincount(ids, minlength=size), out=starts[1:])
    return starts


@dataclass(frozen=True, slots=True)
class Selection:
    """What `select_keywords` found.

    Attributes:
        keywords: chosen keywords, in the order of choice, at most `limit`.
        value: expected F1 (`f1_of`) of the retrieved set: owners of the keywords, and the forced
            items.
        cost: summed cost of the keywords, in the unit of `value`.
    """

    keywords: tuple[int, ...]
    value: float
    cost: float = 0.0

    @property
    def net(self) -> float:
        """What is maximised: the value less the costs."""
        return self.value - self.cost


def exact_cut(p: Any, expected: float) -> tuple[Ints64, float]:
    """The ranking's own best prefix: the retrieved set of highest expected F1 when any set may be
    retrieved.

    k* = argmax_k 2 sum_{j<=k} p_(j) / (k + E), p sorted descending (ties: lower item first). No
    keyword set can have a higher value, so this is the upper bound of `select_keywords` without
    forced items.

    Args:
        p: relevance per item, shape (n,), not negative.
        expected: E, the expected number of relevant items.

    Returns:
        The items of the prefix, best first, and its value.
    """
    p = np.asarray(p, dtype=np.float64)
    # Of perhaps a million items few have p above 0.
    positive = np.flatnonzero(p > 0)
    if not positive.size:
        return positive, 0.0
    order = positive[np.argsort(-p[positive], kind="stable")]
    values = f1_of(np.cumsum(p[order]), np.arange(1, order.size + 1), expected)
    best = int(values.argmax())
    return order[: best + 1], float(values[best])


def cut_f1(p: Any, relevant: Any, all_relevant: int, multiplier: float) -> float:
    """F1 of the exact cut.

    Args:
        p: of candidates, (n,).
        relevant: 0/1, (n,).
        all_relevant: relevant items, candidates or not.
        multiplier: the expected number of relevant items is this times the sum of p.
    """
    cut, _ = exact_cut(p, multiplier * float(p.sum()))
    return f1_of(float(relevant[cut].sum()), cut.size, all_relevant)


def select_keywords(
    p: Any,
    ownership: Ownership,
    *,
    limit: int = 30,
    expected_relevant: float | None = None,
    forced: Iterable[int] = (),
    banned: Iterable[int] = (),
    costs: Any = None,
) -> Selection:
    """At most `limit` keywords whose owners have a high expected F1.

    Maximising the ratio 2 tp / (ret + E) is the same as finding the lambda at which max 2 tp -
    lambda (ret + E) = 0 (Dinkelbach 1967). For a fixed lambda an item is worth 2 p_i - lambda once,
    however many keywords cover it, which a greedy choice maximises well; keywords that later ones
    made useless are removed; the best over `LAMBDA_GRID` wins. A keyword with a cost is taken
    where it raises the expected F1 by more than that.

    Args:
        p: relevance per item, shape (n,), not negative: probabilities, or the true relevance for an
            oracle.
        ownership: who owns which keyword, over the same n items.
        limit: the budget K.
        expected_relevant: E, the expected number of relevant items; the sum of p by default.
        forced: items that are retrieved whatever is chosen (matched by the query's own text).
        banned: keywords that may not be chosen.
        costs: expected F1 that each keyword must bring, shape (keywords,), not negative; none by
            default.

    Returns:
        Never more than `limit` keywords, and never a value below that of choosing none.
    """
    p = np.asarray(p, dtype=np.float64)
    expected = float(p.sum()) if expected_relevant is None else expected_relevant
    forced_items = np.unique(np.asarray(list(forced), dtype=np.int64))
    hits = float(p[forced_items].sum())
    best = Selection((), f1_of(hits, forced_items.size, expected))
    cut, bound = exact_cut(p, expected)
    if limit < 1 or bound <= 0:
        return best
    lowest = LAMBDA_GRID[-1] * bound
    likely = np.flatnonzero(p > lowest / 2)
    part = _Subgraph(p, likely, ownership, forced_items, banned, costs)
    size = cut.size + expected
    for share in LAMBDA_GRID:
        selection = part.pruned(part.greedy(share * bound, limit, size), expected)
        best = max(best, selection, key=lambda one: one.net)
    if best.value >= lowest:
        return best
    # The keywords reach less than the lowest lambda of the grid: go on from a lower one, which
    # every improvement raises.
    likely = np.flatnonzero(p > best.value / 2)
    part = _Subgraph(p, likely, ownership, forced_items, banned, costs)
    while (selection := part.pruned(part.greedy(best.value, limit, size), expected)).net > best.net:
        best = selection
    return best


class _Subgraph:
    """The part of the graph that one call can use, with ids of its own. Its arrays have some
    thousand entries, however large the item universe is.

    A keyword that no `likely` item owns is worth nothing at any lambda of the grid, and is left
    out.
    """

    def __init__(
        self,
        p: Floats64,
        likely: Ints64,
        ownership: Ownership,
        forced: Ints64,
        banned: Iterable[int],
        costs: Any,
    ) -> None:
        usable = np.zeros(ownership.n_keywords, dtype=bool)
        usable[slices(ownership.by_item, ownership.item_starts, likely)] = True
        usable[np.asarray(list(banned), dtype=np.int64)] = False
        self.keywords = np.flatnonzero(usable)
        self.costs = (
            np.zeros(self.keywords.size) if costs is None else np.asarray(costs)[self.keywords]
        )
        starts = ownership.keyword_starts
        sizes = starts[self.keywords + 1] - starts[self.keywords]
        owners = slices(ownership.by_keyword, ownership.keyword_starts, self.keywords)
        present = np.zeros(p.size, dtype=bool)
        present[owners] = True
        items = np.flatnonzero(present)
        local = np.empty(p.size, dtype=np.int64)
        local[items] = np.arange(items.size)
        self.p = p[items]
        self.pair_keyword = np.repeat(np.arange(self.keywords.size), sizes)
        self.owned = Ownership(local[owners], self.pair_keyword, items.size, self.keywords.size)
        self.free = np.ones(items.size, dtype=bool)
        self.free[local[forced[present[forced]]]] = False
        self.base_retrieved, self.base_hits = forced.size, float(p[forced].sum())

    def greedy(self, price: float, limit: int, size: float) -> list[int]:
        """Keywords by largest gain (the sum of 2 p_i - price over items not yet covered), while a
        gain is above 0.

        The gain is expected F1 times ret + E. `size` stands for that sum, which is not known before
        the end, and turns costs into the gain's unit.
        """
        worth = 2.0 * self.p - price
        free = self.free.copy()
        gain = -self.costs * size
        gain += np.bincount(
            self.pair_keyword, (worth * free)[self.owned.by_keyword], minlength=self.keywords.size
        )
        chosen: list[int] = []
        while gain.size and len(chosen) < limit:
            keyword = int(gain.argmax())
            if gain[keyword] <= 1e-12:
                break
            chosen.append(keyword)
            owners = self.owned.owners(keyword)
            new = owners[free[owners]]
            free[new] = False
            sizes = np.diff(self.owned.item_starts)[new]
            touched = slices(self.owned.by_item, self.owned.item_starts, new)
            gain -= np.bincount(touched, np.repeat(worth[new], sizes), minlength=gain.size)
            gain[keyword] = -np.inf
        return chosen

    def pruned(self, chosen: list[int], expected: float) -> Selection:
        """Drop, last chosen first, every keyword whose removal lowers the value by no more than it
        costs.
        """
        times = np.zeros(self.p.size, dtype=np.int64)
        for keyword in chosen:
            times[self.owned.owners(keyword)] += 1
        covered = self.free & (times > 0)
        hits = self.base_hits + float(self.p[covered].sum())
        retrieved = self.base_retrieved + int(covered.sum())
        kept = list(chosen)
        for keyword in reversed(chosen):
            owners = self.owned.owners(keyword)
            lost = owners[(times[owners] == 1) & self.free[owners]]
            fewer_hits, fewer = hits - float(self.p[lost].sum()), retrieved - lost.size
            loss = f1_of(hits, retrieved, expected) - f1_of(fewer_hits, fewer, expected)
            if loss <= self.costs[keyword]:
                hits, retrieved = fewer_hits, fewer
                times[owners] -= 1
                kept.remove(keyword)
        value = f1_of(hits, retrieved, expected)
        words = tuple(int(self.keywords[keyword]) for keyword in kept)
        return Selection(words, value, float(self.costs[kept].sum()))


def slices(values: Ints64, starts: Ints64, rows: Ints64) -> Ints64:
    """The concatenated CSR rows `values[starts[r]:starts[r + 1]]` for r in rows."""
    first = starts[rows]
    sizes = starts[rows + 1] - first
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if ends.size else 0
    places: Ints64 = np.arange(total) + np.repeat(first - ends + sizes, sizes)
    return values[places]
