"""The fitted state: everything that gives an item or an unseen query its keywords.

Saved by `storage`, made by `fitting`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain, pairwise

import numpy as np

from cogr.keywords import self_keyword
from cogr.records import Item, Query
from indexers.generators.statistical.distillation import Distilled, distil, exact_cut, expected_f1
from indexers.generators.statistical.edits import Asked, Board, Editor, boards
from indexers.generators.statistical.evidence import Evidence
from indexers.generators.statistical.features import candidates
from indexers.generators.statistical.item_keywords import PHRASE_WORDS, PHRASES, ItemKeywords
from indexers.generators.statistical.matrices import Csr, Floats, Ints
from indexers.generators.statistical.ranker import Ranker
from indexers.generators.statistical.text_index import TextIndex, item_text
from indexers.text import phrases

K_MAX = 30

EXPECTATIONS = (1.0, 3.0, 10.0, 0.3)
"""Shares of the expected number of relevant items by which proposals are distilled, after S_q
itself.
"""


def item_digest(item: Item) -> str:
    """Names an item's text, so that a changed item is not answered with what it was."""
    return blake2b(
        f"{item.title}\0{item.text}".encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


@dataclass(frozen=True)
class Artefact:
    """A fitted ranker and an item index, and how to spell the one by the other.

    Attributes:
        index: text of the items.
        queries: the training queries, their texts normalised.
        relevance: 0/1, (training queries, items).
        ranker: probabilities.
        keywords: the items' keywords.
        item_ids: ids, in the order of the rows of `index`.
        digests: `item_digest` of each item.
        facts: data hash, settings and figures, for the manifest.
        editor: edits of distilled sets; None where they don't pay.
    """

    index: TextIndex
    queries: Sequence[Query]
    relevance: Csr
    ranker: Ranker
    keywords: ItemKeywords
    item_ids: Sequence[str]
    digests: Sequence[str]
    facts: Mapping[str, object]
    editor: Editor | None = None

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence.of(self.index, [query.text for query in self.queries], self.relevance)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {query.id: row for row, query in enumerate(self.queries)}

    @cached_property
    def _texts(self) -> dict[str, int]:
        """Row of each training query by its text; of equal texts the first."""
        return {query.text: row for row, query in reversed(list(enumerate(self.queries)))}

    def _row(self, query: Query) -> int:
        """The query's row among the training queries; -1 when it is none, even if it has the text
        of one.
        """
        row = self._rows.get(query.id, -1)
        return row if row >= 0 and self.queries[row].text == self_keyword(query.text) else -1

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
        self.query_keywords([Query("", ""), *self.queries[:1]])
        self.keywords.owners(self.keywords.keywords[0] if self.keywords.keywords else "")

    def probabilities(self, queries: Sequence[Query]) -> list[tuple[Ints, Floats]]:
        """Candidates and their probabilities for each query.

        Training queries are answered out of fold. Another query with the text of one is answered
        likewise, and then by the mean of that and the labels: votes for itself would be unlike
        anything that the ranker has learned from.
        """
        if not queries:
            return []
        texts = [self_keyword(query.text) for query in queries]
        trained = np.array([self._row(query) for query in queries])
        rows = np.where(trained >= 0, trained, [self._texts.get(text, -1) for text in texts])
        pairs = candidates(self.evidence, self.index.batch(texts, rows.tolist()))
        p = self.ranker.probabilities(pairs, rows)
        bounds = pairwise(np.searchsorted(pairs.query, np.arange(len(queries) + 1)))
        found = [(pairs.item[a:b], p[a:b]) for a, b in bounds]
        for number in np.flatnonzero((trained < 0) & (rows >= 0)):
            items, own_p = found[number]
            found[number] = self._with_labels(items, own_p, int(rows[number]))
        return found

    def _with_labels(self, items: Ints, p: Floats, row: int) -> tuple[Ints, Floats]:
        """The mean of p and the labels of a training query, over the items of either."""
        labelled = self.relevance.indices[
            self.relevance.indptr[row] : self.relevance.indptr[row + 1]
        ]
        union = np.union1d(items, labelled)
        mean = np.zeros(union.size, dtype=np.float32)
        mean[np.searchsorted(union, items)] += p / 2
        mean[np.searchsorted(union, labelled)] += 0.5
        return union, mean

    def query_keywords(self, queries: Sequence[Query]) -> list[list[str]]:
        """S_q for each query: at most 30 keywords, none of them the query's own text."""
        scored = self.probabilities(queries)
        found = [
            self._chosen(query, items, p) for query, (items, p) in zip(queries, scored, strict=True)
        ]
        return [
            [self.keywords.keywords[number] for number in distilled.keywords] for distilled in found
        ]

    def proposals(self, queries: Sequence[Query], size: int) -> list[list[tuple[str, float]]]:
        """S_q and runners-up of each query, `size` at most, each with the mean p of its owners.

        Runners-up are what it would choose if it expected more relevant items, or fewer.
        """
        found = []
        for query, (items, p) in zip(queries, self.probabilities(queries), strict=True):
            best = self._chosen(query, items, p)
            others = (self._distil(query, items, p, share) for share in EXPECTATIONS)
            sets = (found.keywords for found in chain([best], others))
            numbers = list(dict.fromkeys(chain.from_iterable(sets)))[:size]
            dense = np.zeros(self.index.n_items)
            dense[items] = p
            owners = self.keywords.writable.owners
            found.append(
                [
                    (self.keywords.keywords[n], round(float(dense[owners(n)].mean()), 4))
                    for n in numbers
                ]
            )
        return found

    def _chosen(self, query: Query, items: Ints, p: Floats) -> Distilled:
        """S_q, edited where that pays. A new query with the text of a training query is not: its p
        is half labels, which edits have not learned from.
        """
        found = self._distil(query, items, p)
        row = self._row(query)
        if self.editor is None or (row < 0 and self_keyword(query.text) in self._texts):
            return found
        (board,) = self.boards([query], [(items, p)], [found])
        keywords = self.editor.edited(board, row, K_MAX)
        retrieved = self.keywords.writable.covered(keywords, board.forced)
        hits = float(p[np.isin(items, retrieved)].sum())
        value = expected_f1(hits, retrieved.size, board.expected)
        return replace(found, keywords=keywords, value=value, retrieved=retrieved.size, hits=hits)

    def boards(
        self,
        queries: Sequence[Query],
        scored: Sequence[tuple[Ints, Floats]],
        found: Sequence[Distilled] | None = None,
    ) -> Iterator[Board]:
        """What may be edited of each query's distilled set (`found`, else distilled here)."""
        texts = [self_keyword(query.text) for query in queries]
        rows = [self._row(query) for query in queries]
        sets = found or [
            self._distil(query, *one) for query, one in zip(queries, scored, strict=True)
        ]
        asked = [
            Asked(
                items,
                p,
                self.ranker.multiplier * float(p.sum()),
                one.keywords,
                self.keywords.owners(text, anchors=row < 0),
                self.keywords.ids.get(text, -1),
            )
            for text, row, (items, p), one in zip(texts, rows, scored, sets, strict=True)
        ]
        batch = self.index.batch(texts, rows)
        yield from boards(self.evidence, self.keywords.writable, batch, asked)

    def _distil(self, query: Query, items: Ints, p: Floats, share: float = 1.0) -> Distilled:
        # A training query's own anchor is owned by what is relevant to it: it must neither be
        # chosen nor be counted on.
        literal = self_keyword(query.text)
        number = self.keywords.ids.get(literal)
        dense = np.zeros(self.index.n_items)
        dense[items] = p
        return distil(
            dense,
            self.keywords.writable,
            limit=K_MAX,
            expected_relevant=share * self.ranker.multiplier * float(p.sum()),
            forced=self.keywords.owners(literal, anchors=self._row(query) < 0),
            banned=() if number is None else (number,),
        )

    def item_keywords(self, item: Item) -> list[str]:
        """S_i. An item that the fit has not seen, or that changed, gets the known phrases of its
        text, rarest first.
        """
        number = self._items.get(item.id)
        if number is not None and self.digests[number] == item_digest(item):
            return self.keywords.of(number)
        stems = self.index.analyser.stems(item_text(item))
        owners = np.diff(self.keywords.writable.keyword_starts)
        known = {
            self._phrases[phrase]
            for phrase in phrases(stems, PHRASE_WORDS)
            if phrase in self._phrases
        }
        ordered = sorted(known, key=lambda keyword: (owners[keyword], keyword))
        title = self_keyword(item.title)
        return [
            word
            for word in (self.keywords.keywords[keyword] for keyword in ordered)
            if word != title
        ][:PHRASES]


def exact_cut_run(artefact: Artefact, queries: Sequence[Query]) -> dict[str, list[str]]:
    """Query id -> ids of the items that the ranker retrieves by its own cut, best first: what the
    keywords distil.
    """
    return {id_: ranking[:cut] for id_, ranking, cut in rankings(artefact, queries)}


def rankings(artefact: Artefact, queries: Sequence[Query]) -> Iterator[tuple[str, list[str], int]]:
    """(query id, ids of its candidates, best first, how many of them the ranker's own cut takes) of
    each query.
    """
    for query, (items, p) in zip(queries, artefact.probabilities(queries), strict=True):
        cut, _ = exact_cut(p, artefact.ranker.multiplier * float(p.sum()))
        order = np.argsort(-p, kind="stable")
        yield query.id, [artefact.item_ids[item] for item in items[order]], len(cut)
