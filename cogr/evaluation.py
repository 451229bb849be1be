"""Evaluation of a pair of item and query snapshot: the sets that the frozen keywords of a split's
queries retrieve, and their figures.

`cogr-train evaluate`, rounds, the demo, baselines and the gate before publishing all measure here,
so that a pair has one F1. The caller passes the search, by a mirror or by a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pyroaring import BitMap

from cogr.errors import SnapshotError
from cogr.keywords import self_keyword
from cogr.matching.mirror import Mirror
from cogr.metrics import Figures, SetLike, full_set, judged_only, ranked, sets_of
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Row, Snapshot

Found = TypeVar("Found")


def rows_of_queries(
    queries: Sequence[Query],
    snapshot: Snapshot,
    *,
    unknown: bool = False,
    weights: bool = True,
) -> dict[str, Row]:
    """Query id -> its row of a query snapshot, in the order of the queries, with the text that the
    data has.

    Args:
        unknown: accept queries that the snapshot lacks: they are searched by their own text, as in
            serving.

    Raises:
        SnapshotError: the snapshot lacks a query, and `unknown` is False.
    """
    wanted = {query.id for query in queries}
    rows = {row.id: row for row in snapshot.rows() if row.id in wanted}
    lacking = next((query.id for query in queries if query.id not in rows), None)
    if lacking is not None and not unknown:
        raise SnapshotError(
            f"Snapshot {snapshot.id} lacks the query {lacking!r}: rebuild the query side without "
            "--limit, on the same data."
        )
    found = {}
    for query in queries:
        row = rows.get(query.id, Row(query.id, query.text, ()))
        own = self_keyword(query.text)
        kept = row.weights if weights else ()
        found[query.id] = replace(row, text=query.text, own=own, weights=kept)
    return found


def search_all(
    search: Callable[[Mapping[str, float]], Found], rows: Mapping[str, Row]
) -> dict[str, Found]:
    """Query id -> result of a search for S_q ∪ {q} with weights."""
    return {id_: search(row.weighted) for id_, row in rows.items()}


def retrieved_ids(mirror: Mirror, asked: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """Query id -> ids of the items that its keywords retrieve."""
    return {
        id_: frozenset(map(mirror.id_of, mirror.retrieved(words))) for id_, words in asked.items()
    }


def set_figures(
    dataset: Dataset,
    queries: Sequence[Query],
    retrieved: Mapping[str, SetLike],
    to_set: Callable[[frozenset[str]], SetLike] = frozenset,
) -> Figures:
    """P, R and F1 of retrieved sets (paper, eq. 1), weighted by the queries' weights.

    Args:
        retrieved: query id -> items; a query without an entry retrieved nothing.
        to_set: converts ids of relevant items to the type of the sets in `retrieved`.
    """
    relevant = {query.id: to_set(dataset.relevant[query.id]) for query in queries}
    return full_set(retrieved, relevant, {query.id: query.weight for query in queries})


def f1_of_pair(mirror: Mirror, dataset: Dataset, split: Split, query: Snapshot) -> float:
    """Macro F1 of a pair on one split; arguments and errors as of `figures_of_pair`."""
    return figures_of_pair(mirror, dataset, split, query).means["f1"]


def figures_of_pair(mirror: Mirror, dataset: Dataset, split: Split, query: Snapshot) -> Figures:
    """P, R and F1 of a pair on one split, equal to those of `evaluate`, but without ranking the
    retrieved items.

    A query that the query snapshot lacks is searched by its own text, as in serving.

    Raises:
        DataError: the split is empty.
    """
    queries = dataset.require(split)
    rows = rows_of_queries(queries, query, unknown=True)
    retrieved = search_all(mirror.retrieved, rows)
    return set_figures(dataset, queries, retrieved, lambda ids: _dense(mirror, ids))


def _dense(mirror: Mirror, ids: frozenset[str]) -> BitMap:
    # Items that the snapshot lacks get numbers behind all others, so that they count as not found.
    places = [mirror.ids.find(id_) for id_ in ids]
    known = BitMap(place for place in places if place >= 0)
    return known | BitMap(range(len(mirror), len(mirror) + places.count(-1)))


def grades_of(dataset: Dataset) -> Mapping[str, Mapping[str, float]] | None:
    """Query id -> item id -> grade, whole or not, for nDCG; None for binary labels, where all
    grades above 0 are equal.

    Items below the threshold of relevance also gain their grade.
    """
    found = {grade for grades in dataset.judged.values() for grade in grades.values() if grade > 0}
    return dataset.judged if len(found) > 1 else None


def measure(
    dataset: Dataset,
    queries: Sequence[Query],
    sets: Mapping[str, Sequence[str]],
    rankings: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, float]:
    """Figures of one way to search, macro-averaged over queries; a query without a list counts
    as 0.

    P, R and F1 are of the retrieved sets, rank metrics of the whole rankings, because a ranking
    that is cut to a set would lose by them. Judged-only figures leave out unjudged items: where
    only the top of some search was judged, an unjudged item need not be irrelevant. nDCG takes
    grades where there are any (`grades_of`).

    Args:
        sets: query id -> ids of the retrieved set, best first.
        rankings: query id -> the whole ranking that the set was cut from; the set itself by
            default.

    Returns:
        p, r, f1 of the sets with f1_se (standard error of the mean), judged_p, judged_r, judged_f1,
        and p, r, f1, mrr and ndcg @10, @100 and @1000.
    """
    found = per_query(dataset, queries, sets, rankings)
    return {**found.means, "f1_se": found.standard_errors["f1"]}


def per_query(
    dataset: Dataset,
    queries: Sequence[Query],
    sets: Mapping[str, Sequence[str]],
    rankings: Mapping[str, Sequence[str]] | None = None,
) -> Figures:
    """The figures of `measure`, by query; same arguments, without f1_se."""
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
