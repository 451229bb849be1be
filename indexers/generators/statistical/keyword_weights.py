"""Weights of keywords, and the order of the items within a retrieved set.

BM25 gives every rare keyword a high idf, good or not. A search can boost each keyword by a weight,
which multiplies its idf. Non-negative least squares fits the weights, so that the scores of the
retrieved items come near to the ranker's probabilities. Where the chosen keywords don't separate
the best items, keywords that retrieve nothing new are added. Neither changes the retrieved set or
its F1: `keyword_selection` decides which items a query retrieves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from cogr.matching.bm25 import DEFAULT, length_codes, mean_length, norm_table
from indexers.generators.statistical.keyword_selection import Floats64, Ints64, Ownership, slices

SCORE = 10.0
"""The target score of an item of probability 1; others in proportion."""

MIN_WEIGHT, MAX_WEIGHT, DIGITS = 0.001, 1000.0, 4
"""Bounds of a weight, and its significant digits. No weight is 0, so that the retrieved set stays.
"""

_PAGE = 10
"""Ordering keywords are taken from the keywords of this many best items."""

_SHARED = 3.0
"""Factor by which a keyword of two or more items is preferred to one of a single item, such as a
title: new items may have it too.
"""

ENOUGH = 0.003
"""No ordering keyword is added once this share of the target's squares or less is left."""

USEFUL = 0.03
"""An ordering keyword must explain this share of `ENOUGH`."""

RIDGE = 0.01
"""Ridge penalty towards equal weights, as a share of the columns' mean length. It decides between
keywords that the same retrieved items have.
"""

_ROWS = 1000
"""Most items that weights are fitted to: the most probable ones of larger sets."""


@dataclass
class ScoredIndex:
    """The items' keywords with the scores that BM25 gives them in a search of these items.

    Attributes:
        ownership: every item's keywords, its own text among them.
        usable: the keywords that a completion can write, with the same owners.
        unreadable: whether each keyword is unreadable (`ItemKeywords.costs`) and so may not order.
    """

    ownership: Ownership
    usable: Ownership
    unreadable: NDArray[np.bool_]

    @cached_property
    def _gains(self) -> Floats64:
        lengths = np.diff(self.ownership.item_starts)
        mean = mean_length(int(lengths.sum()), lengths.size)
        norms = norm_table(DEFAULT, mean)[length_codes(lengths)].astype(np.float64)
        return 1 - 1 / (1 + norms)

    @cached_property
    def _idf(self) -> Floats64:
        df = np.diff(self.ownership.keyword_starts)
        return np.log1p((self.ownership.n_items - df + 0.5) / (df + 0.5))

    def parts(self, items: Ints64, words: Ints64, owners: Sequence[Ints64]) -> Floats64:
        """Score of each item by each keyword at weight 1, (items, words).

        Args:
            items: ascending.
            owners: the owners of each; those beyond `items` are passed over.
        """
        parts = np.zeros((items.size, words.size))
        for column, (word, owning) in enumerate(zip(words, owners, strict=True)):
            here = np.isin(items, owning, assume_unique=True)
            parts[here, column] = self._idf[word] * self._gains[items[here]]
        return parts

    def order(
        self,
        items: Ints64,
        p: Floats64,
        words: Sequence[int],
        *,
        own: tuple[int, Ints64],
        limit: int,
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Weights for a query's keywords, and ordering keywords beside them.

        Args:
            items: the retrieved set, ascending.
            p: relevance of each of them.
            words: the query's keywords, with or without its own text.
            own: the query's own text as a keyword (-1: no item has it) and the items that it finds.
                It is never an ordering keyword.

        Returns:
            Ordering keywords, in the order of choice, whose owners are all in the set; and weights:
            of the query's keywords as they were given, then of the ordering keywords. There are
            none when p says nothing about the set, and every keyword weighs 1.
        """
        if not items.size or not words:
            return (), ()
        given = np.array(words, dtype=np.int64)
        owners = [own[1] if word == own[0] else self.ownership.owners(word) for word in words]
        best = np.argsort(-p, kind="stable")
        rows_at = np.sort(best[:_ROWS])
        target = SCORE * p[rows_at]
        parts = self.parts(items[rows_at], given, owners)
        if not target.sum() or not parts.sum():
            return (), ()
        candidates, columns = self._candidates(items, rows_at, best[:_PAGE], {*words, own[0]})
        chosen, weights = _pursuit(parts, columns, target, limit)
        return tuple(int(word) for word in candidates[chosen]), _rounded(weights)

    def _candidates(
        self, items: Ints64, rows: Ints64, best: Ints64, taken: set[int]
    ) -> tuple[Ints64, Floats64]:
        words = np.unique(np.concatenate([self.usable.keywords(item) for item in items[best]]))
        words = words[~np.isin(words, [*taken]) & ~self.unreadable[words]]
        starts = self.usable.keyword_starts
        words = words[starts[words + 1] - starts[words] <= items.size]
        sizes = starts[words + 1] - starts[words]
        owners = slices(self.usable.by_keyword, starts, words)
        at = np.minimum(np.searchsorted(items, owners), items.size - 1)
        column = np.repeat(np.arange(words.size), sizes)
        inside = np.bincount(column, items[at] == owners, minlength=words.size) == sizes
        of_row = np.full(items.size, -1)
        of_row[rows] = np.arange(rows.size)
        kept = inside[column] & (of_row[at] >= 0)
        by_word = np.zeros((rows.size, words.size))
        scores = self._idf[words[column]] * self._gains[owners]
        by_word[of_row[at[kept]], column[kept]] = scores[kept]
        return words[inside], by_word[:, inside]


def _pursuit(
    parts: Floats64, columns: Floats64, target: Floats64, limit: int
) -> tuple[list[int], Floats64]:
    # Orthogonal matching pursuit with non-negative weights.
    norms = np.maximum(np.sqrt((columns**2).sum(axis=0)), 1e-12)
    shared = np.where((columns > 0).sum(axis=0) > 1, _SHARED, 1.0)
    enough = ENOUGH * float(target @ target)
    chosen: list[int] = []
    used = parts
    weights = least_squares(used, target)
    while len(chosen) < min(limit, columns.shape[1]):
        left = target - used @ weights
        gains = columns.T @ left / norms
        gains[chosen] = 0
        best = int((gains * shared).argmax())
        if left @ left <= enough or max(gains[best], 0) ** 2 <= USEFUL * enough:
            break
        chosen.append(best)
        used = np.column_stack([parts, columns[:, chosen]])
        weights = least_squares(used, target)
    return chosen, weights


def least_squares(parts: Floats64, target: Floats64) -> Floats64:
    """Weights >= 0 of the columns whose weighted sum comes nearest to the target, (columns,).

    Ridge regression towards the single weight with which the columns have the target's sum.
    """
    level = target.sum() / max(float(parts.sum()), 1e-12)
    pull = RIDGE * np.sqrt((parts**2).sum() / parts.shape[1])
    rows = np.vstack([parts, pull * np.eye(parts.shape[1])])
    weights: Floats64 = nnls(rows, np.append(target, np.full(parts.shape[1], pull * level)))[0]
    return weights


def _rounded(weights: Floats64) -> tuple[float, ...]:
    return tuple(
        float(f"{weight:.{DIGITS}g}") for weight in np.clip(weights, MIN_WEIGHT, MAX_WEIGHT)
    )
