"""What a fit says of itself: how sure its answers may be.

Confidence is calibrated on training queries, which are answered out of fold: once with all other
labels, and once without the labels of similar queries (`unseen`), where a ranker errs most.
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
from indexers.generators.statistical.ranking.text_index import TextIndex
from indexers.generators.statistical.ranking.training_queries import FeatureSources

SAMPLE = 250
"""Training queries of each kind (with and without the labels of similar queries) in the sample."""

ALIKE = 0.2
"""Training queries are similar when the cosines of their words and of their relevant items add up
to this.
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
    others = np.setdiff1d(np.arange(alike.size), held)
    ordered = others[np.argsort(alike[others], kind="stable")]
    below = int((alike[others] < ALIKE).sum())
    kept: Ints = np.sort(ordered[: max(below, (others.size + 1) // 2)])
    return kept


def assess(artefact: Artefact, seed: int) -> dict[str, object]:
    """Calibration and its reliability, for the facts of a fit.

    Args:
        artefact: fitted, without calibration.
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
    expected: list[float] = []
    f1: list[float] = []
    for number, (items, p) in enumerate(found):
        at = number % rows.size
        spelled = (artefact if number < rows.size else plain).spell(queries[at], items, p)
        start, end = relevance.indptr[rows[at]], relevance.indptr[rows[at] + 1]
        relevant = relevance.indices[start:end]
        hits = np.isin(spelled.retrieved, relevant).sum()
        expected.append(spelled.value)
        f1.append(f1_of(float(hits), spelled.retrieved.size, relevant.size))
    return _facts(np.array(expected), np.array(f1), seed)


def _facts(expected: Floats, f1: Floats, seed: int) -> dict[str, object]:
    half = expected.size // 2
    tested = out_of_sample(expected, f1, seed)
    line = calibrate(expected, f1)
    return {
        "calibration": [line.intercept, line.slope],
        "reliability": reliability(tested, f1),
        "reliability_unseen": reliability(tested[half:], f1[half:]),
        "f1_out_of_fold": round(float(f1[:half].mean()), 4),
        "f1_unseen": round(float(f1[half:].mean()), 4),
    }
