"""The measurements of a method, the same for all: the checked run, cutoffs, figures, significance,
time. Nothing here knows how a method retrieves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.compare import Fitted, Rankings, Sets
from cogr.errors import UserError
from cogr.metrics import Figures, measure, set_figures, sets_of
from cogr.records import Dataset, Query

DEPTH = 1000
"""Length of rankings: enough for the largest cutoffs and rank metrics of the tables."""
_RESAMPLES = 10_000
_TIMED = 100
"""Most queries that are searched one at a time for p50 and p99."""


# Runs


def checked_run(
    name: str, rankings: Rankings, queries: Sequence[Query], depth: int
) -> dict[str, list[tuple[str, float]]]:
    """A method's rankings in total order: score descending, then item id; an entry for each query.

    Raises UserError for a score that is NaN.
    """
    run = {}
    for query in queries:
        pairs = rankings.get(query.id, ())
        bad = next((pair for pair in pairs if not math.isfinite(pair[1])), None)
        if bad is not None:
            raise UserError(
                f"The method {name} gives the item {bad[0]!r} of the query {query.id!r} the score "
                f"{bad[1]}; its rows are not kept; correct the method or its model."
            )
        run[query.id] = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:depth]
    return run


def ids_of(run: Rankings, most: int | None = None) -> dict[str, list[str]]:
    """The rankings without their scores; the first items of each, where `most` is given."""
    return {query: [id_ for id_, _ in pairs[:most]] for query, pairs in run.items()}


CUTS = ("f1", "dev_cut_f1")
"""F1 by the number of items that is best on the training queries, and on dev."""


# Figures


def figures(
    dataset: Dataset, queries: Sequence[Query], sets: Mapping[str, Sets], run: Rankings
) -> Figures:
    """Every figure of a run, per query: those of `cogr.metrics.measure`, and F1 of each further
    cut.

    Args:
        sets: name of `CUTS` -> the sets by this cut. The first are the retrieved sets.
    """
    (_, retrieved), *others = sets.items()
    measured = measure(dataset, queries, retrieved, ids_of(run))
    more = {name: set_figures(dataset, queries, sets_of(ids)).values["f1"] for name, ids in others}
    return Figures(measured.queries, {**measured.values, **more}, measured.weights)


# Significance


def paired_p(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
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
    result = permutation_test(
        (nonzero,),
        lambda values, axis: values.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_RESAMPLES,
        batch=max(1, 2_000_000 // nonzero.size),
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


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
