"""Metrics of retrieved sets and of rankings, per query and macro-averaged, and the evaluation of a
pair of item and query snapshot.

P, R and F1 of sets are the paper's eq. 1. Rank metrics are those of trec_eval (MRR, nDCG with
linear gains), but P@k divides by the items of the cut list. They are implemented here because
libraries for them need SciPy, 115 MB, and take no fractional grades. Tests compare each figure with
ir_measures.

One total order everywhere: score descending, then id. A ranking is a list of ids in that order,
best first, so it has no ties. A query that a run lacks counts as 0.

`cogr-train evaluate`, rounds, the demo, baselines and the gate before publishing all measure here,
so that a pair has one F1. The caller passes the search, by a mirror or by a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from cogr.errors import DataError, SnapshotError
from cogr.keywords import query_key, self_keyword
from cogr.matching.mirror import Mirror
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Row, Snapshot

CUTOFFS = (10, 100, 1000)
"""The cutoffs of the paper's tables."""

MeasurePlace = Literal["evaluate", "rounds", "gate"]
"""Where measures are shown: by `evaluate`, in tables of a run and in its report; and where a pair
that is worse than text search does not go live.
"""


class Measure(NamedTuple):
    """A figure of which more is better: its heading, and where it is shown."""

    heading: str
    places: tuple[MeasurePlace, ...]


MEASURES: Mapping[str, Measure] = {
    "p": Measure("P", ("evaluate", "rounds")),
    "r": Measure("R", ("evaluate", "rounds")),
    "f1": Measure("F1", ("evaluate", "rounds", "gate")),
    "ndcg@10": Measure("nDCG@10", ("evaluate", "rounds", "gate")),
    "mrr@10": Measure("MRR@10", ("evaluate", "rounds")),
    "p@10": Measure("P@10", ("evaluate",)),
    "r@100": Measure("R@100", ("evaluate", "gate")),
}
"""Every measure that is shown, in the order of the tables."""


def measures_of(place: MeasurePlace) -> dict[str, str]:
    """Figure -> its heading, for one place."""
    return {key: one.heading for key, one in MEASURES.items() if place in one.places}


Array = NDArray[Any]


@overload
def f1_of(hits: float, retrieved: float, relevant: float) -> float: ...
@overload
def f1_of(hits: Array, retrieved: Array | float, relevant: Array | float) -> Array: ...
def f1_of(hits: Any, retrieved: Any, relevant: Any) -> Any:
    """F1 of counts: numbers, or arrays of one shape. 2 n_tp / (n_ret + n_rel) is 2PR / (P + R) of
    the paper's eq. 1 with P and R written out, as in its appendix on the item reward.

    0 for two empty sets. With probabilities of relevance, `hits` and `relevant` are their sums, and
    this is the usual first-order estimate of the expected F1.
    """
    sizes = retrieved + relevant
    if isinstance(sizes, np.ndarray):
        return 2.0 * hits / np.where(sizes > 0, sizes, 1)
    return 2.0 * hits / sizes if sizes > 0 else 0.0


def f1_of_heads(ids: Sequence[str], wanted: Collection[str]) -> NDArray[np.float64]:
    """F1 of the first 1, 2, ... items of a ranking, (items,)."""
    hits = np.cumsum(np.fromiter(map(wanted.__contains__, ids), np.int64, len(ids)))
    return f1_of(hits, np.arange(1, len(ids) + 1), len(wanted))


class SetLike(Protocol):
    """A set of ids or of dense ids: frozenset, set or BitMap."""

    def __len__(self) -> int: ...
    def __and__(self, other: Any, /) -> SetLike: ...


@dataclass(frozen=True)
class Figures:
    """Values of one or more measures, per query.

    Attributes:
        values: measure -> float64, one a query.
        weights: the queries' weights in means, float64.
    """

    queries: tuple[str, ...]
    values: Mapping[str, NDArray[np.float64]]
    weights: NDArray[np.float64]

    @cached_property
    def means(self) -> dict[str, float]:
        """The weighted mean of each measure over the queries (macro average)."""
        return {
            name: float(np.average(values, weights=self.weights))
            for name, values in self.values.items()
        }

    @cached_property
    def standard_errors(self) -> dict[str, float]:
        """Standard error of each mean; with equal weights the sample deviation over the root of n.
        0 for one query.
        """
        n = len(self.queries)
        share = self.weights / self.weights.sum()
        correction = n / (n - 1) if n > 1 else 0.0
        return {
            name: float(np.sqrt(correction * np.sum((share * (values - self.means[name])) ** 2)))
            for name, values in self.values.items()
        }


def full_set(
    retrieved: Mapping[str, SetLike],
    relevant: Mapping[str, SetLike],
    weights: Mapping[str, float] | None = None,
) -> Figures:
    """P, R and F1 of whole retrieved sets (paper, eq. 1), for every query of `relevant`.

    Both sides hold ids, or both dense ids. Nothing retrieved: P is 0. Nothing relevant: R is 0.
    """
    none: frozenset[Any] = frozenset()
    counts = np.array(
        [
            (len(ids & wanted) if len(ids) and len(wanted) else 0, len(ids), len(wanted))
            for query, wanted in relevant.items()
            for ids in (retrieved.get(query, none),)
        ],
        np.float64,
    ).reshape(-1, 3)
    tp, ret, rel = counts.T
    values = {"p": _ratio(tp, ret), "r": _ratio(tp, rel), "f1": f1_of(tp, ret, rel)}
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

    P@k divides by the number of items in the cut list, k or fewer: P@10 of a list of 5 items
    divides by 5. With `grades` an item's gain in nDCG is its grade, 0 for negative and missing
    grades; without, the gain is 1 for relevant items.

    Args:
        run: query id -> ids, best first, without repeats.
        grades: query -> id -> grade, whole or not, for nDCG.
    """
    wanted = sets_of(relevant)
    binary = {query: dict.fromkeys(ids, 1.0) for query, ids in wanted.items()}
    gains: Mapping[str, Mapping[str, float]] = binary if grades is None else grades
    values: dict[str, NDArray[np.float64]] = {}
    for k in cutoffs:
        cut = {query: run.get(query, ())[:k] for query in wanted}
        sets = full_set(sets_of(cut), wanted)
        values |= {f"{name.upper()}@{k}": figures for name, figures in sets.values.items()}
        values[f"MRR@{k}"] = np.array(
            [_reciprocal_rank(ids, wanted[query]) for query, ids in cut.items()]
        )
        values[f"nDCG@{k}"] = np.array(
            [_ndcg(ids, gains.get(query, {}), k) for query, ids in cut.items()]
        )
    return _figures(wanted, values, weights)


def sets_of(lists: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """Query id -> its ids as a set."""
    return {query: frozenset(ids) for query, ids in lists.items()}


def _reciprocal_rank(ids: Sequence[str], wanted: Collection[str]) -> float:
    return next((1 / rank for rank, id_ in enumerate(ids, 1) if id_ in wanted), 0.0)


def _ndcg(ids: Sequence[str], gains: Mapping[str, float], k: int) -> float:
    # Järvelin and Kekäläinen 2002. A gain is the grade itself, as in trec_eval.
    ideal = sorted((gain for gain in gains.values() if gain > 0), reverse=True)[:k]
    if not ideal:
        return 0.0
    discounts = 1 / np.log2(np.arange(2, max(len(ids), len(ideal)) + 2))
    gained = np.array([max(0.0, gains.get(id_, 0.0)) for id_ in ids])
    return float(gained @ discounts[: len(ids)] / (np.array(ideal) @ discounts[: len(ideal)]))


def judged_only(
    run: Mapping[str, Sequence[str]], judged: Mapping[str, Collection[str]]
) -> dict[str, list[str]]:
    """A run, or sets, without the items that are unjudged for the query, in the same order."""
    return {
        query: [id_ for id_ in ids if id_ in judged.get(query, ())] for query, ids in run.items()
    }


def sweep_cutoff(
    run: Mapping[str, Sequence[str]], dataset: Dataset, queries: Sequence[Query]
) -> tuple[int, float]:
    """The smallest cutoff that maximises macro F1 over queries, weighted by their weights, and that
    F1: choose it on training queries. Raises DataError when there is no ranking or no query.
    """
    longest = max((len(run.get(query.id, ())) for query in queries), default=0)
    if not longest:
        raise DataError(
            "A cutoff can't be chosen: no query has a ranking; check the run and the training "
            "split."
        )
    weights = {query.id: query.weight for query in queries}
    shares = _weights(weights, weights)
    curve = np.zeros(longest)
    for query, share in zip(queries, shares / shares.sum(), strict=True):
        f1 = f1_of_heads(run.get(query.id, ()), dataset.relevant[query.id])
        curve[: len(f1)] += share * f1
        if len(f1):
            curve[len(f1) :] += share * f1[-1]
    best = int(np.argmax(curve))
    return best + 1, float(curve[best])


def _figures(
    queries: Iterable[str],
    values: Mapping[str, NDArray[np.float64]],
    weights: Mapping[str, float] | None,
) -> Figures:
    names = tuple(queries)
    if not names:
        raise DataError("There are no queries to measure; check the split and its labels.")
    return Figures(names, values, _weights(names, weights))


def _weights(queries: Iterable[str], weights: Mapping[str, float] | None) -> NDArray[np.float64]:
    given = [1.0 if weights is None else weights.get(query, np.nan) for query in queries]
    array = np.array(given, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(array.sum())
    if not (np.all(array >= 0) and np.isfinite(array).all() and 0 < total < np.inf):
        raise DataError(
            "Every measured query needs a finite weight of 0 or more, one of them above 0, and a "
            "sum that is finite too."
        )
    return array


def _ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


def rows_of_queries(
    queries: Sequence[Query],
    snapshot: Snapshot,
    *,
    unknown: bool = False,
    weights: bool = True,
) -> dict[str, Row]:
    """Query id -> its row of a query snapshot, in the order of the queries. A row is found as a
    shopper finds it: by the query's text, else by its own keyword; of several the first by id.

    Args:
        unknown: accept queries that the snapshot lacks: they are searched by their own text, as in
            serving.

    Raises:
        SnapshotError: the snapshot lacks a query, and `unknown` is False.
    """
    by_key, by_own, by_id = dict[str, Row](), dict[str, Row](), dict[str, Row]()
    wanted = {name for one in queries for name in (query_key(one.text), self_keyword(one.text))}
    for row in snapshot.rows():
        for rows, name in ((by_key, row.key), (by_own, row.self_keyword)):
            if name in wanted:
                rows.setdefault(name, row)
    for query in queries:
        own = self_keyword(query.text)
        known = by_key.get(query_key(query.text)) or (by_own.get(own) if own else None)
        if known is None and not unknown:
            raise SnapshotError(
                f"Snapshot {snapshot.id} lacks the query {query.id!r} ({query.text[:80]!r}): "
                "rebuild the query side without --limit, on the same data."
            )
        row = known or Row(query.id, query.text, ())
        kept = row if weights else row.unweighted
        by_id[query.id] = replace(kept, text=query.text, own=own)
    return by_id


def set_figures(
    dataset: Dataset,
    queries: Sequence[Query],
    retrieved: Mapping[str, SetLike],
    to_set: Callable[[frozenset[str]], SetLike] = frozenset,
) -> Figures:
    """P, R and F1 of retrieved sets (paper, eq. 1), weighted by the queries' weights. `to_set`
    converts ids of relevant items to the type of the sets in `retrieved`.
    """
    relevant = {query.id: to_set(dataset.relevant[query.id]) for query in queries}
    return full_set(retrieved, relevant, {query.id: query.weight for query in queries})


def figures_of_pair(mirror: Mirror, dataset: Dataset, split: Split, query: Snapshot) -> Figures:
    """P, R and F1 of a pair on one split, equal to those of `evaluate`, without ranking items. A
    query that the snapshot lacks is searched by its own text. Raises DataError for an empty split.
    """
    queries = dataset.require(split)
    rows = rows_of_queries(queries, query, unknown=True)
    retrieved = {id_: mirror.retrieved(row.weighted) for id_, row in rows.items()}
    return set_figures(dataset, queries, retrieved, mirror.wanted)


def grades_of(dataset: Dataset) -> Mapping[str, Mapping[str, float]] | None:
    """Query id -> item id -> grade, for nDCG, below the threshold of relevance too; None for binary
    labels, where all grades above 0 are equal.
    """
    distinct = {
        grade for grades in dataset.judged.values() for grade in grades.values() if grade > 0
    }
    return dataset.judged if len(distinct) > 1 else None


def measure(
    dataset: Dataset,
    queries: Sequence[Query],
    sets: Mapping[str, Sequence[str]],
    rankings: Mapping[str, Sequence[str]] | None = None,
) -> Figures:
    """Figures of one way to search, by query; a query without a list counts as 0.

    P, R and F1 are of the retrieved sets, rank metrics of the whole rankings, because a ranking
    that is cut to a set would lose by them. Judged-only figures leave out unjudged items: where
    only the top of some search was judged, an unjudged item need not be irrelevant. nDCG takes
    grades where there are any (`grades_of`).

    Args:
        sets: query id -> ids of the retrieved set, best first.
        rankings: query id -> the whole ranking that the set was cut from; the set itself by
            default.

    Returns:
        p, r, f1 of the sets, judged_p, judged_r, judged_f1, and p, r, f1, mrr and ndcg @10, @100
        and @1000.
    """
    whole = set_figures(dataset, queries, sets_of(sets))
    judged = set_figures(dataset, queries, sets_of(judged_only(sets, dataset.judged)))
    ranks = ranked(
        sets if rankings is None else rankings,
        {query.id: dataset.relevant[query.id] for query in queries},
        grades=grades_of(dataset),
        weights={query.id: query.weight for query in queries},
    )
    values = {
        **whole.values,
        **{f"judged_{name}": value for name, value in judged.values.items()},
        **{name.lower(): value for name, value in ranks.values.items()},
    }
    return replace(whole, values=values)
