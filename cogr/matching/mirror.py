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

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from cogr.errors import DataError
from cogr.mapped import SortedStrings, arrow_strings, integers
from cogr.matching.bm25 import BM25, DEFAULT
from cogr.matching.postings import Postings, PostingsBuilder, to_array, to_bitmap
from cogr.matching.scoring import Scorer, top
from cogr.snapshots import Snapshot

Keywords = Iterable[str] | Mapping[str, float]
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
        """The entities' ids, best first."""
        return [self.names[dense] for dense in self.dense.tolist()]


class Mirror:
    """An inverted index over keyword sets. Make one with `build` or `from_sets`.

    Args:
        snapshot: id of the snapshot they come from, None for a world in memory.
    """

    def __init__(
        self,
        postings: Postings,
        snapshot: str | None = None,
        bm25: BM25 = DEFAULT,
    ) -> None:
        self._postings = postings
        self.snapshot = snapshot
        self.bm25 = bm25
        self._rank = lru_cache(_CACHED)(postings.ids.find)
        self._number = lru_cache(_CACHED)(postings.terms.find)
        self._cached_bitmap = lru_cache(_CACHED)(self._make_bitmap)

    @classmethod
    def build(cls, snapshot: Snapshot, bm25: BM25 = DEFAULT) -> Mirror:
        """The mirror of a snapshot, streaming over its batches; its arrays lie in temporary files
        (`cogr.mapped`).
        """
        builder = PostingsBuilder()
        for batch in snapshot.batches():
            sets = batch["keywords"]
            builder.add(batch["id"], sets.flatten(), np.diff(integers(sets.offsets)), batch["self"])
        return cls(builder.finish(), snapshot.id, bm25)

    @classmethod
    def from_sets(
        cls,
        ids: Sequence[str],
        sets: Sequence[Collection[str]],
        own: Sequence[str] | None = None,
        bm25: BM25 = DEFAULT,
    ) -> Mirror:
        """A mirror of a world in memory.

        Args:
            sets: the keywords of each, normalised.
            own: the own text of each as a keyword ("" for none), matched like the others; None: no
                entity has one.

        Raises:
            DataError: repeated ids, or lists of different lengths.
        """
        own = [""] * len(ids) if own is None else own
        if not len(ids) == len(sets) == len(own):
            raise DataError(
                f"A world needs one keyword set an id, but has {len(ids)} ids, {len(sets)} sets, "
                f"{len(own)} own texts."
            )
        order = sorted(range(len(ids)), key=ids.__getitem__)
        builder = PostingsBuilder()
        try:
            builder.add(
                arrow_strings(ids[at] for at in order),
                arrow_strings(keyword for at in order for keyword in sets[at]),
                np.array([len(sets[at]) for at in order], np.int64),
                arrow_strings(own[at] for at in order),
            )
        except UnicodeEncodeError as error:
            raise DataError(
                f"{error.object!r} has a lone surrogate; normalise keywords, and repair the id."
            ) from error
        return cls(builder.finish(), bm25=bm25)

    def scored_by(self, bm25: BM25) -> Mirror:
        """The same index with other BM25 parameters; the arrays are shared."""
        return Mirror(self._postings, self.snapshot, bm25)

    def __len__(self) -> int:
        """Entities, those without keywords included."""
        return len(self._postings.ids)

    def __repr__(self) -> str:
        return (
            f"Mirror({self.snapshot or 'in memory'}: {len(self)} entities, {self.vocabulary} "
            "keywords)"
        )

    @property
    def vocabulary(self) -> int:
        """Distinct keywords."""
        return len(self._postings.terms)

    @property
    def words(self) -> SortedStrings:
        """The distinct keywords, own texts among them, in code-point order."""
        return self._postings.terms

    @property
    def ids(self) -> SortedStrings:
        """The entities' ids by dense id."""
        return self._postings.ids

    # Entities

    def id_of(self, dense: int) -> str:
        """The id of a dense id."""
        return self._postings.ids[dense]

    def dense(self, id_: str) -> int:
        """The dense id of an id. Raises DataError when the mirror does not hold it."""
        dense = self._rank(id_)
        if dense < 0:
            raise DataError(
                f"There is no {id_!r} in {self}; check the id, or build the snapshot again with it."
            )
        return dense

    def bitmap_of_ids(self, ids: Iterable[str]) -> BitMap:
        """Dense ids of ids. Raises DataError for one that the mirror does not hold."""
        return BitMap([self.dense(id_) for id_ in ids])

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
        """Entities that have the keyword."""
        term = self._number(keyword)
        return (
            int(self._postings.starts[term + 1] - self._postings.starts[term]) if term >= 0 else 0
        )

    def bitmap(self, keyword: str) -> BitMap:
        """Dense ids of the entities that have the keyword; a copy that you may change."""
        return self._cached_bitmap(keyword).copy()

    def retrieved(self, keywords: Iterable[str]) -> BitMap:
        """I_ret: entities that have any of the keywords (paper, section 2.1), and none of weight 0,
        where there are weights.
        """
        without = _without(keywords)
        bitmaps = [self._cached_bitmap(word) for word in keywords if word not in without]
        found = BitMap.union(*bitmaps) if bitmaps else BitMap()
        for word in without:
            found = found - self._cached_bitmap(word)
        return found

    def count(self, keywords: Iterable[str]) -> int:
        """Size of the retrieved set."""
        return len(self.retrieved(keywords))

    def _make_bitmap(self, keyword: str) -> BitMap:
        term = self._number(keyword)
        return to_bitmap(self._postings.entities_of(term)) if term >= 0 else BitMap()

    # Ranking

    def scores(self, keywords: Keywords) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """Dense ids of the whole retrieved set, ascending, and their scores.

        The set does not depend on boosts above 0.
        """
        words = _boosts(keywords)
        every = to_array(self.retrieved([word for word in words if words[word]]))
        scores = self._scorer.scores(self._numbered(words), every)
        kept = to_array(self.retrieved(words))
        return kept, scores if kept.size == every.size else scores[np.isin(every, kept)]

    def search(self, keywords: Keywords, size: int = 10) -> Ranking:
        """The `size` best of the retrieved set by BM25, equal scores by id."""
        words = _boosts(keywords)
        if _without(words):
            dense, scores = self.scores(words)
            best = top(scores, size)
            return Ranking(dense[best], scores[best], dense.size, self._postings.ids)
        bitmaps = {self._number(word): self._cached_bitmap(word) for word in words}
        dense, scores = self._scorer.best(self._numbered(words), bitmaps, size)
        return Ranking(dense, scores, self.count(words), self._postings.ids)

    def explain(self, keywords: Keywords, entity: str) -> dict[str, float]:
        """Each keyword that the entity has, with its part of the score (a float32 value).

        The parts summed in float64 and cast to float32 are the score. Raises DataError for an
        unknown id.
        """
        dense = self.dense(entity)
        having = set(self._postings.set_of(dense).tolist())
        found = {
            word: boost
            for word, boost in _boosts(keywords).items()
            if boost and self._number(word) in having
        }
        parts = self._scorer.parts(self._numbered(found), dense)
        return dict(zip(found, parts.tolist(), strict=True))

    def _numbered(self, words: Mapping[str, float]) -> dict[int, float]:
        numbered = ((self._number(word), boost) for word, boost in words.items() if boost)
        return {number: boost for number, boost in numbered if number >= 0}

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer(self._postings, self.bm25)


def _without(keywords: Iterable[str]) -> set[str]:
    weights = keywords if isinstance(keywords, Mapping) else {}
    return {word for word, weight in weights.items() if weight == 0}


def _boosts(keywords: Keywords) -> Mapping[str, float]:
    return keywords if isinstance(keywords, Mapping) else Counter(iter(keywords))
