"""The ranker: calibrated probabilities of relevance from boosted trees, cross-fitted over training
queries.

Each fold's model is trained on the other folds. A training query hears only the model that has not
seen it (out of fold); any other query hears the mean of all models' logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np

from indexers.generators.statistical import FOLDS
from indexers.generators.statistical.distillation import exact_cut
from indexers.generators.statistical.features import FEATURES, Pairs
from indexers.generators.statistical.matrices import Csr, Floats, Ints, row_sums

MAX_ROWS = 200_000
"""Rows that a model is trained on; beyond it irrelevant pairs are thinned out and the rest weigh
more.
"""
FEW_QUERIES = 300
MULTIPLIERS = (1.0, 1.25, 1.5)

MODEL = {
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
MANY = {"num_leaves": 31, "min_data_in_leaf": 100, "rounds": 100}
FEW = {"num_leaves": 7, "min_data_in_leaf": 50, "rounds": 60}


@dataclass(frozen=True)
class Ranker:
    """Fold models, who is in which fold, and the scale of the expected number of relevant items.

    Attributes:
        models: one LightGBM booster a fold.
        folds: fold of each training query, -1 for those that no model was trained on, (training
            queries,).
        multiplier: the expected number of relevant items is this times the sum of p (candidates
            miss some).
    """

    models: Sequence[Any]
    folds: Ints
    multiplier: float

    def probabilities(self, pairs: Pairs, own: Ints) -> Floats:
        """p of each pair; `own` is the batch's, to answer training queries out of fold."""
        folds = np.where(own >= 0, self.folds[np.maximum(own, 0)], -1)[pairs.query]
        logits = np.zeros(pairs.query.size)
        for fold, model in enumerate(self.models):
            seen = folds == fold
            for rows, share in ((seen, 1.0), (folds == -1, 1 / len(self.models))):
                if rows.any():
                    logits[rows] += share * model.predict(
                        pairs.x[rows], raw_score=True, num_threads=1
                    )
        return (1 / (1 + np.exp(-logits))).astype(np.float32)


def fit_ranker(
    pairs: Pairs, trained: Ints, relevance: Csr, seed: int
) -> tuple[Ranker, Floats, float]:
    """Cross-fit a ranker. Returns it, the out-of-fold p of each pair, and the macro F1 of the exact
    cuts by these p.

    Args:
        pairs: candidates of the training queries `trained`.
        trained: rows of `relevance` that `pairs.query` counts through, (queries,).
        relevance: 0/1, (all training queries, items).
        seed: of folds, thinning and boosting.
    """
    rng = np.random.default_rng(seed)
    labels = np.asarray(relevance[trained][pairs.query, pairs.item], dtype=np.float32).ravel()
    folds = rng.permutation(trained.size) % FOLDS
    relevant = row_sums(relevance[trained])
    weights = _weights(labels, relevant, pairs.query, rng)
    with ThreadPoolExecutor(2) as pool:
        models = list(
            pool.map(
                lambda fold: _train(
                    pairs, labels, weights * (folds[pairs.query] != fold), trained.size, seed
                ),
                range(FOLDS),
            )
        )
    of_query = np.full(relevance.shape[0], -1, dtype=np.int64)
    of_query[trained] = folds
    p = Ranker(models, of_query, 1.0).probabilities(pairs, trained)
    f1 = {multiplier: cut_f1(pairs, p, labels, relevant, multiplier) for multiplier in MULTIPLIERS}
    best = max(MULTIPLIERS, key=lambda multiplier: f1[multiplier])
    return Ranker(models, of_query, best), p, f1[best]


def _weights(labels: Floats, relevant: Floats, query: Ints, rng: np.random.Generator) -> Floats:
    """Weight of each pair: 1/sqrt(relevant + 5) of its query; 0 for those thinned out, the others
    in proportion more.
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


def _train(pairs: Pairs, labels: Floats, weights: Floats, queries: int, seed: int) -> Any:
    rows = weights > 0
    settings = dict(FEW if queries < FEW_QUERIES else MANY)
    rounds = int(settings.pop("rounds"))
    data = lightgbm.Dataset(
        pairs.x[rows], labels[rows], weight=weights[rows], feature_name=list(FEATURES)
    )
    return lightgbm.train({**MODEL, **settings, "seed": seed}, data, rounds)


def cut_f1(pairs: Pairs, p: Floats, labels: Floats, relevant: Floats, multiplier: float) -> float:
    """Mean F1 of the exact cuts, over the queries of `relevant` (how many items are relevant to
    each).
    """
    starts = np.searchsorted(pairs.query, np.arange(relevant.size + 1))
    total = 0.0
    for query in range(relevant.size):
        span = slice(starts[query], starts[query + 1])
        cut, _ = exact_cut(p[span], multiplier * float(p[span].sum()))
        total += 2 * float(labels[span][cut].sum()) / max(cut.size + float(relevant[query]), 1)
    return total / max(relevant.size, 1)
