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
from indexers.generators.phrases import Phrases
from indexers.generators.statistical.keyword_selection import Ownership, select_keywords, slices
from indexers.text import DETECT, K1, Analyser, B, detect_language

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]

_KEYWORDS = 15
"""Most keywords of an item (the paper's M is 10)."""

MAX_ITEMS, MAX_SHARE = 5, 0.02
"""Most items that a keyword occurs in: the number or the share of all, whichever is more."""

CUT, MAX_NEAR = 0.65, 100
"""A query's keywords aim at the items that score at least this share of the best item's BM25, and
at so many of them at most.
"""

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
    """What is counted once over all items: phrases, the items that own them, BM25 of stems."""

    def __init__(self, items: Sequence[Item], language: str) -> None:
        self.size = len(items)
        self._analyser = Analyser(language)
        texts = [(item.title, item.text) for item in items]
        most = max(MAX_ITEMS, int(MAX_SHARE * self.size))
        self.phrases = Phrases(texts, self._analyser, most, alone=True)
        count = len(self.phrases.stems)
        self._rows, self._best = self.phrases.best(_KEYWORDS, np.arange(count))
        self._owned = Ownership(self._rows, self._best, self.size, count)
        self._row_of = {item.id: row for row, item in enumerate(items)}

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
        known = self.phrases.ids
        stems = np.array(sorted({known[s] for s in self._analyser.stems(text) if s in known}), int)
        near = self._nearest(stems)
        relevant = np.zeros(self.size)
        relevant[near] = 1
        phrases = slices(self._owned.by_item, self._owned.item_starts, near)
        shared = np.isin(self.phrases.stems[phrases], stems).any(axis=1)
        costs = np.full(len(self.phrases.stems), _FOREIGN)
        costs[phrases[shared]] = 0
        return select_keywords(relevant, self._owned, costs=costs).keywords

    @cached_property
    def postings(self) -> tuple[Ownership, _Floats]:
        """Items by stem, and the BM25 weight of each posting."""
        tokens = self.phrases.tokens.astype(np.int64)
        doc = np.repeat(np.arange(self.size), np.diff(self.phrases.starts))
        real = tokens >= 0
        pairs, counts = np.unique(tokens[real] * self.size + doc[real], return_counts=True)
        stems, docs = np.divmod(pairs, max(1, self.size))
        length = np.bincount(doc[real], minlength=self.size)
        norm = K1 * (1 - B + B * length * self.size / max(1, length.sum()))
        df = np.bincount(stems, minlength=len(self.phrases.ids))
        idf = np.log1p((self.size - df + 0.5) / (df + 0.5))
        weights = idf[stems] * counts * (K1 + 1) / (counts + norm[docs])
        return Ownership(docs, stems, self.size, len(self.phrases.ids)), weights

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
                request.id, ", ".join(self.collection.phrases.spell(phrase) for phrase in phrases)
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
