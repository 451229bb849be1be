"""Scores and order of a retrieved set, equal to the server's bit for bit. The formulas are in `cogr.bm25`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cogr import bm25 as formulas
from cogr.bm25 import BM25
from cogr.postings import Postings


class Scorer:
    """BM25 over the postings of one index.

    Args:
        postings: the index.
        bm25: parameters and flavour.
    """

    def __init__(self, postings: Postings, bm25: BM25) -> None:
        self._postings = postings
        self._bm25 = bm25
        self.entities = int(np.count_nonzero(postings.length_codes))
        """N: entities with at least one keyword."""
        avgdl = formulas.mean_length(len(postings.entities), self.entities)
        self._norms = formulas.norm_table(bm25, avgdl) if self.entities else np.zeros(256, np.float32)
        self._scratch = threading.local()

    def table(self, term: int, boost: int = 1) -> NDArray[np.float32]:
        """What a keyword adds to the score of an entity, by the entity's length code; shape (256,)."""
        df = int(self._postings.starts[term + 1] - self._postings.starts[term])
        return formulas.term_scores(formulas.weight(self._bm25, formulas.idf(self.entities, df), boost), self._norms)

    def part(self, term: int, boost: int, entity: int) -> np.float32:
        """What a keyword adds to the score of one entity that has it."""
        part: np.float32 = self.table(term, boost)[self._postings.length_codes[entity]]
        return part

    def scores(self, terms: Iterable[int], entities: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Scores of `entities`, which must be the whole set that `terms` retrieves. Repeated terms fold into a boost."""
        sums = self._sums()
        codes = self._postings.length_codes
        for term, boost in sorted(Counter(terms).items()):
            having = self._postings.entities_of(term)
            sums[having] += self.table(term, boost).astype(np.float64)[codes[having]]
        found = sums[entities].astype(np.float32)
        sums[entities] = 0
        return found

    def _sums(self) -> NDArray[np.float64]:
        # One buffer a thread, zero between calls: clearing what was touched costs less than a new one.
        sums: NDArray[np.float64] | None = getattr(self._scratch, "sums", None)
        if sums is None:
            sums = self._scratch.sums = np.zeros(len(self._postings.ids))
        return sums


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
