"""Scores and order of a retrieved set, equal to the server's bit for bit. The formulas are in
`cogr.matching.bm25`.

`Scorer.scores` scores everything; `Scorer.best` finds the top k without it and gives the same bits
(a test holds them together).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from cogr.matching import bm25 as formulas
from cogr.matching.bm25 import BM25
from cogr.matching.postings import Postings, to_array, to_bitmap

# An entity whose sum is lower than the k-th best by more than a float32's last bit can't even tie
# after the cast.
_SAFELY_BELOW = 1 - 2.0**-21


@dataclass(frozen=True)
class _Plan:
    # Keywords by their highest score, descending; parts are always summed in this order.
    terms: list[int]
    tables: NDArray[np.float64]  # (terms, 256): part of a score, by length code
    most: NDArray[np.float64]  # (terms + 1,): highest sum of the parts from this keyword on
    postings: NDArray[np.int64]  # (terms + 1,): number of postings from this keyword on


class Scorer:
    """BM25 over the postings of one index."""

    def __init__(self, postings: Postings, bm25: BM25) -> None:
        self._postings = postings
        self._bm25 = bm25
        counts = np.bincount(postings.length_codes, minlength=256)
        self.entities = int(counts[1:].sum())
        """N: entities with at least one keyword."""
        self._codes = np.flatnonzero(counts)
        avgdl = formulas.mean_length(len(postings.entities), self.entities)
        self._norms = (
            formulas.norm_table(bm25, avgdl) if self.entities else np.zeros(256, np.float32)
        )
        self._scratch = threading.local()

    def parts(self, boosts: Mapping[int, float], entity: int) -> NDArray[np.float32]:
        """The part of each keyword in the score of an entity that has it; `boosts`: keyword number
        -> its weight in the query.
        """
        return self._tables(list(boosts.items()))[:, self._postings.length_codes[entity]]

    def scores(
        self, boosts: Mapping[int, float], entities: NDArray[np.uint32]
    ) -> NDArray[np.float32]:
        """Scores of `entities`, which must be the whole set that the keywords of
        `boosts` retrieve.
        """
        plan = self._plan(boosts)
        with self._sums() as sums:
            for term, table in zip(plan.terms, plan.tables, strict=True):
                self._add(sums, table, self._postings.entities_of(term))
            at = entities.astype(np.intp)
            found = sums.take(at).astype(np.float32)
            sums[at] = 0
        return found

    def best(
        self, boosts: Mapping[int, float], bitmaps: Mapping[int, BitMap], size: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """The top `size` by score, then dense id, as (dense ids, scores); exact.

        MaxScore (Turtle and Flood 1995), one keyword at a time, rare ones first. Once the remaining
        keywords can't lift a new entity into the top k, only entities seen already are scored.

        Args:
            boosts: keyword number -> its weight in the query, above 0.
            bitmaps: keyword number -> the entities that have it.
        """
        if size <= 0:
            return np.zeros(0, np.uint32), np.zeros(0, np.float32)
        plan = self._plan(boosts)
        met, candidates = BitMap(), _Candidates(size, plan)
        with self._sums() as sums:
            for at, (term, table) in enumerate(zip(plan.terms, plan.tables, strict=True), start=1):
                if candidates.closed:
                    self._add(sums, table, to_array(bitmaps[term] & candidates.entities))
                else:
                    self._add(sums, table, self._postings.entities_of(term))
                    met |= bitmaps[term]
                    candidates.entities = met
                candidates.narrow(sums, at)
            dense = to_array(candidates.entities)
            scores = sums.take(dense).astype(np.float32)
            sums[to_array(met).astype(np.intp)] = 0
        best = top(scores, size)
        return dense[best], scores[best]

    def _plan(self, boosts: Mapping[int, float]) -> _Plan:
        tables = self._tables(list(boosts.items())).astype(np.float64)
        most = tables[:, self._codes].max(axis=1, initial=0.0)
        terms = np.fromiter(boosts, np.int64, len(boosts))
        order = np.lexsort((terms, -most))
        sizes = (self._postings.starts[terms + 1] - self._postings.starts[terms])[order]
        return _Plan(
            terms[order].tolist(), tables[order], _from_here_on(most[order]), _from_here_on(sizes)
        )

    def _tables(self, boosts: list[tuple[int, float]]) -> NDArray[np.float32]:
        starts = self._postings.starts
        weights = [
            formulas.weight(
                self._bm25, formulas.idf(self.entities, int(starts[term + 1] - starts[term])), boost
            )
            for term, boost in boosts
        ]
        return formulas.term_scores(np.array(weights, np.float32), self._norms)

    def _add(
        self, sums: NDArray[np.float64], table: NDArray[np.float64], entities: NDArray[np.uint32]
    ) -> None:
        # numpy is twice as fast with indices of its native width, and with add.at, which reads the
        # sums once (no index repeats).
        at = entities.astype(np.intp)
        np.add.at(sums, at, table.take(self._postings.length_codes.take(at)))

    @contextmanager
    def _sums(self) -> Iterator[NDArray[np.float64]]:
        # Zeros, one an entity. Each thread keeps its own array, since clearing the used sums costs
        # less than a new array. After an error the array is discarded.
        sums: NDArray[np.float64] | None = self._scratch.__dict__.pop("sums", None)
        sums = np.zeros(len(self._postings.ids)) if sums is None else sums
        yield sums
        self._scratch.sums = sums


def _from_here_on(values: NDArray[Any]) -> NDArray[Any]:
    return np.append(np.cumsum(values[::-1])[::-1], values.dtype.type(0))


class _Candidates:
    def __init__(self, size: int, plan: _Plan) -> None:
        self.entities = BitMap()
        self.closed = False
        self._size = size
        self._plan = plan
        self._threshold, self._met = 0.0, 0

    def narrow(self, sums: NDArray[np.float64], at: int) -> None:
        if not self._worth_a_check(at):
            return
        dense = to_array(self.entities)
        partial = sums.take(dense)
        # Sums only grow: the best k so far are above the last threshold.
        leaders = partial[partial >= self._threshold]
        kth = len(leaders) - self._size
        self._threshold, self._met = (
            float(np.partition(leaders, kth)[kth]) * _SAFELY_BELOW,
            len(dense),
        )
        to_come = float(self._plan.most[at])
        if self.closed or to_come < self._threshold:
            self.closed = True
            possible = partial + to_come >= self._threshold
            if not possible.all():
                self.entities = to_bitmap(dense[possible])

    def _worth_a_check(self, at: int) -> bool:
        now = len(self.entities)
        if not self._size <= now < self._plan.postings[at]:
            return False
        return self.closed or now >= 2 * self._met or self._plan.most[at] < 1.25 * self._threshold


def top(scores: NDArray[np.float32], size: int) -> NDArray[np.int64]:
    """Positions of the `size` best scores, best first; equal scores in order of position."""
    if size <= 0:
        return np.zeros(0, np.int64)
    if size < len(scores):
        last = np.partition(scores, len(scores) - size)[len(scores) - size]
        above = np.flatnonzero(scores > last)
        ties = np.flatnonzero(scores == last)[: size - len(above)]
        best = np.sort(np.concatenate((above, ties)))
    else:
        best = np.arange(len(scores))
    return best[np.argsort(-scores[best], kind="stable")]
