"""Fitting: a data set with relevance labels in, an artefact out, and what it says of itself.

Reads the training queries only; dev and test queries are never looked at. Confidence is calibrated
on training queries, which are answered out of fold: once with all other labels, and once without
the labels of similar queries (`unseen`), where a ranker errs most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cogr.datasets.builder import place
from cogr.errors import GeneratorError
from cogr.keywords import NORMALISER, self_keyword
from cogr.metrics import f1_of, reliability
from cogr.records import Dataset, Query
from indexers.generators.statistical import FEW_QUERIES, LEAST_QUERIES, READABILITY
from indexers.generators.statistical.artefact import (
    K_MAX,
    Artefact,
    calibrate,
    item_digest,
    out_of_sample,
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
    ANCHORS,
    NearestAnchors,
    assemble,
    item_anchors,
    item_phrases,
    unknown_items,
)
from indexers.generators.statistical.keyword_selection import Floats as Floats64
from indexers.generators.statistical.ranking.encoder import Encoder
from indexers.generators.statistical.ranking.features import CandidatePairs, candidates
from indexers.generators.statistical.ranking.matrices import Csr, Floats, Ints, unit_rows
from indexers.generators.statistical.ranking.ranker import Ranker, fit_cold, fit_ranker
from indexers.generators.statistical.ranking.text_index import (
    ItemWords,
    PairSignals,
    TextIndex,
    item_text,
)
from indexers.generators.statistical.ranking.training_queries import FeatureSources
from indexers.text import Analyser, Said

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
    words = ItemWords(analyser, map(item_text, dataset.items))
    queries = [Query(query.id, self_keyword(query.text)) for query in dataset.queries["train"]]
    texts = [query.text for query in queries]
    pair_numbers = PairSignals.read(dataset, pair_signals)
    index = TextIndex.fit(analyser, words, dataset.items, texts, encoder).seeing(
        pair_numbers.without(unclicked(queries, seed))
    )
    new = np.fromiter((item.id in dataset.new for item in dataset.items), np.bool_, len(words))
    training = _trained(index, texts, relevance, seed, new)
    anchored = _anchored(training, texts)
    titles = [item.title for item in dataset.items]
    said = Said.of(analyser, map(item_text, dataset.items))
    keywords = assemble(anchored, item_phrases(words, analyser, said), titles)
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
        artefact = _changed(artefact, editor=editor)
    facts.update(assess(artefact, seed))
    return _changed(artefact, index=index.seeing(pair_numbers))


@dataclass(frozen=True)
class _Training:
    """A ranker and what it was trained on.

    Attributes:
        sources: of the features.
        rows: the training queries, ascending rows of the relevance.
        pairs: their candidates.
        p: probabilities of these out of fold.
        f1: of the exact cuts out of fold.
    """

    sources: FeatureSources
    rows: Ints
    pairs: CandidatePairs
    ranker: Ranker
    p: Floats
    f1: float

    @property
    def relevance(self) -> Csr:
        return self.sources.nearest.relevance


def _trained(
    index: TextIndex, texts: Sequence[str], relevance: Csr, seed: int, new: NDArray[np.bool_]
) -> _Training:
    rows = np.sort(np.random.default_rng(seed).permutation(len(texts))[:MAX_TRAINED])
    sources = FeatureSources.of(index, texts, relevance)
    pairs = candidates(sources, sources.nearest.queries.rows(rows))
    known = pairs.where(~new[pairs.item]) if new.any() else pairs
    ranker, p, f1 = fit_ranker(known, rows, relevance, seed, new)
    if new.any():
        ranker = replace(ranker, cold=fit_cold(ranker, index, texts, relevance, seed))
        p = ranker.probabilities(pairs, rows)
    return _Training(sources, rows, pairs, ranker, p, f1)


def _changed(artefact: Artefact, **parts: object) -> Artefact:
    """The artefact with some parts replaced. What it has computed already is kept."""
    twin = copy(artefact)
    vars(twin).update(parts)
    return twin


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
    rows = [
        sorted(numbers[i] for i in dataset.relevant.get(query.id, ()) if i in numbers)
        for query in queries
    ]
    judged = sum(bool(row) for row in rows)
    if judged < LEAST_QUERIES:
        raise GeneratorError(
            f"The generator 'statistical' learns from labels, but the data set {dataset.name} "
            f"has {judged} training queries "
            f"with relevant items and {LEAST_QUERIES} are needed; add judgements or set the "
            "generator 'extractive'."
        )
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    columns = np.array([item for row in rows for item in row], dtype=np.int32)
    return sp.csr_matrix(
        (np.ones(columns.size, dtype=np.float32), columns, starts),
        shape=(len(rows), len(dataset.items)),
    )


def _anchored(training: _Training, texts: Sequence[str]) -> list[list[str]]:
    """Anchors of each item; items without any label get those of their nearest items."""
    index, unknown = training.sources.index, unknown_items(training.relevance)
    anchored = item_anchors(texts, _anchor_strength(training))
    if unknown is not None and unknown.any():
        rows = np.flatnonzero(unknown)
        nearest = NearestAnchors(index, ~unknown, anchored).of(index.tfidf[rows])
        for row, anchors in zip(rows, nearest, strict=True):
            anchored[row] = list(dict.fromkeys([*anchored[row], *anchors]))[:ANCHORS]
    return anchored


def _anchor_strength(training: _Training) -> Csr:
    """Mean of label and out-of-fold probability, (training queries, items); of a new item, which
    has no label, the probability.
    """
    places = (training.rows[training.pairs.query], training.pairs.item)
    p = training.p * (1 + training.ranker.new[training.pairs.item])
    predicted = sp.csr_matrix((p, places), shape=training.relevance.shape)
    return ((training.relevance + predicted) / 2).tocsr()


SAMPLE = 250
"""Training queries of each kind (with and without the labels of similar queries) in the sample."""

ALIKE = 0.2
"""Training queries are similar when the cosines of their words and of their relevant items add up
to this.
"""


def unseen(
    index: TextIndex, texts: Sequence[str], relevance: Csr, ranker: Ranker, rows: Ints
) -> Iterator[tuple[Ints, Floats]]:
    """Candidates and p of training queries, as if no similar query had labels.

    Neither they nor similar queries vote, and the model that answers was not trained on them. A
    fifth of the queries is left out at a time, and with it at most half of the others.
    """
    batch = index.batch(texts, range(len(texts)))
    words, found = unit_rows(batch.terms.multiply(index.idf).tocsr()), unit_rows(relevance)
    for held in np.array_split(rows, max(1, round(5 * rows.size / len(texts)))):
        alike = words[held] @ words.T + found[held] @ found.T
        kept = _unlike(np.asarray(alike.max(axis=0).todense()).ravel(), held)
        few = len(texts) < FEW_QUERIES
        sources = FeatureSources.of(index, [texts[row] for row in kept], relevance[kept], few)
        pairs = candidates(sources, index.batch([texts[row] for row in held]))
        p = ranker.probabilities(pairs, held)
        bounds = pairwise(np.searchsorted(pairs.query, np.arange(held.size + 1)))
        yield from ((pairs.item[a:b], p[a:b]) for a, b in bounds)


def _unlike(alike: Floats64, held: Ints) -> Ints:
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
    found: list[tuple[Ints, Floats]] = [
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


def _facts(expected: Floats64, f1: Floats64, seed: int) -> dict[str, object]:
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
