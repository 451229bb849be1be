"""The ranker: calibrated probabilities of relevance from boosted trees, cross-fitted over training
queries. Where these are few, p is the mean of the trees and a logistic regression, which overfits
less.

Each fold's model is trained on the other folds. A training query is scored only by the model that
was not trained on it (out of fold); any other query by the mean of all models' logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from indexers.generators.statistical import FEW_QUERIES, FOLDS
from indexers.generators.statistical.keyword_selection import cut_f1
from indexers.generators.statistical.ranking.features import (
    FEATURES,
    CandidatePairs,
    candidates,
)
from indexers.generators.statistical.ranking.matrices import (
    Csr,
    Floats,
    Ints,
    among,
    row_sums,
)
from indexers.generators.statistical.ranking.text_index import TextIndex
from indexers.generators.statistical.ranking.training_queries import TrainingQueries

MAX_ROWS = 200_000
"""Most rows that a model is trained on. Beyond it irrelevant pairs are sampled, and the sampled
ones weigh more.
"""
MULTIPLIERS = (1.0, 1.25, 1.5)

MASKS = 3
"""Parts of the known items; each is treated as new once."""

_MODEL: Mapping[str, Any] = {
    "objective": "binary",
    "learning_rate": 0.1,
    "max_bin": 63,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "deterministic": True,
    "force_col_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
_MANY = {"num_leaves": 31, "min_data_in_leaf": 100}, 100
_FEW = {"num_leaves": 7, "min_data_in_leaf": 50}, 60
"""Sizes of trees, and how many there are, for many and for few training queries."""

PENALTY, MIXER_PENALTY = 100.0, 1.0
"""L2 penalty of the logistic regressions, of the ranker and of the mixer: weight of the squared
coefficients against the summed loss of the pairs, or of the queries.
"""

_MIXED_BY = [
    FEATURES.index(name) for name in ("most_similar", "most_overlap", "terms", "best_share")
]
"""Features of a query by which the mixer tells whether the labels know its topic."""

LABELLED_ODDS = 9.0
"""Prior odds that the labels know a query's topic: most queries are like the labelled ones."""


@dataclass(frozen=True)
class Ranker:
    """Fold models, the fold of each training query, and the scale of the expected number of
    relevant items.

    Attributes:
        models: one LightGBM booster a fold.
        linear: intercept and coefficients of `_curved` features, a row a fold, (folds, 1 + 3
            features); no rows where trees decide alone.
        folds: fold of each training query, -1 for those that no model was trained on, (training
            queries,).
        multiplier: the expected number of relevant items is this times the sum of p (candidates
            miss some).
        cold: answers for new items; None where the same models answer for all items.
        new: whether the labels cannot know an item, (items,).
        hidden: answers for topics without labels; None where it was not fitted.
        mixer: intercept and coefficients of the features `_MIXED_BY`, (1 + features,).
    """

    models: Sequence[Any]
    linear: Floats
    folds: Ints
    multiplier: float = 1.0
    cold: Ranker | None = None
    new: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    hidden: Ranker | None = None
    mixer: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    def probabilities(self, pairs: CandidatePairs, own: Ints) -> Floats:
        """p of each pair; `own` is the batch's, to answer training queries out of fold."""
        rows = own[pairs.query]
        p = self._by_folds(pairs.x, rows)
        if self.hidden is not None:
            known = expit(self.known(pairs.x) + np.log(LABELLED_ODDS))
            p = known * p + (1 - known) * self.hidden._by_folds(pairs.x, rows)
        if self.cold is not None:
            new = self.new[pairs.item]
            p[new] = self.cold._by_folds(pairs.x[new], rows[new])
        return p

    def known(self, x: Floats) -> Floats:
        """Logit of the mixer: whether the labels know the topic of each pair's query, (pairs,)."""
        logits: Floats = x[:, _MIXED_BY] @ self.mixer[1:] + self.mixer[0]
        return logits

    def _by_folds(self, x: Floats, own: Ints) -> Floats:
        folds = np.where(own >= 0, self.folds[np.maximum(own, 0)], -1)
        logits = np.zeros(folds.size)
        for fold, model in enumerate(self.models):
            seen = folds == fold
            for rows, share in ((seen, 1.0), (folds == -1, 1 / len(self.models))):
                if rows.any():
                    logits[rows] += share * self._logits(fold, model, x[rows])
        p: Floats = expit(logits).astype(np.float32)
        return p

    def _logits(self, fold: int, model: Any, x: Floats) -> Floats:
        logits: Floats = model.predict(x, raw_score=True, num_threads=1)
        if self.linear.size:
            line = self.linear[fold]
            logits = (logits + _curved(x) @ line[1:] + line[0]) / 2
        return logits


def fit_ranker(
    pairs: CandidatePairs, trained: Ints, relevance: Csr, seed: int, new: NDArray[np.bool_]
) -> Ranker:
    """Cross-fit a ranker; its multiplier is the one whose exact cuts have the best F1 out of fold.

    Args:
        pairs: candidates of the training queries `trained`.
        trained: rows of `relevance` that `pairs.query` counts through, (queries,).
        relevance: 0/1, (all training queries, items).
        seed: of folds, thinning and boosting.
        new: whether the labels cannot know an item, (items,).
    """
    rng = np.random.default_rng(seed)
    labels = labels_of(pairs, trained, relevance)
    folds = rng.permutation(trained.size) % FOLDS
    relevant = row_sums(relevance[trained])
    of_query = np.full(relevance.shape[0], -1, dtype=np.int64)
    of_query[trained] = folds
    ranker = Ranker(*_cross_fit(pairs, labels, relevant, folds, rng, seed), of_query, new=new)
    p = ranker.probabilities(pairs, trained)
    f1 = {of: mean_cut_f1(pairs, p, labels, relevant, of) for of in MULTIPLIERS}
    best = max(MULTIPLIERS, key=lambda multiplier: f1[multiplier])
    return replace(ranker, multiplier=best)


def fit_hidden(
    ranker: Ranker,
    known: CandidatePairs,
    hidden: CandidatePairs,
    groups: Ints,
    relevance: Csr,
    seed: int,
) -> Ranker:
    """The ranker with a mixer, and with a ranker for topics without labels where any candidate of
    these is relevant.

    Args:
        known, hidden: candidates of the ranker's training queries, as they are and as if their
            topics had no labels (`hidden_candidates`).
        groups: of all training queries by their topics, the folds of the hidden ranker.
        relevance: 0/1, (training queries, items).
        seed: of thinning and boosting.
    """
    trained = np.flatnonzero(ranker.folds >= 0)
    first = [np.unique(pairs.query, return_index=True)[1] for pairs in (known, hidden)]
    x = np.concatenate([known.x[first[0]], hidden.x[first[1]]])[:, _MIXED_BY]
    y = np.repeat([1.0, 0.0], [first[0].size, first[1].size]).astype(np.float32)
    mixer = logistic(x, y, np.ones_like(y), MIXER_PENALTY).astype(np.float32)
    mixed = replace(ranker, mixer=mixer)
    relevant, labels = row_sums(relevance[trained]), labels_of(hidden, trained, relevance)
    if not labels.any():
        return mixed
    rng, folds = np.random.default_rng(seed), np.where(ranker.folds >= 0, groups, -1)
    models = _cross_fit(hidden, labels, relevant, groups[trained], rng, seed)
    return replace(mixed, hidden=Ranker(*models, folds))


def fit_cold(
    ranker: Ranker, index: TextIndex, texts: Sequence[str], relevance: Csr, seed: int
) -> Ranker | None:
    """A ranker for new items; None where that of the known items serves them as well out of fold.

    A third of the known items at a time is masked: votes, popularity and profiles are computed as
    if it had no labels. Its pairs, with their true labels, are what the cold ranker learns from
    (after DropoutNet, Volkovs et al. 2017). Folds are those of the ranker.

    Args:
        ranker: of the known items.
        texts: of the training queries.
        relevance: 0/1, (training queries, items).
        seed: of masks, thinning and boosting.
    """
    rng = np.random.default_rng(seed)
    trained = np.flatnonzero(ranker.folds >= 0)
    parts = []
    for pairs, p, masked in as_new(ranker, index, texts, relevance, trained, rng):
        bare = CandidatePairs(pairs.x[:0], pairs.query, pairs.item)
        parts.append((bare, p, masked, pairs.where(masked)))
    relevant, folds = row_sums(relevance[trained]), ranker.folds[trained]
    every = CandidatePairs.of(own for *_, own in parts)
    labels = labels_of(every, trained, relevance)
    if not labels.any():
        return None
    cold = Ranker(*_cross_fit(every, labels, relevant, folds, rng, seed), ranker.folds)
    gain = 0.0
    for bare, p, masked, own in parts:
        mixed, labels = p.copy(), labels_of(bare, trained, relevance)
        mixed[masked] = cold.probabilities(own, trained)
        after, before = (
            mean_cut_f1(bare, one, labels, relevant, ranker.multiplier) for one in (mixed, p)
        )
        gain += after - before
    return cold if gain > 0 else None


def as_new(
    ranker: Ranker,
    index: TextIndex,
    texts: Sequence[str],
    relevance: Csr,
    rows: Ints,
    rng: np.random.Generator,
) -> Iterator[tuple[CandidatePairs, Floats, NDArray[np.bool_]]]:
    """Candidates of training queries as if each of `MASKS` parts of the known items were new:
    pairs, p by the ranker, and which items are masked. New items are left out.

    Args:
        rows: the training queries, ascending.
        rng: draws the parts.
    """
    part = rng.permutation(relevance.shape[1]) % MASKS
    part[ranker.new] = MASKS
    for mask in range(MASKS):
        sources = TrainingQueries(index, texts, among(relevance, np.flatnonzero(part != mask)))
        pairs = candidates(sources, sources.queries.rows(rows))
        p = ranker.probabilities(pairs, rows)
        kept = part[pairs.item] != MASKS
        pairs, p = pairs.where(kept), p[kept]
        yield pairs, p, part[pairs.item] == mask


def labels_of(pairs: CandidatePairs, trained: Ints, relevance: Csr) -> Floats:
    """Whether each pair is relevant, 0 or 1, (pairs,)."""
    if not pairs.query.size:
        return np.zeros(0, np.float32)
    return np.asarray(relevance[trained][pairs.query, pairs.item], dtype=np.float32).ravel()


def _cross_fit(
    pairs: CandidatePairs,
    labels: Floats,
    relevant: Floats,
    folds: Ints,
    rng: np.random.Generator,
    seed: int,
) -> tuple[Sequence[Any], Floats]:
    """A model for each fold, trained on the others: trees, and coefficients where there are any."""
    weights = _weights(labels, relevant, pairs.query, rng)

    def fold_model(fold: int) -> tuple[Any, Floats]:
        rows = (weights > 0) & (folds[pairs.query] != fold)
        x, y, weight = pairs.x[rows], labels[rows], weights[rows]
        few = folds.size < FEW_QUERIES
        line = logistic(_curved(x), y, weight) if few else np.zeros(0, np.float32)
        size, rounds = _FEW if few else _MANY
        data = lightgbm.Dataset(x, y, weight=weight)
        return lightgbm.train({**_MODEL, **size, "seed": seed}, data, rounds), line

    with ThreadPoolExecutor(2) as pool:
        models, linear = zip(*pool.map(fold_model, range(FOLDS)), strict=True)
    return models, np.stack(linear)


def _weights(labels: Floats, relevant: Floats, query: Ints, rng: np.random.Generator) -> Floats:
    """Weight of each pair: 1/sqrt(relevant items of its query + 5). Pairs left out by sampling
    weigh 0, and sampled ones proportionally more.
    """
    weights = (
        1 / np.sqrt(relevant[query] + 5) if relevant.size >= FEW_QUERIES else np.ones(labels.size)
    )
    negatives = labels == 0
    share = min(1.0, max(MAX_ROWS - (~negatives).sum(), MAX_ROWS / 10) / max(negatives.sum(), 1))
    kept = ~negatives | (rng.random(labels.size) < share)
    weights = np.where(negatives, weights / share, weights) * kept
    scaled: Floats = (weights / weights[kept].mean()).astype(np.float32)
    return scaled


def _curved(x: Floats) -> Floats:
    """Features, their logarithms and their roots, (pairs, 3 features)."""
    return np.concatenate([x, np.log(np.maximum(x, 1e-3)), np.sqrt(np.maximum(x, 0))], axis=1)


def logistic(x: Floats, y: Floats, weight: Floats, penalty: float = PENALTY) -> Floats:
    """Intercept and coefficients of a ridge-penalised logistic regression on standardised columns,
    for columns as they are, (1 + columns,).
    """
    x, mean = x.astype(np.float64), x.mean(axis=0, dtype=np.float64)
    spread = x.std(axis=0) + 1e-9
    x = (x - mean) / spread

    best = likeliest_line(x, y, weight, penalty, np.zeros(x.shape[1]))
    scaled = best[1:] / spread
    line: Floats = np.concatenate([[best[0] - scaled @ mean], scaled])
    return line


def likeliest_line(x: Any, y: Any, weight: Any, penalty: float, prior: Any) -> NDArray[Any]:
    """Intercept and coefficients of a logistic regression whose coefficients a ridge penalty draws
    towards a prior, (1 + columns,).
    """

    def loss(line: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        logits = x @ line[1:] + line[0]
        slope, moved = weight * (expit(logits) - y), line[1:] - prior
        pulled = penalty * moved
        total = weight @ (np.logaddexp(0, logits) - y * logits) + pulled @ moved / 2
        return float(total), np.concatenate([[slope.sum()], x.T @ slope + pulled])

    start = np.append(0.0, prior)
    best: NDArray[Any] = minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}
    ).x
    return best


def mean_cut_f1(
    pairs: CandidatePairs, p: Floats, labels: Floats, relevant: Floats, multiplier: float
) -> float:
    """Mean F1 of the exact cuts, over the queries of `relevant` (how many items are relevant to
    each).
    """
    total = 0.0
    for span, wanted in zip(pairs.spans(relevant.size), relevant.tolist(), strict=True):
        total += cut_f1(p[span], labels[span], int(wanted), multiplier)
    return total / max(relevant.size, 1)
