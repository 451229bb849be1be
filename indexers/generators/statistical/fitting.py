"""Fitting: a data set with relevance labels in, an artefact out, and what it says of itself.

Reads the training queries only; dev and test queries are never looked at. Confidence is calibrated
on training queries, which are answered out of fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cogr.datasets.builder import place
from cogr.errors import GeneratorError
from cogr.keywords import NORMALISER, self_keyword
from cogr.records import Dataset, Query
from indexers.generators.statistical import LEAST_QUERIES, READABILITY
from indexers.generators.statistical.artefact import (
    K_MAX,
    Artefact,
    calibrate,
    item_digest,
)
from indexers.generators.statistical.edits import LEAST_QUERIES as LEAST_EDITED
from indexers.generators.statistical.edits import (
    MOST_KEYWORDS,
    MOST_QUERIES,
    Editor,
    EditState,
    fit_editor,
)
from indexers.generators.statistical.item_keywords import (
    assemble,
    item_anchors,
    item_phrases,
)
from indexers.generators.statistical.ranking.encoder import Encoder
from indexers.generators.statistical.ranking.features import CandidatePairs, candidates
from indexers.generators.statistical.ranking.matrices import Csr, Floats, Ints
from indexers.generators.statistical.ranking.ranker import Ranker, fit_cold, fit_ranker
from indexers.generators.statistical.ranking.text_index import (
    PairSignals,
    TextIndex,
    item_text,
)
from indexers.generators.statistical.ranking.training_queries import TrainingQueries
from indexers.text import Analyser

MAX_TRAINED = 3000
"""Most training queries that models are trained on, drawn at random; all training queries vote."""

HIDDEN_SHARE = 0.5
"""Share of the training queries whose clicks the fit hides, since new queries have none."""

_BATCH = 64


def fit(
    dataset: Dataset,
    *,
    language: str = "english",
    seed: int = 0,
    edits: bool = True,
    pair_signals: Sequence[str] = (),
    encoder: Encoder | None = None,
) -> Artefact:
    """Fit ranker and item keywords on the training queries of a data set.

    Args:
        dataset: items, training queries, relevance.
        language: Snowball algorithm for stems and stop words, see `indexers.text.Analyser`.
        seed: of sampling, folds and boosting; the same data and seed give the same artefact.
        edits: whether selected sets are edited, where that gains F1 out of fold.
        pair_signals: numbers of (query, item) pairs that the ranker learns from, such as clicks.
        encoder: text encoder whose vectors the ranker learns from.

    Raises:
        GeneratorError: too few training queries with relevant items, or no items; or no pair
            has a number under a signal's name.
    """
    relevance = _relevance(dataset)
    analyser = Analyser(language)
    queries = [Query(query.id, self_keyword(query.text)) for query in dataset.queries["train"]]
    texts = [query.text for query in queries]
    pair_numbers = PairSignals.read(dataset, pair_signals)
    index = TextIndex.fit(analyser, dataset.items, texts, encoder).seeing(
        pair_numbers.without(unclicked(queries, seed))
    )
    new = np.fromiter((item.id in dataset.new for item in dataset.items), np.bool_)
    training = _trained(index, texts, relevance, seed, new)
    anchored = item_anchors(texts, _anchor_strength(training))
    titles = [item.title for item in dataset.items]
    phrases = item_phrases([item_text(item) for item in dataset.items], analyser)
    keywords = assemble(anchored, phrases, titles)
    facts: dict[str, object] = {
        "dataset": dataset.dataset_hash,
        "normaliser": NORMALISER,
        "language": language,
        "seed": seed,
        "readability": READABILITY,
        "training_queries": len(queries),
        "items": len(dataset.items),
        "keywords": len(keywords.keywords),
        "multiplier": training.ranker.multiplier,
        "out_of_fold_exact_cut_f1": round(training.f1, 4),
    }
    ids, digests = [item.id for item in dataset.items], [item_digest(one) for one in dataset.items]
    artefact = Artefact(index, queries, relevance, training.ranker, keywords, ids, digests, facts)
    if edits and training.rows.size >= LEAST_EDITED:
        editor, facts["edits"] = _learned_edits(artefact, training, seed)
        artefact = artefact.changed(editor=editor)
    facts.update(assess(artefact, seed))
    return artefact.changed(index=index.seeing(pair_numbers))


@dataclass(frozen=True)
class _Training:
    """A ranker, the training queries that it was trained on (ascending rows of the relevance),
    their candidates, and p and F1 of the exact cuts out of fold.
    """

    sources: TrainingQueries
    rows: Ints
    pairs: CandidatePairs
    ranker: Ranker
    p: Floats
    f1: float


def _trained(
    index: TextIndex, texts: Sequence[str], relevance: Csr, seed: int, new: NDArray[np.bool_]
) -> _Training:
    rows = np.sort(np.random.default_rng(seed).permutation(len(texts))[:MAX_TRAINED])
    sources = TrainingQueries(index, texts, relevance)
    pairs = candidates(sources, sources.queries.rows(rows))
    known = pairs.where(~new[pairs.item]) if new.any() else pairs
    ranker, p, f1 = fit_ranker(known, rows, relevance, seed, new)
    if new.any():
        ranker = replace(ranker, cold=fit_cold(ranker, index, texts, relevance, seed))
        p = ranker.probabilities(pairs, rows)
    return _Training(sources, rows, pairs, ranker, p, f1)


def unclicked(queries: Sequence[Query], seed: int) -> frozenset[str]:
    """Texts of the training queries whose clicks the fit hides, by the hash of their ids."""
    return frozenset(query.text for query in queries if place(query.id, seed) < HIDDEN_SHARE)


def _learned_edits(
    fitted: Artefact, training: _Training, seed: int
) -> tuple[Editor | None, dict[str, float]]:
    """An editor, where it gains F1, and its figures; learned from the ranker's training queries
    first, then from others.
    """
    trained, pairs = training.rows, training.pairs
    bounds = pairwise(np.searchsorted(pairs.query, np.arange(trained.size + 1)))
    scored = [(pairs.item[a:b], training.p[a:b]) for a, b in bounds]
    rng = np.random.default_rng(seed)
    known = dict(zip(trained.tolist(), scored, strict=True))
    others = np.setdiff1d(np.arange(len(fitted.queries)), trained)
    order = np.concatenate([rng.permutation(trained), rng.permutation(others)])[:MOST_QUERIES]
    states: list[EditState] = []
    for at in range(0, order.size, _BATCH):
        rows = order[at : at + _BATCH].tolist()
        queries = [fitted.queries[row] for row in rows]
        found = (
            [known[row] for row in rows]
            if all(row in known for row in rows)
            else fitted.probabilities(queries)
        )
        states += fitted.edit_states(queries, found)
        if sum(int(state.chosen.sum()) for state in states) > MOST_KEYWORDS:
            break
    return fit_editor(states, order[: len(states)], fitted.relevance, K_MAX, seed)


def _relevance(dataset: Dataset) -> Csr:
    queries = dataset.queries.get("train", ())
    numbers = {item.id: number for number, item in enumerate(dataset.items)}
    pairs = [
        (row, numbers[item])
        for row, query in enumerate(queries)
        for item in dataset.relevant.get(query.id, ())
        if item in numbers
    ]
    judged = len({row for row, _ in pairs})
    if judged < LEAST_QUERIES:
        raise GeneratorError(
            f"The generator 'statistical' learns from labels, but the data set {dataset.name} "
            f"has {judged} training queries "
            f"with relevant items and {LEAST_QUERIES} are needed; add judgements or set the "
            "generator 'extractive'."
        )
    places = tuple(np.array(pairs, np.int32).T)
    shape = (len(queries), len(dataset.items))
    return sp.csr_matrix((np.ones(len(pairs), np.float32), places), shape=shape)


def _anchor_strength(training: _Training) -> Csr:
    """Mean of label and out-of-fold probability, (training queries, items); of a new item, which
    has no label, the probability.
    """
    places = (training.rows[training.pairs.query], training.pairs.item)
    p = training.p * (1 + training.ranker.new[training.pairs.item])
    predicted = sp.csr_matrix((p, places), shape=training.sources.relevance.shape)
    return ((training.sources.relevance + predicted) / 2).tocsr()


SAMPLE = 500
"""Most training queries that confidence is calibrated on."""


def assess(artefact: Artefact, seed: int) -> dict[str, object]:
    """Calibration and F1 out of fold, for the facts of a fit.

    Args:
        artefact: fitted, without calibration.
    """
    relevance = artefact.relevance
    known = np.flatnonzero((artefact.ranker.folds >= 0) & (np.diff(relevance.indptr) > 0))
    rows = np.sort(np.random.default_rng(seed).permutation(known)[:SAMPLE])
    queries = [artefact.queries[row] for row in rows]
    expected, f1 = artefact.quality(queries, [relevance[row].indices for row in rows])
    line = calibrate(expected, f1)
    return {
        "calibration": [line.intercept, line.slope],
        "f1_out_of_fold": round(float(f1.mean()), 4),
    }
