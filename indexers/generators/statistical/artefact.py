"""The fitted state: everything that gives an item or an unseen query its keywords, and the
confidence of an answer.

Saved by `storage`, made by `fitting`. The expected F1 of a selected set is already an estimate of
its F1. A line through its logit, and how near the labels are, straighten it (`Calibration`);
`fitting` fits the line on training queries, as they are and as if their topics had no labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from typing import Any, Protocol

import numpy as np
from scipy.optimize import minimize

from cogr.keywords import folded, parse, self_keyword
from cogr.metrics import f1_of
from cogr.records import Item, Query
from indexers.generators import Completion
from indexers.generators.statistical.item_keywords import (
    PHRASE_WORDS,
    PHRASES,
    TITLE,
    ItemKeywords,
)
from indexers.generators.statistical.keyword_selection import Floats64, Selection, select_keywords
from indexers.generators.statistical.keyword_weights import ScoredIndex
from indexers.generators.statistical.ranking.features import candidates
from indexers.generators.statistical.ranking.matrices import Csr, Floats, Ints
from indexers.generators.statistical.ranking.ranker import Ranker
from indexers.generators.statistical.ranking.text_index import TextIndex, item_text
from indexers.generators.statistical.ranking.training_queries import TrainingQueries
from indexers.text import CodeIndex, phrases

MAX_NAMED, MIN_DIGITS, BEGUN = 20, 3, 0.75
"""A part number counts only with at least `MIN_DIGITS` digits ("rush hour 2" has too few) and at
most `MAX_NAMED` items; items whose number merely begins with it get p = `BEGUN`.
"""

PRIOR = 4.0
"""Weight, in queries, of the prior that confidence equals expected F1."""


def logit(value: Floats64, least: float = 0.05) -> Floats64:
    """ln(value / (1 - value)), of values clipped to least ... 1 - least."""
    clipped = np.clip(value, least, 1 - least)
    logits: Floats64 = np.log(clipped / (1 - clipped))
    return logits


@dataclass(frozen=True)
class Calibration:
    """Confidence from expected F1 and the mixer: a logistic regression on the logits of both.

    Attributes:
        known: coefficient of the mixer's logit, whether the labels know a query's topic.
    """

    intercept: float = 0.0
    slope: float = 1.0
    known: float = 0.0

    def __call__(self, expected: Floats64, known: Floats64 | float = 0.0) -> Floats64:
        """The calibrated probability, in (0, 1)."""
        logits = self.intercept + self.slope * logit(expected) + self.known * np.clip(known, *_SURE)
        sure: Floats64 = 1 / (1 + np.exp(-logits))
        return sure


_SURE = (-4.0, 4.0)
"""Logits of the mixer are clipped to these."""


def calibrate(expected: Floats64, f1: Floats64, known: Floats64 | float = 0.0) -> Calibration:
    """The line of highest likelihood, with a prior of no change (`PRIOR`); its slope is never
    negative.
    """
    x = np.stack([np.ones(expected.size), logit(expected), 0 * expected + np.clip(known, *_SURE)])
    none = np.array([0.0, 1.0, 0.0])

    def loss(line: Floats64) -> float:
        logits = line @ x
        pull = PRIOR / 2 * ((line - none) ** 2).sum()
        return float((np.logaddexp(0, logits) - f1 * logits).sum() + pull)

    bounds = [(-5, 5), (0.1, 5), (-5, 5)]
    best = minimize(loss, none, bounds=bounds, method="L-BFGS-B").x
    return Calibration(*(round(float(one), 4) for one in best))


K_MAX = 30


def item_digest(item: Item) -> str:
    """A digest of an item's text, by which a changed item is recognised."""
    return blake2b(
        f"{item.title}\0{item.text}".encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


@dataclass(frozen=True, slots=True)
class Spelled:
    """A query's ranking, spelled as keywords.

    Attributes:
        words: numbers of the keywords: the query's own text where it finds something, those that
            retrieve, those that only order.
        own: 1 where the own text is among them, else 0.
        weights: of each of the words; empty where all are 1.
        retrieved: items, ascending.
        value: expected F1, as `select_keywords` counts it.
    """

    words: tuple[int, ...]
    own: int
    weights: tuple[float, ...]
    retrieved: Ints
    value: float


class Evidence(Protocol):
    """Changes the p of a query's candidates, or adds some (`judge_evidence`, `stacking`)."""

    def __call__(self, query: Query, items: Ints, p: Floats) -> tuple[Ints, Floats]: ...


class PairEvidence(Evidence, Protocol):
    """Evidence of earlier pairs: queries for which they retrieve something have a multiplier and a
    calibration of their own.
    """

    @property
    def multiplier(self) -> float: ...
    @property
    def calibration(self) -> Calibration: ...
    @property
    def lineage(self) -> dict[str, object]: ...
    def retrieved(self, query: Query) -> Sequence[Ints]: ...


@dataclass
class Artefact:
    """A fitted ranker, an item index, and the rules that turn the ranker's results into keywords.
    Once made it does not change.

    Attributes:
        queries: the training queries, their texts `folded`.
        relevance: 0/1, (training queries, items).
        item_ids: ids, in the order of the rows of `index`.
        judged: what a judge said of known queries; None without one.
        stack: earlier pairs as evidence; None where there are none, or they gain nothing.
    """

    index: TextIndex
    queries: Sequence[Query]
    relevance: Csr
    ranker: Ranker
    keywords: ItemKeywords
    item_ids: Sequence[str]
    digests: Sequence[str]
    facts: Mapping[str, Any]
    judged: Evidence | None = None
    stack: PairEvidence | None = None

    def with_evidence(
        self, *, judged: Evidence | None = None, stack: PairEvidence | None = None
    ) -> Artefact:
        """A copy with this evidence too. What is computed already reads none, and is kept."""
        twin = copy(self)
        twin.judged, twin.stack = judged or self.judged, stack or self.stack
        return twin

    @cached_property
    def sources(self) -> TrainingQueries:
        return TrainingQueries(self.index, [query.text for query in self.queries], self.relevance)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {query.id: row for row, query in enumerate(self.queries)}

    @cached_property
    def _texts(self) -> dict[str, int]:
        return {query.text: row for row, query in reversed(list(enumerate(self.queries)))}

    def row_of(self, query: Query) -> int:
        """The query's row among the training queries; -1 for any other query, even one with the
        text of a training query.
        """
        row = self._rows.get(query.id, -1)
        same = row >= 0 and self_keyword(self.queries[row].text) == self_keyword(query.text)
        return row if same else -1

    def text_of(self, query: Query) -> str:
        """A query's text, `folded`; of a training query as it was fitted."""
        return self.queries[row].text if (row := self.row_of(query)) >= 0 else folded(query.text)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each item by its id."""
        return {item_id: number for number, item_id in enumerate(self.item_ids)}

    @cached_property
    def costs(self) -> Floats64:
        """The cost of each keyword by `READABILITY`, (keywords,)."""
        texts = (query.text for query in self.queries)
        return self.keywords.costs(self.index.analyser, texts, self.facts["readability"])

    @cached_property
    def _phrases(self) -> dict[tuple[str, ...], int]:
        phrases: dict[tuple[str, ...], int] = {}
        owners = np.diff(self.keywords.writable.keyword_starts)
        for number in np.flatnonzero(owners):
            stems = tuple(self.index.analyser.stems(self.keywords.keywords[number]))
            if len(stems) == PHRASE_WORDS:
                phrases.setdefault(stems, int(number))
        return phrases

    @cached_property
    def calibration(self) -> Calibration:
        """The map from expected F1 to confidence; the identity before it is fitted."""
        return Calibration(*self.facts.get("calibration", ()))

    @cached_property
    def scored(self) -> ScoredIndex:
        """The items' keywords as a search scores them."""
        unreadable = (self.costs > 0) & (self.costs >= self.facts["readability"])
        return ScoredIndex(self.keywords.all, self.keywords.writable, unreadable)

    def probabilities(self, queries: Sequence[Query]) -> list[tuple[Ints, Floats]]:
        """Candidates and their probabilities for each query (`scored_queries`)."""
        return self.scored_queries(queries)[0]

    def scored_queries(
        self, queries: Sequence[Query]
    ) -> tuple[list[tuple[Ints, Floats]], Floats64]:
        """Candidates and their probabilities for each query, and the mixer's logit of each.

        Training queries are answered out of fold. Another query with the text of a training query
        gets the mean of that query's out-of-fold probability and its labels: the ranker has never
        seen a query that votes for itself.
        """
        if not queries:
            return [], np.zeros(0)
        texts = [*map(self.text_of, queries)]
        trained = np.array([self.row_of(query) for query in queries])
        rows = np.where(trained >= 0, trained, [self._texts.get(text, -1) for text in texts])
        pairs = candidates(self.sources, self.index.batch(texts, rows.tolist()))
        p = self.ranker.probabilities(pairs, rows)
        scored = [(pairs.item[span], p[span]) for span in pairs.spans(len(queries))]
        known = np.zeros(len(queries))
        there, first = np.unique(pairs.query, return_index=True)
        known[there] = self.ranker.known(pairs.x[first])
        for number in np.flatnonzero((trained < 0) & (rows >= 0)):
            items, own_p = scored[number]
            scored[number] = self._with_labels(items, own_p, int(rows[number]))
        for number in np.flatnonzero(rows < 0):
            scored[number] = self._named(texts[number]) or scored[number]
        for evidence in (self.judged, self.stack):
            if evidence is not None:
                scored = [evidence(query, *one) for query, one in zip(queries, scored, strict=True)]
        return scored, known

    def _with_labels(self, items: Ints, p: Floats, row: int) -> tuple[Ints, Floats]:
        labelled = self.relevance[row].indices
        union = np.union1d(items, labelled)
        mean = np.zeros(union.size, dtype=np.float32)
        mean[np.searchsorted(union, items)] += p / 2
        mean[np.searchsorted(union, labelled)] += 0.5
        return union, mean

    @cached_property
    def _codes(self) -> CodeIndex:
        owned = self.keywords
        titles = np.flatnonzero(owned.kinds == TITLE)
        named = ((int(owned.items[at]), owned.keywords[owned.owned[at]]) for at in titles)
        return CodeIndex.of(chain(enumerate(self.item_ids), named))

    def _named(self, text: str) -> tuple[Ints, Floats] | None:
        # The items that a part number means: the labels know nothing of it.
        same, begun = self._codes.find(text)
        digits = sum(map(str.isdigit, text))
        if digits < MIN_DIGITS or not 0 < len(begun) <= MAX_NAMED:
            return None
        return begun, np.where(np.isin(begun, same), 1, BEGUN).astype(np.float32)

    def _dense(self, items: Ints, p: Floats) -> Floats64:
        dense = np.zeros(self.index.n_items)
        dense[items] = p
        return dense

    def query_keywords(self, queries: Sequence[Query]) -> list[list[str]]:
        """S_q for each query: at most 30 keywords, none of them the query's own text."""
        return [[*parse(answer.text)] for answer in self.answers(queries)]

    def answers(self, queries: Sequence[Query]) -> list[Completion]:
        """S_q for each query, keywords that retrieve and then those that only order, and their
        weights and confidence.
        """
        scored, known = self.scored_queries(queries)
        return [
            self._answer(query, *selection, float(near))
            for query, selection, near in zip(queries, scored, known, strict=True)
        ]

    def _answer(self, query: Query, items: Ints, p: Floats, known: float) -> Completion:
        spelled = self.spell(query, items, p)
        words = [self.keywords.keywords[number] for number in spelled.words]
        return Completion(
            query.id,
            ", ".join(words[spelled.own :]),
            weights=dict(zip(words, spelled.weights, strict=bool(spelled.weights))),
            confidence=round(
                float(self._scale(query).calibration(np.array(spelled.value), known)), 4
            ),
        )

    def _scale(self, query: Query) -> PairEvidence | Artefact:
        """What has the multiplier and the calibration of a query."""
        return self.stack if self.stack and self.stack.retrieved(query) else self

    @property
    def multiplier(self) -> float:
        return self.ranker.multiplier

    def expected_relevant(self, query: Query, p: Floats) -> float:
        """How many items are expected to be relevant to a query, by the p of its candidates."""
        return self._scale(query).multiplier * float(p.sum())

    def spell(self, query: Query, items: Ints, p: Floats) -> Spelled:
        """Keywords for these candidates and their probabilities, with weights."""
        own = self_keyword(query.text)
        number = self.keywords.ids.find(own)
        owners = self.keywords.owners(own, anchors=self.row_of(query) < 0)
        selection = self.selected(query, items, p)
        retrieved = self.keywords.writable.covered(selection.keywords, owners)
        # A text keeps weight 1 when it finds nothing, or only the training query's own anchors.
        words = [*([number] if owners.size else []), *selection.keywords]
        ordering, weights = self.scored.order(
            retrieved,
            self._dense(items, p)[retrieved],
            words,
            own=(number, owners),
            limit=K_MAX - len(selection.keywords),
        )
        return Spelled(
            (*words, *ordering),
            int(owners.size > 0),
            weights,
            retrieved,
            selection.value,
        )

    def f1_of(
        self, queries: Sequence[Query], selections: Sequence[Selection], relevant: Sequence[Ints]
    ) -> tuple[Floats64, Floats64]:
        """Expected and true F1 of what these keywords of each query retrieve, (queries,) each."""
        f1 = np.zeros(len(queries))
        for at, (query, one, wanted) in enumerate(zip(queries, selections, relevant, strict=True)):
            owners = self.keywords.owners(self_keyword(query.text), anchors=self.row_of(query) < 0)
            retrieved = self.keywords.writable.covered(one.keywords, owners)
            hits = float(np.isin(retrieved, wanted).sum())
            f1[at] = f1_of(hits, retrieved.size, wanted.size)
        return np.array([one.value for one in selections]), f1

    def selected(
        self, query: Query, items: Ints, p: Floats, banned: Sequence[int] = ()
    ) -> Selection:
        """The keywords that retrieve, without `banned` ones."""
        # A training query's own anchor belongs to exactly its relevant items, so it must be neither
        # chosen nor counted.
        literal = self_keyword(query.text)
        number = self.keywords.ids.find(literal)
        return select_keywords(
            self._dense(items, p),
            self.keywords.writable,
            limit=K_MAX,
            expected_relevant=self.expected_relevant(query, p),
            forced=self.keywords.owners(literal, anchors=self.row_of(query) < 0),
            banned=banned if number < 0 else (*banned, number),
            costs=self.costs,
        )

    def item_keywords(self, item: Item) -> list[str]:
        """S_i. An item that the fit has not seen, or that changed, gets the known phrases of its
        text, rarest first.
        """
        number = self.numbers.get(item.id)
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
        title, spelled = self_keyword(item.title), [self.keywords.keywords[one] for one in ordered]
        return [word for word in spelled if word != title][:PHRASES]
