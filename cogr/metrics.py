"""Metrics of retrieved sets and of rankings, per query and macro-averaged. Measures of rankings come from ir_measures.

One total order everywhere: score descending, then id. A ranking is a list of ids in that order, best first, so that no tie
is left for a library to break. A query that a run lacks counts as 0. Nothing here retrieves anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cogr.errors import DataError

CUTOFFS = (10, 100, 1000)
"""Where rankings are cut in the paper's tables."""

_Grades = Mapping[str, Mapping[str, int]]


class SetLike(Protocol):
    """A set of ids or of dense ids: frozenset, set or BitMap."""

    def __len__(self) -> int: ...
    def __and__(self, other: Any, /) -> SetLike: ...


@dataclass(frozen=True)
class Figures:
    """Values of one or more measures, per query.

    Attributes:
        queries: ids.
        values: measure -> float64, one a query.
        weights: the queries' weights in means, float64.
    """

    queries: tuple[str, ...]
    values: Mapping[str, NDArray[np.float64]]
    weights: NDArray[np.float64]

    @cached_property
    def means(self) -> dict[str, float]:
        """The weighted mean of each measure over the queries (macro average)."""
        return {name: float(np.average(values, weights=self.weights)) for name, values in self.values.items()}

    @cached_property
    def standard_errors(self) -> dict[str, float]:
        """Standard error of each mean; with equal weights the sample deviation over the root of n. 0 for one query."""
        n = len(self.queries)
        share = self.weights / self.weights.sum()
        correction = n / (n - 1) if n > 1 else 0.0
        return {
            name: float(np.sqrt(correction * np.sum((share * (values - self.means[name])) ** 2)))
            for name, values in self.values.items()
        }

    def of(self, query: str) -> dict[str, float]:
        """The values of one query. Raises DataError when it is not among them."""
        if query not in self._at:
            raise DataError(f"There are no figures of query {query!r}, only of {len(self.queries)} others.")
        return {name: float(values[self._at[query]]) for name, values in self.values.items()}

    @cached_property
    def _at(self) -> dict[str, int]:
        return {query: at for at, query in enumerate(self.queries)}


def full_set(
    retrieved: Mapping[str, SetLike], relevant: Mapping[str, SetLike], weights: Mapping[str, float] | None = None
) -> Figures:
    """P, R and F1 of whole retrieved sets (paper, eq. 1), for every query of `relevant`.

    Both sides hold ids, or both dense ids. Nothing retrieved: P is 0. Nothing relevant: R is 0.
    """
    none: frozenset[Any] = frozenset()
    counts = np.array(
        [
            (len(found & wanted) if len(found) and len(wanted) else 0, len(found), len(wanted))
            for query, wanted in relevant.items()
            for found in (retrieved.get(query, none),)
        ],
        np.float64,
    ).reshape(-1, 3)
    tp, ret, rel = counts.T
    values = {"p": _ratio(tp, ret), "r": _ratio(tp, rel), "f1": _ratio(2 * tp, ret + rel)}
    return _figures(relevant, values, weights)


def ranked(
    run: Mapping[str, Sequence[str]],
    relevant: Mapping[str, Collection[str]],
    *,
    cutoffs: Iterable[int] = CUTOFFS,
    grades: Mapping[str, Mapping[str, float]] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Figures:
    """P@k, R@k, F1@k, MRR@k and nDCG@k of rankings, for every query of `relevant`.

    P@k divides by the number of items in the cut list, k or fewer: a set of 5 is not blamed for the 5 places it left
    empty at 10. With `grades` (query -> id -> integer grade) nDCG is graded, else binary.

    Args:
        run: query id -> ids, best first, without repeats.
        relevant: query id -> relevant ids.
        cutoffs: the values of k.
        grades: grades for nDCG.
        weights: query id -> weight in means.
    """
    binary = {query: dict.fromkeys(ids, 1) for query, ids in relevant.items()}
    graded = binary if grades is None else {query: _integers(query, grades.get(query, {})) for query in relevant}
    values: dict[str, NDArray[np.float64]] = {}
    for k in cutoffs:
        values |= _at_cutoff({query: run.get(query, ())[:k] for query in relevant}, binary, graded, k)
    return _figures(relevant, values, weights)


def _at_cutoff(
    run: Mapping[str, Sequence[str]], binary: _Grades, graded: _Grades, k: int
) -> dict[str, NDArray[np.float64]]:
    import ir_measures
    from ir_measures import RR, SetF, SetP, SetR, nDCG

    scored = {query: _descending(ids) for query, ids in run.items()}
    names = {SetP: f"P@{k}", SetR: f"R@{k}", SetF: f"F1@{k}", RR @ k: f"MRR@{k}", nDCG @ k: f"nDCG@{k}"}
    found: dict[tuple[str, str], float] = {}
    for measures, grades in (([SetP, SetR, SetF, RR @ k], binary), ([nDCG @ k], graded)):
        for row in ir_measures.iter_calc(measures, grades, scored):
            found[names[row.measure], row.query_id] = row.value
    return {name: np.array([found.get((name, query), 0.0) for query in run]) for name in names.values()}


def judged_only(run: Mapping[str, Sequence[str]], judged: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """A run without the items that nobody judged for the query; order kept. For sets of ids as well as rankings.

    For data where only the top of some search was judged, so that an unjudged item is not known to be irrelevant.
    """
    return {query: [id_ for id_ in ids if id_ in judged.get(query, ())] for query, ids in run.items()}


@dataclass(frozen=True)
class Cutoff:
    """The best number of items to return for every query.

    Attributes:
        k: the cutoff; the smallest one where several are equal.
        f1: macro F1 at it.
        curve: float64, (longest ranking,): macro F1 at cutoffs 1, 2, ...
    """

    k: int
    f1: float
    curve: NDArray[np.float64]


def sweep_cutoff(
    run: Mapping[str, Sequence[str]],
    relevant: Mapping[str, Collection[str]],
    weights: Mapping[str, float] | None = None,
) -> Cutoff:
    """The cutoff that maximises macro F1 over the queries of `relevant`: to be chosen on training queries.

    A ranking shorter than the cutoff is returned whole. Raises DataError when there is no ranking or no query.
    """
    longest = max((len(run.get(query, ())) for query in relevant), default=0)
    if not longest:
        raise DataError("A cutoff can't be chosen: no query has a ranking; check the run and the training split.")
    shares = _weights(relevant, weights)
    shares = shares / shares.sum()
    curve = np.zeros(longest)
    for (query, wanted), share in zip(relevant.items(), shares, strict=True):
        ids, wanted = run.get(query, ()), frozenset(wanted)
        hits = np.cumsum(np.fromiter(map(wanted.__contains__, ids), np.float64, len(ids)))
        f1 = _ratio(2 * hits, np.arange(1, len(ids) + 1, dtype=np.float64) + len(wanted))
        curve[: len(f1)] += share * f1
        if len(f1):
            curve[len(f1) :] += share * f1[-1]
    best = int(np.argmax(curve))
    return Cutoff(best + 1, float(curve[best]), curve)


def _figures(
    queries: Iterable[str], values: Mapping[str, NDArray[np.float64]], weights: Mapping[str, float] | None
) -> Figures:
    names = tuple(queries)
    if not names:
        raise DataError("There are no queries to measure; check the split and its labels.")
    return Figures(names, values, _weights(names, weights))


def _weights(queries: Iterable[str], weights: Mapping[str, float] | None) -> NDArray[np.float64]:
    found = [1.0 if weights is None else weights.get(query, np.nan) for query in queries]
    array = np.array(found, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(array.sum())
    if not (np.all(array >= 0) and np.isfinite(array).all() and 0 < total < np.inf):
        raise DataError(
            "Every measured query needs a finite weight of 0 or more, one of them above 0, and a sum that is finite too."
        )
    return array


def _ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """part / whole, 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


def _descending(ids: Sequence[str]) -> dict[str, float]:
    """Strictly decreasing scores in place of ranks: nothing is left to reorder."""
    return {id_: float(len(ids) - rank) for rank, id_ in enumerate(ids)}


def _integers(query: str, grades: Mapping[str, float]) -> dict[str, int]:
    wrong = next((item for item, grade in grades.items() if grade != int(grade)), None)
    if wrong is not None:
        raise DataError(f"nDCG needs whole grades, but item {wrong!r} has {grades[wrong]} for query {query!r}.")
    return {item: int(grade) for item, grade in grades.items()}
