"""The generator `extractive`: keywords without a model and without labels, from the words of the
collection itself; and `scripted`, for tests and rehearsals: the first words of an entity's text.

An item gets its own best words and pairs of words (tf-idf inside a band of document frequency). A
query gets those item keywords that, together, best retrieve the items that match its words. It
learns nothing from relevance labels: that is `statistical`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from cogr.records import Item
from indexers.generators import Answer, Completion, Context, Generator, Options, Request
from indexers.generators.statistical.keyword_selection import Ownership, select_keywords, slices
from indexers.text import DETECT, K1, Analyser, B, Said, SurfaceForms, detect_language

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]

_KEYWORDS = 15
"""Most keywords of an item (the paper's M is 10)."""

MIN_ITEMS, MAX_ITEMS, MAX_SHARE = 2, 5, 0.02
"""Fewest items that a keyword occurs in, since one of a single item connects nothing; and most: the
number or the share of all, whichever is more.
"""

CUT, MAX_NEAR = 0.65, 100
"""A query's keywords aim at the items that score at least this share of the best item's BM25, and
at so many of them at most.
"""

_GAP = -1
# The F1 that a keyword without a word of the query must bring: such keywords are harder to read.
_FOREIGN = 0.002


class ExtractiveOptions(Options):
    """Options of the kind `extractive`.

    Attributes:
        language: of stems and stop words, by its Snowball name; `auto`: that of the items' texts.
    """

    language: str = DETECT

    def make(self, context: Context) -> Generator:
        assert context.dataset is not None
        return Extractive(context.dataset.items, context.dataset.dataset_hash, self)


class Collection:
    """What is counted once over all items: phrases, their document frequencies, the items that own
    them, and the spelling of words.

    A phrase is one stem or two adjacent ones, coded as one number. Deterministic in the items and
    their order.
    """

    def __init__(self, items: Sequence[Item], language: str) -> None:
        self.size = len(items)
        self._analyser = Analyser(language)
        self._surface = SurfaceForms(self._analyser)
        self.stem_ids: dict[str, int] = {}
        stream, self._starts = self._read(items)
        self._stems = list(self.stem_ids)
        self._base = len(self._stems) + 1
        self._tokens = stream
        docs, codes = self._phrases(stream, self._starts)
        self._codes, index = np.unique(codes, return_inverse=True)
        each, counts = np.unique(docs * len(self._codes) + index, return_counts=True)
        docs, index = np.divmod(each, max(1, len(self._codes)))
        self._df = np.bincount(index, minlength=len(self._codes))
        said = Said.of(self._analyser, (f"{item.title}\n{item.text}" for item in items))
        highest = max(MAX_ITEMS, int(MAX_SHARE * self.size))
        self._usable = (self._df >= MIN_ITEMS) & (self._df <= highest)
        for at in np.flatnonzero(self._usable).tolist():
            self._usable[at] = said.keeps(self._stems_of(at))
        self._rows, self._best = self._chosen(docs, index, counts)
        self._owned = Ownership(self._rows, self._best, self.size, len(self._codes))
        self._row_of = {item.id: row for row, item in enumerate(items)}

    def _read(self, items: Sequence[Item]) -> tuple[_Ints, _Ints]:
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

    def _phrases(self, stream: _Ints, starts: _Ints) -> tuple[_Ints, _Ints]:
        # Item and phrase of each place. Codes: a, or (a + 1) * base + b.
        doc = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        single = stream != _GAP
        double = single[:-1] & single[1:]
        pairs = (stream[:-1][double] + 1) * self._base + stream[1:][double]
        return np.r_[doc[single], doc[:-1][double]], np.r_[stream[single], pairs]

    def _chosen(self, docs: _Ints, phrases: _Ints, counts: _Ints) -> tuple[_Ints, _Ints]:
        df = self._df[phrases]
        inside = self._usable[phrases]
        docs, phrases, df = docs[inside], phrases[inside], df[inside]
        score = (1.0 + np.log(counts[inside])) * np.log(self.size / df)
        order = np.lexsort((self._codes[phrases], -score, docs))
        docs, phrases = docs[order], phrases[order]
        rank = np.arange(len(docs)) - np.searchsorted(docs, docs)
        kept = rank < _KEYWORDS
        return docs[kept], phrases[kept]

    def spell(self, phrase: int) -> str:
        """A phrase in the words that the collection uses most often."""
        return self._surface.spell(self._stems_of(phrase))

    def _stems_of(self, phrase: int) -> list[str]:
        first, second = divmod(int(self._codes[phrase]), self._base)
        return [self._stems[i] for i in ([first - 1, second] if first else [second])]

    def of_item(self, item: Item) -> _Ints:
        """The keywords of an item, best first; none of an item outside the collection."""
        row = self._row_of.get(item.id)
        if row is None:
            return np.empty(0, np.int64)
        first, end = np.searchsorted(self._rows, [row, row + 1])
        return self._best[first:end]

    def of_query(self, text: str) -> Sequence[int]:
        """The keywords of a query: the item keywords that together best retrieve the items nearest
        to its words.
        """
        known = self.stem_ids
        stems = np.array(sorted({known[s] for s in self._analyser.stems(text) if s in known}), int)
        near = self._nearest(stems)
        relevant = np.zeros(self.size)
        relevant[near] = 1
        phrases = slices(self._owned.by_item, self._owned.item_starts, near)
        first, second = np.divmod(self._codes[phrases], self._base)
        costs = np.full(len(self._codes), _FOREIGN)
        costs[phrases[np.isin(first - 1, stems) | np.isin(second, stems)]] = 0
        return select_keywords(relevant, self._owned, costs=costs).keywords

    @cached_property
    def postings(self) -> tuple[Ownership, _Floats]:
        """Items by stem, and the BM25 weight of each posting."""
        doc = np.repeat(np.arange(self.size), np.diff(self._starts))
        real = self._tokens != _GAP
        pairs, counts = np.unique(self._tokens[real] * self.size + doc[real], return_counts=True)
        stems, docs = np.divmod(pairs, max(1, self.size))
        length = np.bincount(doc[real], minlength=self.size)
        norm = K1 * (1 - B + B * length * self.size / max(1, length.sum()))
        df = np.bincount(stems, minlength=len(self._stems))
        idf = np.log1p((self.size - df + 0.5) / (df + 0.5))
        weights = idf[stems] * counts * (K1 + 1) / (counts + norm[docs])
        return Ownership(docs, stems, self.size, len(self._stems)), weights

    def _nearest(self, stems: _Ints) -> _Ints:
        postings, weights = self.postings
        scores = np.zeros(self.size)
        for stem in stems.tolist():
            span = slice(*postings.keyword_starts[stem : stem + 2])
            scores[postings.by_keyword[span]] += weights[span]
        near = np.flatnonzero((scores > 0) & (scores >= CUT * scores.max(initial=0.0)))
        nearest: _Ints = near[np.lexsort((near, -scores[near]))][:MAX_NEAR]
        return nearest


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

    reads = "entity"

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return {
            "kind": "extractive",
            "version": 3,
            "dataset_hash": self._dataset_hash,
            **self.options.model_dump(),
        }

    @cached_property
    def collection(self) -> Collection:
        """The counts; made when they are first needed."""
        return Collection(self._items, self.options.language)

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        for request in requests:
            entity = request.entity
            if isinstance(entity, Item):
                phrases: Iterable[int] = self.collection.of_item(entity)
            else:
                phrases = self.collection.of_query(entity.text)
            yield Completion(
                request.id, ", ".join(self.collection.spell(phrase) for phrase in phrases)
            )


SCRIPTED_WORDS = 10
"""So many distinct words, as many as a catalogue's usual keyword set has."""
_WORD = re.compile(r"\w+")


class ScriptedOptions(Options):
    """The kind `scripted` has no options."""

    def make(self, _: Context) -> Generator:
        return Scripted()


class Scripted(Generator):
    """The first distinct words of an entity's text, lower-cased."""

    reads = "entity"

    @property
    def fingerprint(self) -> Mapping[str, object]:
        return {"kind": "scripted", "words": SCRIPTED_WORDS}

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        for request in requests:
            entity = request.entity
            text = f"{entity.title} {entity.text}" if isinstance(entity, Item) else entity.text
            words = dict.fromkeys(match[0].lower() for match in _WORD.finditer(text))
            text = ", ".join(islice(words, SCRIPTED_WORDS))
            yield Completion(request.id, text, tokens=len(text.split()))
