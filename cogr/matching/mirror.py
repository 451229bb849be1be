"""The mirror: the inverted index of one snapshot, in memory, with the same retrieved sets, scores
and order as OpenSearch.

It serves either side: keyword -> items, or keyword -> queries. An entity's keywords are S ∪ {self}:
its keyword set and its own text (paper, section 2.1). A mirror takes normalised keywords. It never
changes; threads may share it. Inside, entities are dense ids: ranks of their ids in code-point
order, so that ties are broken by dense id as the server breaks them by id.

Its arrays lie in temporary files (`cogr.mapped`); a process builds it from the snapshot, 7 us an
entity.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from cogr.errors import DataError
from cogr.mapped import SortedStrings, arrow_strings, integers
from cogr.matching import bm25 as formulas
from cogr.matching.bm25 import BM25, DEFAULT
from cogr.matching.postings import Postings, PostingsBuilder, to_array, to_bitmap
from cogr.snapshots import Snapshot

_Keywords = Iterable[str] | Mapping[str, float]
"""The query of a search: keywords, whose repetitions add up to a boost, or keyword -> boost, a
number above 0.
"""
_CACHED = 1 << 18
"""Number of keywords and of ids whose look-ups are cached, some 100 bytes each, and about 2 bytes a
posting for bitmaps.
"""


@dataclass(frozen=True)
class Ranking:
    """The best of a retrieved set, score descending, then id ascending.

    Attributes:
        dense: dense ids, uint32, shape (k,).
        scores: float32, shape (k,).
        total: size of the whole retrieved set.
    """

    dense: NDArray[np.uint32]
    scores: NDArray[np.float32]
    total: int
    names: SortedStrings

    @property
    def ids(self) -> list[str]:
        """Ids of the ranked entities, best first, ties by id."""
        return [self.names[dense] for dense in self.dense.tolist()]


class Mirror:
    """An inverted index over keyword sets. Make one with `build` or `from_sets`.

    Attributes:
        ids: the entities' ids by dense id.
        words: the distinct keywords, own texts among them, in code-point order.
        snapshot: id of the snapshot they come from, None for a world in memory.
    """

    def __init__(
        self, postings: Postings, snapshot: str | None = None, bm25: BM25 = DEFAULT
    ) -> None:
        self._postings = postings
        self.ids, self.words = postings.ids, postings.terms
        self.snapshot = snapshot
        self.bm25 = bm25
        self._rank = lru_cache(_CACHED)(postings.ids.find)
        self._number = lru_cache(_CACHED)(postings.terms.find)
        self._cached_bitmap = lru_cache(_CACHED)(self._make_bitmap)

    @classmethod
    def build(cls, snapshot: Snapshot) -> Mirror:
        """The mirror of a snapshot, streaming over its batches; its arrays lie in temporary files
        (`cogr.mapped`).
        """
        builder = PostingsBuilder()
        for batch in snapshot.batches():
            sets = batch["keywords"]
            builder.add(batch["id"], sets.flatten(), np.diff(integers(sets.offsets)), batch["self"])
        return cls(builder.finish(), snapshot.id)

    @classmethod
    def from_sets(
        cls, ids: Sequence[str], sets: Sequence[Collection[str]], own: Sequence[str] | None = None
    ) -> Mirror:
        """A mirror of a world in memory.

        Args:
            sets: the keywords of each, normalised.
            own: the own text of each as a keyword ("" for none), matched like the others; None: no
                entity has one.

        Raises DataError for repeated ids.
        """
        own = [""] * len(ids) if own is None else own
        rows = sorted(zip(ids, sets, own, strict=True), key=itemgetter(0))
        builder = PostingsBuilder()
        builder.add(
            arrow_strings(id_ for id_, *_ in rows),
            arrow_strings(keyword for _, keywords, _ in rows for keyword in keywords),
            np.array([len(keywords) for _, keywords, _ in rows], np.int64),
            arrow_strings(text for *_, text in rows),
        )
        return cls(builder.finish())

    def scored_by(self, bm25: BM25) -> Mirror:
        """The same index with other BM25 parameters; the arrays are shared."""
        return Mirror(self._postings, self.snapshot, bm25)

    def __len__(self) -> int:
        """How many entities there are, those without keywords included."""
        return len(self._postings.ids)

    # Entities

    def dense(self, id_: str) -> int:
        """The dense id of an id. Raises DataError when the mirror does not hold it."""
        dense = self._rank(id_)
        if dense < 0:
            raise DataError(
                f"There is no {id_!r} in {self.snapshot or 'this mirror'}; check the id, or build "
                "the snapshot again with it."
            )
        return dense

    def wanted(self, ids: Collection[str]) -> BitMap:
        """Dense ids of ids. Unknown ids get numbers beyond all dense ids: they count as wanted, and
        nothing retrieves them.
        """
        known = [rank for rank in map(self._rank, ids) if rank >= 0]
        return BitMap([*known, *range(len(self), len(self) + len(ids) - len(known))])

    def keywords_of(self, entity: str | int) -> tuple[str, ...]:
        """S ∪ {self} of an entity, by id or dense id; in generation order, the own text last unless
        it was generated.
        """
        dense = self.dense(entity) if isinstance(entity, str) else entity
        return tuple(self._postings.terms[term] for term in self._postings.set_of(dense).tolist())

    def own_keyword(self, entity: str | int) -> str:
        """The entity's own text as a keyword; "" for none."""
        term = int(self._postings.own[self.dense(entity) if isinstance(entity, str) else entity])
        return self._postings.terms[term] if term >= 0 else ""

    # Retrieval

    def df(self, keyword: str) -> int:
        """Document frequency: how many entities have the keyword."""
        return len(self._cached_bitmap(keyword))

    def retrieved(self, keywords: Iterable[str]) -> BitMap:
        """I_ret: entities that have any of the keywords (paper, section 2.1), and none of weight 0,
        where there are weights.
        """
        without = _without(keywords)
        bitmaps = [self._cached_bitmap(word) for word in keywords if word not in without]
        items = BitMap.union(*bitmaps) if bitmaps else BitMap()
        for word in without:
            items = items - self._cached_bitmap(word)
        return items

    def _make_bitmap(self, keyword: str) -> BitMap:
        term = self._number(keyword)
        return to_bitmap(self._postings.entities_of(term)) if term >= 0 else BitMap()

    # Ranking

    def search(self, keywords: _Keywords, size: int = 10) -> Ranking:
        """The `size` best of the retrieved set by BM25, equal scores by id."""
        words = _boosts(keywords)
        kept, without = self.retrieved(words), _without(words)
        bitmaps = {self._number(word): self._cached_bitmap(word) for word in words}
        most = len(self) if without else size
        dense, scores = self._scorer.best(self._numbered(words), bitmaps, most)
        if without:
            inside = np.isin(dense, to_array(kept))
            dense, scores = dense[inside][: max(0, size)], scores[inside][: max(0, size)]
        return Ranking(dense, scores, len(kept), self._postings.ids)

    def explain(self, keywords: _Keywords, entity: str) -> dict[str, float]:
        """Each keyword that the entity has, with its part of the score (a float32 value).

        The parts summed in float64 and cast to float32 are the score. Raises DataError for an
        unknown id.
        """
        dense = self.dense(entity)
        having = set(self._postings.set_of(dense).tolist())
        weights = {
            word: boost
            for word, boost in _boosts(keywords).items()
            if boost and self._number(word) in having
        }
        parts = self._scorer.tables(self._numbered(weights))[:, self._postings.length_codes[dense]]
        return dict(zip(weights, parts.tolist(), strict=True))

    def _numbered(self, words: Mapping[str, float]) -> dict[int, float]:
        numbered = ((self._number(word), boost) for word, boost in words.items() if boost)
        return {number: boost for number, boost in numbered if number >= 0}

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer(self._postings, self.bm25)


def _without(keywords: Iterable[str]) -> set[str]:
    weights = keywords if isinstance(keywords, Mapping) else {}
    return {word for word, weight in weights.items() if weight == 0}


def _boosts(keywords: _Keywords) -> Mapping[str, float]:
    return keywords if isinstance(keywords, Mapping) else Counter(iter(keywords))


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
        met, closed = BitMap(), False
        with self._sums() as sums:
            for at, (term, table) in enumerate(zip(plan.terms, plan.tables, strict=True), start=1):
                if closed:
                    self._add(sums, table, to_array(bitmaps[term] & met))
                    continue
                self._add(sums, table, self._postings.entities_of(term))
                met |= bitmaps[term]
                # A look costs as much as adding a keyword of so many entities.
                if size <= len(met) < plan.postings[at]:
                    partial = sums.take(to_array(met))
                    kth = float(np.partition(partial, -size)[-size])
                    closed = bool(plan.most[at] < kth * _SAFELY_BELOW)
            dense = to_array(met)
            scores = sums.take(dense).astype(np.float32)
            sums[dense.astype(np.intp)] = 0
        best = _top(scores, size)
        return dense[best], scores[best]

    def _plan(self, boosts: Mapping[int, float]) -> _Plan:
        tables = self.tables(boosts).astype(np.float64)
        most = tables[:, self._codes].max(axis=1, initial=0.0)
        terms = np.fromiter(boosts, np.int64, len(boosts))
        order = np.lexsort((terms, -most))
        sizes = (self._postings.starts[terms + 1] - self._postings.starts[terms])[order]
        return _Plan(
            terms[order].tolist(), tables[order], _from_here_on(most[order]), _from_here_on(sizes)
        )

    def tables(self, boosts: Mapping[int, float]) -> NDArray[np.float32]:
        """The part of each keyword in the score of an entity that has it, by the entity's length
        code, (keywords, 256); `boosts`: keyword number -> its weight in the query.
        """
        starts = self._postings.starts
        weights = [
            formulas.weight(
                self._bm25, formulas.idf(self.entities, int(starts[term + 1] - starts[term])), boost
            )
            for term, boost in boosts.items()
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


def _top(scores: NDArray[np.float32], size: int) -> NDArray[np.int64]:
    """Positions of the `size` best scores, best first; equal scores in order of position."""
    best = np.arange(len(scores))
    if size < len(scores):
        last = np.partition(scores, len(scores) - size)[len(scores) - size]
        above, ties = np.flatnonzero(scores > last), np.flatnonzero(scores == last)
        best = np.sort(np.append(above, ties[: size - len(above)]))
    return best[np.argsort(-scores[best], kind="stable")]
