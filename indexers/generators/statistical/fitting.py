"""Fitting: a data set with relevance labels in, an artefact out, and what it says of itself.

Reads the training queries only; dev and test queries are never looked at. Confidence is calibrated
on training queries, which are answered out of fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cogr.datasets.builder import place
from cogr.errors import GeneratorError
from cogr.keywords import NORMALISER, folded, self_keyword
from cogr.metrics import f1_of
from cogr.records import Dataset, Query
from indexers.generators.statistical import FOLDS, MIN_QUERIES, READABILITY
from indexers.generators.statistical.artefact import Artefact, calibrate, item_digest
from indexers.generators.statistical.item_keywords import (
    assemble,
    item_anchors,
    item_phrases,
)
from indexers.generators.statistical.keyword_selection import Floats64, Selection
from indexers.generators.statistical.ranking.encoder import Encoder
from indexers.generators.statistical.ranking.features import CandidatePairs, candidates
from indexers.generators.statistical.ranking.hidden_topics import hidden_candidates, topic_groups
from indexers.generators.statistical.ranking.matrices import Csr, Floats, Ints, top_rows
from indexers.generators.statistical.ranking.ranker import Ranker, fit_cold, fit_hidden, fit_ranker
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


def fit(
    dataset: Dataset,
    *,
    language: str = "english",
    seed: int = 0,
    pair_signals: Sequence[str] = (),
    encoder: Encoder | None = None,
) -> Artefact:
    """Fit ranker and item keywords on the training queries of a data set.

    Args:
        dataset: items, training queries, relevance.
        language: Snowball algorithm for stems and stop words, see `indexers.text.Analyser`.
        seed: of sampling, folds and boosting; the same data and seed give the same artefact.
        pair_signals: numbers of (query, item) pairs that the ranker learns from, such as clicks.
        encoder: text encoder whose vectors the ranker learns from.

    Raises:
        GeneratorError: too few training queries with relevant items, or no items; or no pair
            has a number under a signal's name.
    """
    relevance = _relevance(dataset)
    analyser = Analyser(language)
    queries = [Query(query.id, folded(query.text)) for query in dataset.queries["train"]]
    texts = [query.text for query in queries]
    pair_numbers = PairSignals.read(dataset, pair_signals)
    index = TextIndex.fit(analyser, dataset.items, texts, encoder).seeing(
        pair_numbers.without(unclicked(queries, seed))
    )
    new = np.fromiter((item.id in dataset.new for item in dataset.items), np.bool_)
    training = _trained(index, texts, relevance, seed, new)
    anchored = item_anchors([*map(self_keyword, texts)], _anchor_strength(training))
    titles = [item.title for item in dataset.items]
    phrases = item_phrases([item_text(item) for item in dataset.items], analyser)
    keywords = assemble(anchored, phrases, titles)
    facts: dict[str, object] = {
        "dataset": dataset.dataset_hash,
        "normaliser": NORMALISER,
        "language": language,
        "seed": seed,
        "readability": READABILITY,
        "keywords": len(keywords.keywords),
        "multiplier": training.ranker.multiplier,
    }
    ids, digests = [item.id for item in dataset.items], [item_digest(one) for one in dataset.items]
    artefact = Artefact(index, queries, relevance, training.ranker, keywords, ids, digests, facts)
    facts.update(assess(artefact, training, seed))
    # What was computed without the clicks of half the queries is left behind.
    return replace(artefact, index=index.seeing(pair_numbers))


@dataclass(frozen=True)
class _Training:
    """A ranker, the training queries that it was trained on (ascending rows of the relevance),
    their candidates and p out of fold; the group of topics of every training query, and the
    candidates as if the group of each had no labels.
    """

    sources: TrainingQueries
    rows: Ints
    pairs: CandidatePairs
    ranker: Ranker
    p: Floats
    groups: Ints
    hidden: CandidatePairs


def _trained(
    index: TextIndex, texts: Sequence[str], relevance: Csr, seed: int, new: NDArray[np.bool_]
) -> _Training:
    rows = np.sort(np.random.default_rng(seed).permutation(len(texts))[:MAX_TRAINED])
    sources = TrainingQueries(index, texts, relevance)
    pairs = candidates(sources, sources.queries.rows(rows))
    known = pairs.where(~new[pairs.item]) if new.any() else pairs
    groups = topic_groups(sources, seed)
    hidden = hidden_candidates(sources, rows, groups)
    ranker = fit_ranker(known, rows, relevance, seed, new)
    ranker = fit_hidden(ranker, known, hidden.where(~new[hidden.item]), groups, relevance, seed)
    if new.any():
        ranker = replace(ranker, cold=fit_cold(ranker, index, texts, relevance, seed))
    p = ranker.probabilities(pairs, rows)
    return _Training(sources, rows, pairs, ranker, p, groups, hidden)


def unclicked(queries: Sequence[Query], seed: int) -> frozenset[str]:
    """Texts of the training queries whose clicks the fit hides, by the hash of their ids."""
    return frozenset(query.text for query in queries if place(query.id, seed) < HIDDEN_SHARE)


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
    if judged < MIN_QUERIES:
        raise GeneratorError(
            f"The generator 'statistical' learns from labels, but the data set {dataset.name} has "
            f"{judged} training queries with relevant items and {MIN_QUERIES} are needed; add "
            "judgements or use the generator 'extractive'."
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


_SAMPLE = 500
"""Most training queries that confidence is calibrated on."""

_DEEPEST = 1000
"""Most items of a BM25 ranking of which a cutoff is chosen."""


def assess(artefact: Artefact, training: _Training, seed: int) -> dict[str, object]:
    """Calibration, and F1 of the same training queries: out of fold, out of fold as if their topics
    had no labels, and by BM25 (`of_text`); for the facts of a fit.

    Args:
        artefact: fitted, without calibration.
    """
    relevance, rows = artefact.relevance, training.rows
    labelled = np.flatnonzero(np.diff(relevance.indptr)[rows] > 0)
    drawn = np.sort(np.random.default_rng(seed).permutation(labelled)[:_SAMPLE])
    queries = [artefact.queries[row] for row in rows[drawn]]
    relevant = [relevance[row].indices for row in rows[drawn]]
    scored, known = artefact.scored_queries(queries)
    selections = [
        artefact.selected(query, *one) for query, one in zip(queries, scored, strict=True)
    ]
    kinds = [(*artefact.f1_of(queries, selections, relevant), known)]
    selections, known = _of_hidden(artefact, training, drawn)
    kinds.append((*artefact.f1_of(queries, selections, relevant), known))
    # Hidden ones count twice: where F1 is nearly 1 on known topics, these bend the line too much.
    columns = zip(*kinds, kinds[1], strict=True)
    line = calibrate(*(np.concatenate(column) for column in columns))
    batch = training.sources.queries.rows(rows[drawn])
    text = of_text(batch.terms @ artefact.index.bm25, relevant)
    return {
        "calibration": [line.intercept, line.slope, line.known],
        "f1_out_of_fold": round(float(kinds[0][1].mean()), 4),
        "f1_hidden_topics": round(float(kinds[1][1].mean()), 4),
        "f1_of_text": round(text, 4),
    }


def _of_hidden(
    artefact: Artefact, training: _Training, drawn: Ints
) -> tuple[list[Selection], Floats64]:
    """What training queries get as if their topics had no labels, and the mixer's logit of each;
    no anchor of their topics is chosen.

    Args:
        drawn: places in `training.rows`, ascending.
    """
    pairs, ranker = training.hidden, artefact.ranker
    p, logits = ranker.probabilities(pairs, training.rows), ranker.known(pairs.x)
    numbers = np.array(
        [artefact.keywords.ids.find(self_keyword(query.text)) for query in artefact.queries]
    )
    banned = [numbers[(training.groups == group) & (numbers >= 0)] for group in range(FOLDS)]
    selections, known = [], np.zeros(drawn.size)
    spans = pairs.spans(training.rows.size)
    for at, number in enumerate(drawn):
        row, span = training.rows[number], spans[number]
        known[at] = logits[span][:1].sum()
        own = banned[training.groups[row]].tolist()
        selections.append(
            artefact.selected(artefact.queries[row], pairs.item[span], p[span], banned=own)
        )
    return selections, known


def of_text(scores: Csr, relevant: Sequence[Ints]) -> float:
    """Mean F1 of BM25 rankings, cut where it is highest.

    Args:
        scores: (queries, items).
    """
    curve, best = np.zeros(_DEEPEST), top_rows(scores, _DEEPEST)
    for row, wanted in enumerate(relevant):
        by_rank = best[row]
        ranked = by_rank.indices[np.argsort(-by_rank.data, kind="stable")]
        hits = np.cumsum(np.isin(ranked, wanted))
        f1 = f1_of(hits, np.arange(1, hits.size + 1), wanted.size)
        curve[: f1.size] += f1
        curve[f1.size :] += f1[-1] if f1.size else 0
    return float(curve.max()) / max(len(relevant), 1)
