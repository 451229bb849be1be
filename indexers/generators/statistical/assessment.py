"""What a fit says of itself: how sure its answers may be, and the choice between keywords, text
search and both.

Confidence is calibrated on training queries, which are answered out of fold: once with all other
labels, and once without the labels of similar queries (`unseen`), where a ranker errs most. The
blend with text search is chosen on the same queries (`choose_blend`). `cogr.snapshots.Blend.mode`
applies it to a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from cogr.metrics import f1_of, reliability
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.calibration import calibrate, out_of_sample
from indexers.generators.statistical.keyword_selection import Floats, Ints
from indexers.generators.statistical.ranking.features import candidates
from indexers.generators.statistical.ranking.matrices import Csr, unit_rows
from indexers.generators.statistical.ranking.matrices import Floats as Floats32
from indexers.generators.statistical.ranking.ranker import Ranker
from indexers.generators.statistical.ranking.text_index import K1, TextIndex
from indexers.generators.statistical.ranking.training_queries import FeatureSources

SAMPLE = 250
"""Training queries of each kind (with and without the labels of similar queries) in the sample."""

ALIKE = 0.2
"""Training queries are similar when the cosines of their words and of their relevant items add up
to this.
"""

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
        sources = FeatureSources.of(index, [texts[row] for row in kept], relevance[kept])
        pairs = candidates(sources, index.batch([texts[row] for row in held]))
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
    """The blend for queries whose nDCG@10 in each mode is known; `Blend.mode` applies it.

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
