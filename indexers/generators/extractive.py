"""The generator `extractive`: keywords without a model and without labels, from the words of the
collection itself.

An item gets its own best words and pairs of words (tf-idf inside a band of document frequency). A
query gets those item keywords that, together, best retrieve the items that match its words. It
learns nothing from relevance labels: that is `statistical`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cogr.errors import GeneratorError
from cogr.metrics import f1_of
from cogr.records import Item
from indexers.generators import Answer, Completion, Context, Generator, Options, Reads, Request
from indexers.text import DETECT, Analyser, Said, SurfaceForms, detect_language

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_GAP = -1
_NEAREST_AT_MOST = 100
_K1, _B = 1.5, 0.75
_PRICES = (1.0, 0.85, 0.7, 0.55, 0.4)
# Keywords with a word of the query count twice when one is chosen: as good on nfcorpus and chorus,
# and easier to read.
_OWN_WORD = 2.0


class ExtractiveOptions(Options):
    """Options of the kind `extractive`.

    Attributes:
        keywords: most keywords of an item, the best first (the paper's M is 10).
        min_df: fewest items that a keyword occurs in: a keyword of a single item connects nothing.
        max_df_share: largest share of the items that it may occur in (5 items are always allowed).
        cut: a query's keywords aim at the items that score at least this share of the best item's
            BM25.
        language: of stems and stop words, by its Snowball name; `auto`: that of the items' texts.
    """

    keywords: int = Field(default=15, ge=1)
    query_keywords: int = Field(default=30, ge=1)
    min_df: int = Field(default=2, ge=1)
    max_df_share: float = Field(default=0.02, gt=0.0, le=1.0)
    cut: float = Field(default=0.65, gt=0.0, le=1.0)
    language: str = DETECT


@dataclass(frozen=True)
class _Rows:
    starts: Ints
    columns: Ints

    @classmethod
    def from_pairs(cls, rows: Ints, columns: Ints, count: int) -> _Rows:
        return cls(np.searchsorted(rows, np.arange(count + 1)), columns)

    def __getitem__(self, row: int) -> Ints:
        return self.columns[self.starts[row] : self.starts[row + 1]]

    def gather(self, rows: Ints) -> Ints:
        parts = [self[row] for row in rows.tolist()]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


class Collection:
    """What is counted once over all items: phrases, their document frequencies, the items that own
    them, and the spelling of words.

    A phrase is one stem or two adjacent ones, coded as one number. Deterministic in the items and
    their order.
    """

    def __init__(self, items: Sequence[Item], options: ExtractiveOptions) -> None:
        self.options = options
        self.size = len(items)
        self._analyser = Analyser(options.language)
        self._surface = SurfaceForms(self._analyser)
        self.stem_ids: dict[str, int] = {}
        stream, self._starts = self._read(items)
        self._stems = list(self.stem_ids)
        self._base = len(self._stems) + 1
        self._tokens = stream
        docs, codes, counts = self._phrases(stream, self._starts)
        self._codes, index = np.unique(codes, return_inverse=True)
        self._df = np.bincount(index, minlength=len(self._codes))
        said = Said.of(self._analyser, (f"{item.title}\n{item.text}" for item in items))
        highest = max(5, int(self.options.max_df_share * self.size))
        self._usable = (self._df >= self.options.min_df) & (self._df <= highest)
        for at in np.flatnonzero(self._usable).tolist():
            self._usable[at] = said.keeps(self._stems_of(at))
        rows, phrases = self._best(docs, index, counts)
        self._keywords = _Rows.from_pairs(rows, phrases, self.size)
        self._row_of = {item.id: row for row, item in enumerate(items)}

    def _read(self, items: Sequence[Item]) -> tuple[Ints, Ints]:
        stream: list[int] = []
        starts = [0]
        ids = self.stem_ids
        for item in items:
            for text in (item.title, item.text):
                words = self._analyser.words(text)
                self._surface.add(words)
                stream.extend(ids.setdefault(self._analyser.stem(word), len(ids)) for word in words)
                stream.append(_GAP)
            starts.append(len(stream))
        return np.array(stream, dtype=np.int64), np.array(starts, dtype=np.int64)

    def _phrases(self, stream: Ints, starts: Ints) -> tuple[Ints, Ints, Ints]:
        # Pairs of item and phrase, sorted. Codes: a, or (a + 1) * base + b.
        doc = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        single = stream != _GAP
        double = single[:-1] & single[1:]
        docs = np.concatenate([doc[single], doc[:-1][double]])
        codes = np.concatenate(
            [stream[single], (stream[:-1][double] + 1) * self._base + stream[1:][double]]
        )
        order = np.lexsort((codes, docs))
        docs, codes = docs[order], codes[order]
        first = np.flatnonzero(
            np.r_[True, (np.diff(docs) != 0) | (np.diff(codes) != 0)][: len(docs)]
        )
        return docs[first], codes[first], np.diff(np.r_[first, len(docs)])

    def _best(self, docs: Ints, phrases: Ints, counts: Ints) -> tuple[Ints, Ints]:
        df = self._df[phrases]
        inside = self._usable[phrases]
        docs, phrases, df = docs[inside], phrases[inside], df[inside]
        score = (1.0 + np.log(counts[inside])) * np.log(self.size / df)
        order = np.lexsort((self._codes[phrases], -score, docs))
        docs, phrases = docs[order], phrases[order]
        rank = np.arange(len(docs)) - np.searchsorted(docs, docs)
        kept = rank < self.options.keywords
        return docs[kept], phrases[kept]

    def spell(self, phrase: int) -> str:
        """A phrase in the words that the collection uses most often."""
        return self._surface.spell(self._stems_of(phrase))

    def _stems_of(self, phrase: int) -> list[str]:
        first, second = divmod(int(self._codes[phrase]), self._base)
        return [self._stems[i] for i in ([first - 1, second] if first else [second])]

    def of_item(self, item: Item) -> Ints:
        """The keywords of an item, best first; none of an item outside the collection."""
        row = self._row_of.get(item.id)
        return np.empty(0, np.int64) if row is None else self._keywords[row]

    def of_query(self, text: str) -> list[int]:
        """The keywords of a query: the item keywords that together best retrieve the items nearest
        to its words.
        """
        stems = np.array(
            sorted({self.stem_ids[s] for s in self._analyser.stems(text) if s in self.stem_ids}),
            int,
        )
        near = self._nearest(stems)
        return self._cover(near, stems) if len(near) else []

    @cached_property
    def postings(self) -> tuple[_Rows, Floats]:
        """Items by stem, and the BM25 weight of each posting."""
        doc = np.repeat(np.arange(self.size), np.diff(self._starts))
        real = self._tokens != _GAP
        pairs, counts = np.unique(self._tokens[real] * self.size + doc[real], return_counts=True)
        stems, docs = np.divmod(pairs, max(1, self.size))
        length = np.bincount(doc[real], minlength=self.size)
        norm = _K1 * (1 - _B + _B * length * self.size / max(1, length.sum()))
        df = np.bincount(stems, minlength=len(self._stems))
        idf = np.log1p((self.size - df + 0.5) / (df + 0.5))
        weights = idf[stems] * counts * (_K1 + 1) / (counts + norm[docs])
        return _Rows.from_pairs(stems, docs, len(self._stems)), weights

    def _nearest(self, stems: Ints) -> Ints:
        postings, weights = self.postings
        scores = np.zeros(self.size)
        for stem in stems.tolist():
            scores[postings[stem]] += weights[postings.starts[stem] : postings.starts[stem + 1]]
        near = np.flatnonzero((scores > 0) & (scores >= self.options.cut * scores.max(initial=0.0)))
        nearest: Ints = near[np.lexsort((near, -scores[near]))][:_NEAREST_AT_MOST]
        return nearest

    @cached_property
    def _owners(self) -> _Rows:
        rows = np.repeat(np.arange(self.size), np.diff(self._keywords.starts))
        order = np.argsort(self._keywords.columns, kind="stable")
        return _Rows.from_pairs(self._keywords.columns[order], rows[order], len(self._codes))

    def _cover(self, target: Ints, stems: Ints) -> list[int]:
        # Dinkelbach's method with a greedy step: for each price of retrieving an item, take the
        # keywords that gain most; keep the price with the best F1.
        wanted = np.zeros(self.size, dtype=bool)
        wanted[target] = True
        phrases = np.unique(self._keywords.gather(target))
        first, second = np.divmod(self._codes[phrases], self._base)
        own = np.isin(first - 1, stems) | np.isin(second, stems)
        candidates = _Candidates(
            phrases, [self._owners[p] for p in phrases.tolist()], np.where(own, _OWN_WORD, 1.0)
        )
        best: list[int] = []
        best_f1 = 0.0
        for price in _PRICES:
            chosen, f1 = self._greedy(wanted, candidates, price)
            if f1 > best_f1:
                best, best_f1 = chosen, f1
        return best

    def _greedy(
        self, wanted: Mask, candidates: _Candidates, price: float
    ) -> tuple[list[int], float]:
        # The gain of a keyword is 2 tp - price * retrieved over the items not covered yet.
        worth = 2.0 * wanted - price
        covered = np.zeros(self.size, dtype=bool)
        gains = np.array([worth[owners].sum() for owners in candidates.owners])
        chosen: list[int] = []
        while len(chosen) < self.options.query_keywords and gains.max(initial=0.0) > 1e-9:
            pick = int((gains * candidates.weight).argmax())
            chosen.append(int(candidates.phrases[pick]))
            new = candidates.owners[pick][~covered[candidates.owners[pick]]]
            covered[new] = True
            phrases = self._keywords.gather(new)
            lengths = self._keywords.starts[new + 1] - self._keywords.starts[new]
            candidates.subtract(gains, phrases, np.repeat(worth[new], lengths))
        hits = int((covered & wanted).sum())
        return chosen, f1_of(hits, int(covered.sum()), int(wanted.sum()))


@dataclass(frozen=True)
class _Candidates:
    phrases: Ints
    owners: Sequence[Ints]
    weight: Floats

    def subtract(self, gains: Floats, phrases: Ints, worth: Floats) -> None:
        at = np.minimum(np.searchsorted(self.phrases, phrases), len(self.phrases) - 1)
        same = self.phrases[at] == phrases
        np.subtract.at(gains, at[same], worth[same])


class Extractive(Generator):
    """Keywords from the words of a collection, which is counted at the first request (seconds)."""

    def __init__(
        self, items: Sequence[Item], dataset_hash: str, options: ExtractiveOptions | None = None
    ) -> None:
        self.options = options or ExtractiveOptions()
        if self.options.language == DETECT:
            language = detect_language(f"{item.title} {item.text}" for item in items)
            self.options = self.options.model_copy(update={"language": language})
        self._items = items
        self._dataset_hash = dataset_hash

    @property
    def reads(self) -> Reads:
        """The entity's own words, and the whole collection's."""
        return "entity"

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return {
            "kind": "extractive",
            "version": 2,
            "dataset_hash": self._dataset_hash,
            **self.options.model_dump(),
        }

    @cached_property
    def collection(self) -> Collection:
        """The counts; made when they are first needed."""
        return Collection(self._items, self.options)

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        for request in requests:
            entity = request.entity
            if isinstance(entity, Item):
                found: Iterable[int] = self.collection.of_item(entity).tolist()
            else:
                found = self.collection.of_query(entity.text)
            yield Completion(
                request.id, ", ".join(self.collection.spell(phrase) for phrase in found)
            )


def make(options: ExtractiveOptions, context: Context) -> Extractive:
    """The registry's entry. Raises GeneratorError without a data set."""
    if context.dataset is None:
        raise GeneratorError(
            "The generator extractive reads the whole collection; give it a data set."
        )
    return Extractive(context.dataset.items, context.dataset.dataset_hash, options)
