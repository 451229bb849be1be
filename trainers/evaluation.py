"""Evaluation of a snapshot pair on one split, through a backend: memory and OpenSearch give equal
figures.

It measures what a search returns, the whole retrieved set in its one total order; it trains nothing
and publishes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cogr.errors import SnapshotError
from cogr.metrics import full_set, judged_only, ranked
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Snapshot, check_pair
from indexers.backends.protocol import Backend
from indexers.release.push import query_keywords


@dataclass(frozen=True)
class Evaluation:
    """Figures of one pair on one split.

    Attributes:
        queries: how many queries the split has.
        figures: measure -> macro average over them: p, r, f1 of the full retrieved set with f1_se
            (standard error of the mean), the same over judged items only, and rank metrics at 10,
            100 and 1000.
        graded: gains in nDCG are the grades of the labels; else 1 for relevant items.
        keywords_per_item: mean size of S_i over all items.
        keywords_per_query: mean size of S_q over the split's queries.
    """

    split: Split
    item: str
    query: str
    backend: str
    queries: int
    figures: Mapping[str, float]
    graded: bool
    keywords_per_item: float
    keywords_per_query: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For --json: split, p, r, f1, and the rest."""
        return {
            "split": self.split,
            **{name: round(value, 6) for name, value in self.figures.items()},
            "ndcg_gains": "grades" if self.graded else "binary",
            "queries": self.queries,
            "item_snapshot": self.item,
            "query_snapshot": self.query,
            "backend": self.backend,
            "keywords_per_item": round(self.keywords_per_item, 3),
            "keywords_per_query": round(self.keywords_per_query, 3),
            "seconds": round(self.seconds, 3),
        }


def retrieve(
    backend: Backend, item: Snapshot, query: Snapshot, queries: Sequence[Query]
) -> Iterator[tuple[str, list[str]]]:
    """(query id, retrieved item ids in their total order) of each query, by its frozen keywords.

    Raises SnapshotError when the query snapshot lacks one of them.
    """
    rows = query.by_id
    for asked in queries:
        if asked.id not in rows:
            raise SnapshotError(
                f"Snapshot {query.id} lacks the query {asked.id!r}: rebuild the query side "
                "without --limit, on the same data."
            )
        words = query_keywords(asked.text, rows[asked.id].keywords, query.manifest.normaliser)
        yield (
            asked.id,
            [hit.id for hit in backend.retrieved(words, side="item", snapshot=item.id).hits],
        )


def ensure_pushed(backend: Backend, item: Snapshot) -> bool:
    """Push an item snapshot beside what serves where it is not yet, so that it can be evaluated;
    whether that was needed.
    """
    if any(known.snapshot == item.id and known.complete for known in backend.list()):
        return False
    backend.push(item)
    return True


def grades_of(dataset: Dataset) -> Mapping[str, Mapping[str, float]] | None:
    """Query id -> item id -> grade, for nDCG; None where all labels above 0 have one grade, so that
    they are binary.
    """
    found = {grade for grades in dataset.judged.values() for grade in grades.values() if grade > 0}
    return dataset.judged if len(found) > 1 else None


def measure(
    dataset: Dataset,
    queries: Sequence[Query],
    sets: Mapping[str, Sequence[str]],
    rankings: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, float]:
    """Figures of one way to search, macro-averaged over queries; a query without a list counts as
    0.

    P, R and F1 are of the retrieved sets, rank metrics of the rankings: a ranking that is cut to
    make a set of it would do worse by them than it does. Judged-only figures leave out items that
    nobody judged: where only the top of some search was judged, an unjudged item is not known to be
    irrelevant. nDCG takes grades where there are any.

    Args:
        sets: query id -> ids of the retrieved set, best first.
        rankings: query id -> the whole ranking that the set was cut from; the set itself by
            default.
    """
    weights = {asked.id: asked.weight for asked in queries}
    relevant = {asked.id: dataset.relevant[asked.id] for asked in queries}
    whole = full_set({query: frozenset(ids) for query, ids in sets.items()}, relevant, weights)
    judged = judged_only(sets, dataset.judged)
    known = full_set({query: frozenset(ids) for query, ids in judged.items()}, relevant, weights)
    ranks = ranked(
        sets if rankings is None else rankings, relevant, grades=grades_of(dataset), weights=weights
    )
    return {
        **whole.means,
        "f1_se": whole.standard_errors["f1"],
        **{f"judged_{name}": value for name, value in known.means.items()},
        **{name.lower(): value for name, value in ranks.means.items()},
    }


def evaluate(
    backend: Backend, dataset: Dataset, item: Snapshot, query: Snapshot, split: Split
) -> Evaluation:
    """P, R and F1 of the full retrieved set, and rank metrics, on one split.

    Raises:
        DataError: the split is empty.
        SnapshotError: the snapshots don't fit one another, or lack a query of the split.
    """
    check_pair(item.manifest, query.manifest)
    queries = dataset.require(split)
    started = time.monotonic()
    runs = dict(retrieve(backend, item, query, queries))
    seconds = time.monotonic() - started
    figures = measure(dataset, queries, runs)
    sizes = [len(query.by_id[asked.id].keywords) for asked in queries]
    return Evaluation(
        split,
        item.id,
        query.id,
        backend.name,
        len(queries),
        figures,
        grades_of(dataset) is not None,
        item.manifest.keywords / max(1, item.manifest.entities),
        sum(sizes) / len(sizes),
        seconds,
    )
