"""How sure an answer is, and what answers where it is not: keywords, text search, or both.

The expected F1 of a distilled set is already an estimate of its F1. It is calibrated on training
queries, which are answered out of fold: once as they are, and once as if nobody had labelled
anything like them (`unseen`), since a ranker errs most where labels say nothing. On the same
queries the blend with text search is chosen.

Not here: the search. What a blend means stands at `cogr.snapshots.Blend`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize

from cogr.metrics import reliability
from indexers.generators.statistical.distillation import Floats, Ints
from indexers.generators.statistical.ranking.evidence import Evidence
from indexers.generators.statistical.ranking.features import candidates
from indexers.generators.statistical.ranking.matrices import Csr, unit_rows
from indexers.generators.statistical.ranking.matrices import Floats as Floats32
from indexers.generators.statistical.ranking.ranker import Ranker
from indexers.generators.statistical.ranking.text_index import K1, TextIndex

if TYPE_CHECKING:
    from indexers.generators.statistical.artefact import Artefact

SAMPLE = 250
"""Training queries of each kind that are looked at."""

ALIKE = 0.2
"""Training queries are alike when the cosines of their words and of their relevant items add up to
this.
"""

PRIOR = 4.0
"""Queries that the calibration must outweigh: it starts from the expected F1 as it is."""

TEXT_BOOSTS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 4.0)
"""Weights of the text's score that are tried. Keywords are weighed so that a certain item scores
10.
"""

USUAL_BOOST = 0.2
"""The weight that another one must beat by more than its standard error."""

NEVER = 1.01
"""A threshold above every confidence."""

TEXT_DEPTH = 100
"""Items of the text search that are looked at."""

WORTH = 0.005
"""nDCG@10 and R@100 that keywords alone may lose, standard error included, for a set without the
rest that words bring along.
"""


def logit(value: Floats) -> Floats:
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
    """The line of highest likelihood, with a pull towards none (`PRIOR`); its slope is never
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
    """Candidates and p of training queries, as if there were no labels for anything like them.

    Neither they nor queries alike have a vote, and the model that answers has not been trained on
    them. Queries are left out a fifth at a time, and with them at most half of the others.
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
    """Rows below `ALIKE`, and in any case the less alike half of those that are not held out."""
    others = np.setdiff1d(np.arange(alike.size), held)
    ordered = others[np.argsort(alike[others], kind="stable")]
    below = int((alike[others] < ALIKE).sum())
    kept: Ints = np.sort(ordered[: max(below, (others.size + 1) // 2)])
    return kept


def assess(artefact: Artefact, seed: int) -> dict[str, object]:
    """Calibration, its reliability and the blend, for the facts of a fit.

    Args:
        artefact: fitted but for these.
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
    # Edits would hear the labels of queries alike.
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
        f1.append(2 * hits / (spelled.retrieved.size + relevant.size))
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

    Both answer, unless text alone is better by more than two standard errors, or keywords alone are
    about as good and lose no recall against text: their set is smaller, and most of it is right.

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
    """The mean less so many standard errors. Each query is there twice, and counts once."""
    gains = gains.reshape(2, -1).mean(axis=0)
    return float(gains.mean() - errors * gains.std(ddof=1) / np.sqrt(gains.size))
