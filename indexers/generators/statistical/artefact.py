"""The fitted state: everything that gives an item or an unseen query its keywords. Saved by `storage`, made by `fitting`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from cogr.distil import Distilled, distil, exact_cut
from cogr.keywords import normalise
from cogr.records import Item, Query
from indexers.generators.statistical.features import Evidence, candidates
from indexers.generators.statistical.item_keywords import PHRASE_WORDS, PHRASES, ItemKeywords
from indexers.generators.statistical.matrices import Csr, Floats, Ints
from indexers.generators.statistical.ranker import Ranker
from indexers.generators.statistical.text_index import TextIndex, item_text
from indexers.text import phrases

K_MAX = 30


def item_digest(item: Item) -> str:
    """Names an item's text, so that a changed item is not answered with what it was."""
    return blake2b(f"{item.title}\0{item.text}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Artefact:
    """A fitted ranker and an item index, and how to spell the one by the other.

    Attributes:
        index: text of the items.
        queries: texts of the training queries, normalised.
        relevance: 0/1, (training queries, items).
        ranker: probabilities.
        keywords: the items' keywords.
        item_ids: ids, in the order of the rows of `index`.
        digests: `item_digest` of each item.
        facts: data hash, settings and figures, for the manifest.
    """

    index: TextIndex
    queries: Sequence[str]
    relevance: Csr
    ranker: Ranker
    keywords: ItemKeywords
    item_ids: Sequence[str]
    digests: Sequence[str]
    facts: Mapping[str, object]

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence.of(self.index, self.queries, self.relevance)

    @cached_property
    def _rows(self) -> dict[str, int]:
        """Row of each training query by its text; of equal texts the first."""
        return {text: row for row, text in reversed(list(enumerate(self.queries)))}

    @cached_property
    def _items(self) -> dict[str, int]:
        return {item_id: number for number, item_id in enumerate(self.item_ids)}

    @cached_property
    def _phrases(self) -> dict[tuple[str, ...], int]:
        """Keywords that are phrases, by their stems, for items that the fit has not seen."""
        found: dict[tuple[str, ...], int] = {}
        owners = np.diff(self.keywords.writable.keyword_starts)
        for number in np.flatnonzero(owners):
            stems = tuple(self.index.analyser.stems(self.keywords.keywords[number]))
            if len(stems) == PHRASE_WORDS:
                found.setdefault(stems, int(number))
        return found

    def prepare(self) -> None:
        """Compute what is otherwise computed at the first answer."""
        self.query_keywords(["", *self.queries[:1]])
        self.keywords.owners(self.keywords.keywords[0] if self.keywords.keywords else "")

    def probabilities(self, texts: Sequence[str]) -> list[tuple[Ints, Floats]]:
        """Candidates and their probabilities for each query; training queries are answered out of fold."""
        if not texts:
            return []
        own = [self._rows.get(normalise(text), -1) for text in texts]
        batch = self.index.batch([normalise(text) for text in texts], own)
        pairs = candidates(self.evidence, batch)
        p = self.ranker.probabilities(pairs, batch.own)
        bounds = np.searchsorted(pairs.query, np.arange(len(texts) + 1))
        return [(pairs.item[a:b], p[a:b]) for a, b in pairwise(bounds)]

    def query_keywords(self, texts: Sequence[str]) -> list[list[str]]:
        """S_q for each query: at most 30 keywords, none of them the query's own text."""
        found = [self._distil(text, *scored) for text, scored in zip(texts, self.probabilities(texts), strict=True)]
        return [[self.keywords.keywords[number] for number in distilled.keywords] for distilled in found]

    def _distil(self, text: str, items: Ints, p: Floats) -> Distilled:
        # A training query's own anchor is owned by what is relevant to it: it must neither be chosen nor be counted on.
        literal = normalise(text)
        number = self.keywords.ids.get(literal)
        dense = np.zeros(self.index.n_items)
        dense[items] = p
        return distil(
            dense,
            self.keywords.writable,
            limit=K_MAX,
            expected_relevant=self.ranker.multiplier * float(p.sum()),
            forced=self.keywords.owners(literal, anchors=literal not in self._rows),
            banned=() if number is None else (number,),
        )

    def item_keywords(self, item: Item) -> list[str]:
        """S_i. An item that the fit has not seen, or that changed, gets the known phrases of its text, rarest first."""
        number = self._items.get(item.id)
        if number is not None and self.digests[number] == item_digest(item):
            return self.keywords.of(number)
        stems = self.index.analyser.stems(item_text(item))
        owners = np.diff(self.keywords.writable.keyword_starts)
        known = {self._phrases[phrase] for phrase in phrases(stems, PHRASE_WORDS) if phrase in self._phrases}
        ordered = sorted(known, key=lambda keyword: (owners[keyword], keyword))
        title = normalise(item.title)
        return [word for word in (self.keywords.keywords[keyword] for keyword in ordered) if word != title][:PHRASES]


def exact_cut_run(artefact: Artefact, queries: Sequence[Query]) -> dict[str, list[str]]:
    """Query id -> ids of the items that the ranker retrieves by its own cut, best first: what the keywords distil."""
    run = {}
    for query, (items, p) in zip(queries, artefact.probabilities([query.text for query in queries]), strict=True):
        cut, _ = exact_cut(p, artefact.ranker.multiplier * float(p.sum()))
        run[query.id] = [artefact.item_ids[item] for item in items[cut]]
    return run
