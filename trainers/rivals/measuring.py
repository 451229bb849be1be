"""The measurements of a method, the same for all: the checked run, cutoffs, figures, significance,
time. Nothing here knows how a method retrieves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cogr.errors import UserError
from cogr.metrics import (
    Figures,
    best_head,
    f1_of_heads,
    per_query,
    set_figures,
    sets_of,
    sweep_cutoff,
)
from cogr.records import Dataset, Query
from trainers.rivals import Fitted, Ranked, Sets

DEPTH = 1000
"""Length of rankings: enough for the largest cutoffs and rank metrics of the tables."""
_RESAMPLES = 10_000
_TIMED = 100
"""Most queries that are searched one at a time for p50 and p99."""


# Runs


def checked_run(
    name: str, found: Ranked, queries: Sequence[Query], depth: int
) -> dict[str, list[tuple[str, float]]]:
    """A method's rankings in total order: score descending, then item id; an entry for each query.

    Raises UserError for a score that is NaN, an item twice, or a run without any item.
    """
    run = {}
    for query in queries:
        pairs = found.get(query.id, ())
        bad = next((pair for pair in pairs if not math.isfinite(pair[1])), None)
        if bad is not None:
            raise UserError(
                f"The method {name} gives the item {bad[0]!r} of the query {query.id!r} the score "
                f"{bad[1]}; its rows are not kept; correct the method or its model."
            )
        if len({id_ for id_, _ in pairs}) < len(pairs):
            raise UserError(
                f"The method {name} ranks an item of the query {query.id!r} twice; correct it."
            )
        run[query.id] = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:depth]
    if queries and not any(run.values()):
        raise UserError(
            f"The run of the method {name} is empty: it finds no item for any of {len(queries)} "
            "queries; look at the items' texts and at its model."
        )
    return run


def ids_of(run: Ranked) -> dict[str, list[str]]:
    """The rankings without their scores."""
    return {query: [id_ for id_, _ in pairs] for query, pairs in run.items()}


def above(run: Ranked, threshold: float) -> dict[str, list[str]]:
    """The items whose score is the threshold or more."""
    return {
        query: [id_ for id_, score in pairs if score >= threshold] for query, pairs in run.items()
    }


def sweep_threshold(
    run: Ranked, relevant: Mapping[str, frozenset[str]], weights: Mapping[str, float]
) -> float:
    """The score that maximises macro F1 over the queries of `relevant`, exactly: every score of
    the run, in total order, is tried. The highest where several are equal; infinity where nothing
    helps.
    """
    scores, gains = [np.empty(0)], [np.empty(0)]
    for query, wanted in relevant.items():
        pairs = run.get(query, ())
        f1 = f1_of_heads([id_ for id_, _ in pairs], wanted)
        scores.append(np.array([score for _, score in pairs]))
        gains.append(weights[query] * np.diff(f1, prepend=0.0))
    score, gain = np.concatenate(scores), np.concatenate(gains)
    order = np.argsort(-score, kind="stable")
    score, total = score[order], np.cumsum(gain[order])
    # Items with equal scores are added together.
    last = np.flatnonzero(np.append(np.diff(score) != 0, True)) if score.size else score
    if not last.size or total[last].max() <= 0:
        return math.inf
    return float(score[last[np.argmax(total[last])]])


CUTS = ("f1", "dev_cut_f1", "threshold_f1", "dev_threshold_f1")
"""F1 by the number of items that is best on the training queries, and on dev; by the score that is
best on the training queries, and on dev.
"""


@dataclass(frozen=True)
class Swept:
    """Cuts of rankings: the number of items and the score threshold that maximise F1 on some
    queries.

    Attributes:
        k: items a query.
        threshold: the lowest score; infinity where no item helps.
        f1: F1 by the number of items, on those queries.
    """

    k: int
    threshold: float
    f1: float

    @classmethod
    def of(cls, run: Ranked, dataset: Dataset, queries: Sequence[Query]) -> Swept:
        """Chosen on these queries; `run` has their rankings."""
        wanted = {query.id: dataset.relevant[query.id] for query in queries}
        weights = {query.id: query.weight for query in queries}
        cutoff = sweep_cutoff(ids_of(run), wanted, weights)
        return cls(cutoff.k, sweep_threshold(run, wanted, weights), cutoff.f1)

    def heads(self, run: Ranked) -> dict[str, list[str]]:
        """The first k items of each ranking."""
        return {query: ids[: self.k] for query, ids in ids_of(run).items()}


def favoured(found: Mapping[str, float], metric: str) -> str:
    """The measure by which a method is compared: the metric; for F1, that of the cut with the
    highest F1, the first of equals.
    """
    cuts = [name for name in CUTS if name in found]
    return max(cuts, key=lambda name: found[name]) if metric == "f1" and cuts else metric


# Figures


def figures(
    dataset: Dataset, queries: Sequence[Query], sets: Mapping[str, Sets], run: Ranked
) -> Figures:
    """Every figure of a run, per query: those of `cogr.metrics.measure`, and `perfect_f1`: F1 of
    the ranking's best cutoff for each query.

    Args:
        sets: name of `CUTS` -> the sets by this cut. The first are the retrieved sets; the others'
            P, R and F1 are named by their cut.
    """
    ranking, (retrieved, *others) = ids_of(run), sets.values()
    found = per_query(dataset, queries, retrieved, ranking)
    relevant = {query.id: dataset.relevant[query.id] for query in queries}
    heads = [best_head(ranking.get(query, ()), wanted)[1] for query, wanted in relevant.items()]
    values = {**found.values, "perfect_f1": np.array(heads)}
    for cut, ids in zip(list(sets)[1:], others, strict=True):
        other = set_figures(dataset, queries, sets_of(ids)).values
        values |= {f"{cut.removesuffix('f1')}{name}": other[name] for name in ("p", "r", "f1")}
    return Figures(found.queries, values, found.weights)


# Significance


def paired_p(one: NDArray[np.float64], other: NDArray[np.float64], seed: int = 0) -> float:
    """p of the two-sided paired randomisation test for equal means of two methods.

    Under the null hypothesis the sign of each query's difference is random (Smucker, Allan and
    Carterette 2007).
    """
    from scipy.stats import permutation_test

    differences = one - other
    if not differences.any():
        return 1.0
    # Differences of 0 have no sign.
    nonzero = differences[differences != 0]
    found = permutation_test(
        (nonzero,),
        lambda values, axis: values.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_RESAMPLES,
        batch=max(1, 2_000_000 // nonzero.size),
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """p values corrected for multiple tests (Holm 1979)."""
    corrected, most = {}, 0.0
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        most = max(most, min(1.0, (len(p) - rank) * p[name]))
        corrected[name] = most
    return corrected


# Time


def latencies(fitted: Fitted, queries: Sequence[Query], depth: int) -> dict[str, float]:
    """p50 and p99 of one search, in milliseconds: single queries that nothing was prepared for, one
    after another.
    """
    taken = []
    for query in queries[:_TIMED]:
        fitted.rank([query], depth)  # Loading and compiling are not part of a search.
        began = time.perf_counter()
        fitted.rank([query], depth)
        taken.append(1000 * (time.perf_counter() - began))
    p50, p99 = np.percentile(taken, (50, 99))
    return {"p50_ms": float(p50), "p99_ms": float(p99)}
