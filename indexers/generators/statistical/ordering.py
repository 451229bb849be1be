"""The order of the items within a retrieved set, the confidence of a query's keywords, and the
choice between keywords, text search and both.

BM25 gives every rare keyword a high idf, good or not. A search can boost each keyword by a weight,
which multiplies its idf. Non-negative least squares fits the weights, so that the scores of the
retrieved items come near to the ranker's probabilities. Where the chosen keywords don't separate
the best items, keywords that retrieve nothing new are added. Neither changes the retrieved set or
its F1.

The expected F1 of a distilled set is already an estimate of its F1. It is calibrated on training
queries, which are answered out of fold: once with all other labels, and once without the labels of
similar queries (`unseen`), where a ranker errs most. The blend with text search is chosen on the
same queries.

`distillation` decides which items a query retrieves; `cogr.snapshots.Blend` defines the blend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls

from cogr.matching.bm25 import DEFAULT, length_codes, mean_length, norm_table
from cogr.matching.mirror import Mirror
from cogr.metrics import f1_of, reliability
from indexers.generators.statistical.distillation import Floats, Ints, Ownership, slices
from indexers.generators.statistical.ranking.evidence import Evidence
from indexers.generators.statistical.ranking.features import candidates
from indexers.generators.statistical.ranking.matrices import Csr, unit_rows
from indexers.generators.statistical.ranking.matrices import Floats as Floats32
from indexers.generators.statistical.ranking.ranker import Ranker
from indexers.generators.statistical.ranking.text_index import K1, TextIndex

if TYPE_CHECKING:
    from indexers.generators.statistical.artefact import Artefact

SCORE = 10.0
"""The target score of an item of probability 1; others in proportion."""

LEAST, MOST, DIGITS = 0.001, 1000.0, 4
"""Bounds of a weight, and its significant digits. No weight is 0, so that the retrieved set stays.
"""

PAGE = 10
"""Ordering keywords are taken from the keywords of this many best items."""

SHARED = 3.0
"""Factor by which a keyword of two or more items is preferred to one of a single item, such as a
title: new items may have it too.
"""

ENOUGH = 0.003
"""No ordering keyword is added once this share of the target's squares or less is left."""

USEFUL = 0.03
"""An ordering keyword must explain this share of `ENOUGH`."""

RIDGE = 0.01
"""Ridge penalty towards equal weights, as a share of the columns' mean length. It decides between
keywords that the same retrieved items have.
"""

ROWS = 1000
"""Most items that weights are fitted to: the most probable ones of larger sets."""


@dataclass(frozen=True)
class Order:
    """Weights and ordering keywords that order a retrieved set.

    Attributes:
        keywords: ordering keywords, in the order of choice; all their owners are in the set.
        weights: of the query's keywords as they were given, then of the ordering keywords; empty
            when p says nothing about the set, and every keyword weighs 1.
    """

    keywords: tuple[int, ...]
    weights: tuple[float, ...]


class ScoredIndex:
    """The items' keywords with the scores that BM25 gives them in a search of these items.

    Args:
        ownership: every item's keywords, its own text among them.
        usable: the keywords that a completion can write, with the same owners.
        unreadable: whether each keyword is unreadable (`ItemKeywords.costs`) and so may not order;
            None: all may.
    """

    def __init__(
        self, ownership: Ownership, usable: Ownership, unreadable: NDArray[np.bool_] | None = None
    ) -> None:
        self.ownership, self.usable, self.unreadable = ownership, usable, unreadable

    @cached_property
    def _gains(self) -> Floats:
        """Score of an item that has a keyword, by the item's length alone: score = boost x idf x
        gain.
        """
        lengths = np.diff(self.ownership.item_starts)
        mean = mean_length(int(lengths.sum()), lengths.size)
        norms = norm_table(DEFAULT, mean)[length_codes(lengths)].astype(np.float64)
        return 1 - 1 / (1 + norms)

    @cached_property
    def _idf(self) -> Floats:
        """As `cogr.matching.bm25.idf`, of all keywords."""
        df = np.diff(self.ownership.keyword_starts)
        return np.log1p((self.ownership.n_items - df + 0.5) / (df + 0.5))

    def parts(self, items: Ints, words: Ints, owners: Sequence[Ints]) -> Floats:
        """Score of each item by each keyword at weight 1, (items, words).

        Args:
            items: ascending.
            words: numbers of keywords.
            owners: the owners of each; those beyond `items` are passed over.
        """
        found = np.zeros((items.size, words.size))
        for column, (word, owning) in enumerate(zip(words, owners, strict=True)):
            here = np.isin(items, owning, assume_unique=True)
            found[here, column] = self._idf[word] * self._gains[items[here]]
        return found

    def order(
        self, items: Ints, p: Floats, words: Sequence[int], *, own: tuple[int, Ints], limit: int
    ) -> Order:
        """Weights for a query's keywords, and ordering keywords beside them.

        Args:
            items: the retrieved set, ascending.
            p: relevance of each of them.
            words: the query's keywords, with or without its own text.
            own: the query's own text as a keyword (-1: no item has it) and the items that it finds.
                It is never an ordering keyword.
            limit: ordering keywords at most.
        """
        if not items.size or not words:
            return Order((), ())
        given = np.array(words, dtype=np.int64)
        owners = [own[1] if word == own[0] else self.ownership.owners(word) for word in words]
        best = np.argsort(-p, kind="stable")
        rows_at = np.sort(best[:ROWS])
        target = SCORE * p[rows_at]
        parts = self.parts(items[rows_at], given, owners)
        if not target.sum() or not parts.sum():
            return Order((), ())
        candidates, columns = self._candidates(items, rows_at, best[:PAGE], {*words, own[0]})
        chosen, weights = _pursuit(parts, columns, target, limit)
        return Order(tuple(int(word) for word in candidates[chosen]), _rounded(weights))

    def _candidates(
        self, items: Ints, rows: Ints, best: Ints, taken: set[int]
    ) -> tuple[Ints, Floats]:
        """Keywords of the best items whose every owner is in the set, without those taken already,
        and the score that each gives to the items at `rows`, (rows, keywords).
        """
        words = np.unique(np.concatenate([self.usable.keywords(item) for item in items[best]]))
        words = words[~np.isin(words, np.fromiter(taken, np.int64, len(taken)))]
        if self.unreadable is not None:
            words = words[~self.unreadable[words]]
        starts = self.usable.keyword_starts
        words = words[starts[words + 1] - starts[words] <= items.size]
        sizes = starts[words + 1] - starts[words]
        owners = slices(self.usable.by_keyword, starts, words)
        at = np.minimum(np.searchsorted(items, owners), items.size - 1)
        column = np.repeat(np.arange(words.size), sizes)
        inside = np.bincount(column, items[at] == owners, minlength=words.size) == sizes
        of_row = np.full(items.size, -1)
        of_row[rows] = np.arange(rows.size)
        kept = inside[column] & (of_row[at] >= 0)
        found = np.zeros((rows.size, words.size))
        scores = self._idf[words[column]] * self._gains[owners]
        found[of_row[at[kept]], column[kept]] = scores[kept]
        return words[inside], found[:, inside]


def _pursuit(
    parts: Floats, columns: Floats, target: Floats, limit: int
) -> tuple[list[int], Floats]:
    """Orthogonal matching pursuit with non-negative weights: columns that explain the rest of the
    target beyond the parts, and the weights of parts and columns together.
    """
    norms = np.maximum(np.sqrt((columns**2).sum(axis=0)), 1e-12)
    shared = np.where((columns > 0).sum(axis=0) > 1, SHARED, 1.0)
    enough = ENOUGH * float(target @ target)
    chosen: list[int] = []
    used = parts
    weights = least_squares(used, target)
    while len(chosen) < min(limit, columns.shape[1]):
        left = target - used @ weights
        gains = columns.T @ left / norms
        gains[chosen] = 0
        best = int((gains * shared).argmax())
        if left @ left <= enough or max(gains[best], 0) ** 2 <= USEFUL * enough:
            break
        chosen.append(best)
        used = np.column_stack([parts, columns[:, chosen]])
        weights = least_squares(used, target)
    return chosen, weights


def least_squares(parts: Floats, target: Floats) -> Floats:
    """Weights >= 0 of the columns whose weighted sum comes nearest to the target, (columns,).

    Ridge regression towards the single weight with which the columns have the target's sum.
    """
    level = target.sum() / max(float(parts.sum()), 1e-12)
    pull = RIDGE * np.sqrt((parts**2).sum() / parts.shape[1])
    rows = np.vstack([parts, pull * np.eye(parts.shape[1])])
    weights: Floats = nnls(rows, np.append(target, np.full(parts.shape[1], pull * level)))[0]
    return weights


def _rounded(weights: Floats) -> tuple[float, ...]:
    return tuple(float(f"{weight:.{DIGITS}g}") for weight in np.clip(weights, LEAST, MOST))


def weights_in(mirror: Mirror, words: Sequence[str], p: Mapping[str, float]) -> dict[str, float]:
    """Weights for keywords from another generator, such as a language model. The retrieved set
    stays as it is.

    Args:
        mirror: of the items.
        words: the query's keywords, its own text among them, normalised.
        p: relevance by item id; 0 for items that it lacks.

    Returns:
        Keyword -> weight, of the keywords that retrieve something. Empty when p is 0 for the whole
        set: every keyword then weighs 1.
    """
    found = {word: mirror.scores([word]) for word in dict.fromkeys(words)}
    found = {word: scored for word, scored in found.items() if scored[0].size}
    if not found:
        return {}
    items = np.unique(np.concatenate([dense for dense, _ in found.values()]))
    target = SCORE * np.array([p.get(mirror.id_of(item), 0.0) for item in items.tolist()])
    if not target.sum():
        return {}
    parts = np.zeros((items.size, len(found)))
    for column, (dense, scores) in enumerate(found.values()):
        parts[np.searchsorted(items, dense), column] = scores
    rows = np.sort(np.argsort(-target, kind="stable")[:ROWS])
    return dict(zip(found, _rounded(least_squares(parts[rows], target[rows])), strict=True))


SAMPLE = 250
"""Training queries of each kind (with and without the labels of similar queries) in the sample."""

ALIKE = 0.2
"""Training queries are similar when the cosines of their words and of their relevant items add up
to this.
"""

PRIOR = 4.0
"""Weight, in queries, of the prior that confidence equals expected F1."""

TEXT_BOOSTS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 4.0)
"""Boosts of the text's score that are tried. An item of probability 1 scores 10 by its keywords."""

USUAL_BOOST = 0.2
"""The default boost; another one must be better by more than its standard error."""

NEVER = 1.01
"""A threshold above every confidence."""

TEXT_DEPTH = 100
"""Items of the text search whose recall is measured."""

WORTH = 0.005
"""Losses of nDCG@10 and R@100, standard error included, up to which keywords alone are preferred to
keywords with text: their set is smaller.
"""


def logit(value: Floats) -> Floats:
    """ln(value / (1 - value)), of values clipped to 0.01 ... 0.99."""
    clipped = np.clip(value, 0.01, 0.99)
    logits: Floats = np.log(clipped / (1 - clipped))
    return logits


@dataclass(frozen=True)
class Calibration:
    """Confidence from expected F1: a line through its logit."""

    intercept: float = 0.0
    slope: float = 1.0

    def __call__(self, expected: Floats) -> Floats:
        """In (0, 1)."""
        sure: Floats = 1 / (1 + np.exp(-(self.intercept + self.slope * logit(expected))))
        return sure


def calibrate(expected: Floats, f1: Floats) -> Calibration:
    """The line of highest likelihood, with a prior of no change (`PRIOR`); its slope is never
    negative.
    """
    x = logit(expected)

    def loss(line: Floats) -> float:
        logits = line[0] + line[1] * x
        pull = PRIOR / 2 * (line[0] ** 2 + (line[1] - 1) ** 2)
        return float((np.logaddexp(0, logits) - f1 * logits).sum() + pull)

    found = minimize(loss, np.array([0.0, 1.0]), bounds=[(-5, 5), (0.1, 5)], method="L-BFGS-B").x
    return Calibration(round(float(found[0]), 4), round(float(found[1]), 4))


def out_of_sample(expected: Floats, f1: Floats, seed: int) -> Floats:
    """Confidence of each query by a calibration on four fifths of the others."""
    folds = np.random.default_rng(seed).permutation(expected.size) % 5
    found = np.zeros(expected.size)
    for fold in range(5):
        held = folds == fold
        found[held] = calibrate(expected[~held], f1[~held])(expected[held])
    return found


def unseen(
    index: TextIndex, texts: Sequence[str], relevance: Csr, ranker: Ranker, rows: Ints
) -> Iterator[tuple[Ints, Floats32]]:
    """Candidates and p of training queries, as if no similar query had labels.

    Neither they nor similar queries vote, and the model that answers was not trained on them. A
    fifth of the queries is left out at a time, and with it at most half of the others.
    """
    batch = index.batch(texts, range(len(texts)))
    words, found = unit_rows(batch.terms.multiply(index.idf).tocsr()), unit_rows(relevance)
    for held in np.array_split(rows, max(1, round(5 * rows.size / len(texts)))):
        alike = words[held] @ words.T + found[held] @ found.T
        kept = _unlike(np.asarray(alike.max(axis=0).todense()).ravel(), held)
        evidence = Evidence.of(index, [texts[row] for row in kept], relevance[kept])
        pairs = candidates(evidence, index.batch([texts[row] for row in held]))
        p = ranker.probabilities(pairs, held)
        bounds = pairwise(np.searchsorted(pairs.query, np.arange(held.size + 1)))
        yield from ((pairs.item[a:b], p[a:b]) for a, b in bounds)


def _unlike(alike: Floats, held: Ints) -> Ints:
    """Rows below `ALIKE`, and always the less similar half of those that are not held out."""
    others = np.setdiff1d(np.arange(alike.size), held)
    ordered = others[np.argsort(alike[others], kind="stable")]
    below = int((alike[others] < ALIKE).sum())
    kept: Ints = np.sort(ordered[: max(below, (others.size + 1) // 2)])
    return kept


def assess(artefact: Artefact, seed: int) -> dict[str, object]:
    """Calibration, its reliability and the blend, for the facts of a fit.

    Args:
        artefact: fitted, without calibration and blend.
        seed: of the sample and of the reliability's folds.
    """
    index, relevance = artefact.index, artefact.relevance
    known = np.flatnonzero((artefact.ranker.folds >= 0) & (np.diff(relevance.indptr) > 0))
    rows = np.sort(np.random.default_rng(seed).permutation(known)[:SAMPLE])
    queries = [artefact.queries[row] for row in rows]
    texts = [query.text for query in artefact.queries]
    found: list[tuple[Ints, Floats32]] = [
        *artefact.probabilities(queries),
        *unseen(index, texts, relevance, artefact.ranker, rows),
    ]
    # Edits would learn from the labels of similar queries.
    plain = replace(artefact, editor=None)
    text = (index.batch([texts[row] for row in rows]).terms @ index.bm25 / (K1 + 1)).tocsr()
    expected: list[float] = []
    f1: list[float] = []
    values: list[list[float]] = []
    for number, (items, p) in enumerate(found):
        at = number % rows.size
        spelled = (artefact if number < rows.size else plain).spell(queries[at], items, p)
        start, end = relevance.indptr[rows[at]], relevance.indptr[rows[at] + 1]
        relevant = relevance.indices[start:end]
        hits = np.isin(spelled.retrieved, relevant).sum()
        scores = artefact.scores(queries[at], spelled)
        expected.append(spelled.value)
        f1.append(f1_of(float(hits), spelled.retrieved.size, relevant.size))
        values.append(modes(spelled.retrieved, scores, text[at], relevant))
    return _facts(np.array(expected), np.array(f1), np.array(values), seed)


def _facts(expected: Floats, f1: Floats, values: Floats, seed: int) -> dict[str, object]:
    half = expected.size // 2
    tested = out_of_sample(expected, f1, seed)
    line = calibrate(expected, f1)
    return {
        "calibration": [line.intercept, line.slope],
        "reliability": reliability(tested, f1),
        "reliability_unseen": reliability(tested[half:], f1[half:]),
        "f1_out_of_fold": round(float(f1[:half].mean()), 4),
        "f1_unseen": round(float(f1[half:].mean()), 4),
        "blend": choose_blend(values, line(expected)),
    }


def modes(retrieved: Ints, scores: Floats | Floats32, text: Csr, relevant: Ints) -> list[float]:
    """R@100 of keywords alone less that of text alone; nDCG@10 of text alone, of keywords alone,
    and of both at each of `TEXT_BOOSTS`.

    Args:
        retrieved: items that the keywords find, ascending.
        scores: of these, by weighted keywords.
        text: BM25 over the items' text, (1, items).
        relevant: items.
    """
    best = np.argsort(-text.data, kind="stable")[:TEXT_DEPTH]
    items = np.union1d(retrieved, text.indices[best])
    by_text, by_keywords = np.zeros(items.size), np.zeros(items.size)
    here = np.isin(text.indices, items)
    by_text[np.searchsorted(items, text.indices[here])] = text.data[here]
    by_keywords[np.searchsorted(items, retrieved)] = scores
    gains = np.isin(items, relevant).astype(float)
    both = [by_keywords + boost * by_text for boost in TEXT_BOOSTS]
    more = (_hits(by_keywords, gains) - _hits(by_text, gains)) / max(relevant.size, 1)
    return [more, *(ndcg(scored, gains, relevant.size) for scored in (by_text, by_keywords, *both))]


def _hits(scores: Floats, gains: Floats) -> float:
    """Relevant items among the `TEXT_DEPTH` best."""
    best = np.argsort(-scores, kind="stable")[:TEXT_DEPTH]
    return float((gains[best] * (scores[best] > 0)).sum())


def ndcg(scores: Floats, gains: Floats, relevant: int, k: int = 10) -> float:
    """nDCG@10 of the items with a score above 0; of equal scores the lower item first."""
    order = np.argsort(-scores, kind="stable")[:k]
    discounts = 1 / np.log2(np.arange(2, k + 2))
    found = gains[order] * (scores[order] > 0)
    ideal = discounts[: min(k, relevant)].sum()
    return float(found @ discounts[: order.size] / ideal) if ideal else 0.0


def choose_blend(values: Floats, confidence: Floats) -> dict[str, float]:
    """The blend for queries whose nDCG@10 in each mode is known.

    Keywords and text are combined, with two exceptions: text alone where it is better by more than
    two standard errors, and keywords alone where they are about as good and lose no recall against
    text, since their set is smaller and mostly right.

    Args:
        values: as of `modes`, (2 x queries, modes): all queries as they are, then all as if unseen.
        confidence: of each of these.
    """
    recall, text, keywords, every = values[:, 0], values[:, 1], values[:, 2], values[:, 3:]
    usual = TEXT_BOOSTS.index(USUAL_BOOST)
    best = int(every.mean(axis=0).argmax())
    best = best if _least(every[:, best] - every[:, usual]) > 0 else usual
    both = every[:, best]
    cuts = np.unique(np.round(np.quantile(confidence, np.linspace(0, 1, 21)), 4))
    below, gain = 0.0, 0.0
    for cut in cuts[1:]:
        least = _least(np.where(confidence < cut, text - both, 0), errors=2)
        if least > gain:
            below, gain = float(cut), least
    above = NEVER
    for cut in cuts[::-1]:
        sure = confidence >= cut
        losses = [_least(np.where(sure, gains, 0)) for gains in (keywords - both, recall)]
        if cut < below or min(losses) < -WORTH:
            break
        above = float(cut)
    return {"keywords_from": above, "text_below": below, "text_boost": TEXT_BOOSTS[best]}


def _least(gains: Floats, errors: float = 1) -> float:
    """The mean less `errors` standard errors. Each query has two values, which count as one
    observation.
    """
    gains = gains.reshape(2, -1).mean(axis=0)
    return float(gains.mean() - errors * gains.std(ddof=1) / np.sqrt(gains.size))
