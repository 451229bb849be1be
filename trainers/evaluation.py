"""Evaluation of a snapshot pair on one split, through a backend: memory and OpenSearch give equal
figures.

It searches for what `cogr.evaluation` measures: the whole retrieved set in its one total order. It
trains nothing and publishes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cogr.evaluation import grades_of, keyword_sets, measure, search_all
from cogr.records import Dataset, Split
from cogr.snapshots import Snapshot, check_pair
from indexers.backends.protocol import Backend


@dataclass(frozen=True)
class Evaluation:
    """Figures of one pair on one split.

    Attributes:
        queries: how many queries the split has.
        figures: measure -> macro average over them, as `cogr.evaluation.measure` gives it.
        graded: gains in nDCG are the grades of the labels; else 1 for relevant items.
        keywords_per_item: mean size of S_i over all items.
        keywords_per_query: mean size of S_q over the split's queries.
        seconds: how long the searches took.
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


def ensure_pushed(backend: Backend, item: Snapshot) -> bool:
    """Push an item snapshot beside what serves where it is not yet, so that it can be evaluated;
    whether that was needed.
    """
    if any(known.snapshot == item.id and known.complete for known in backend.list()):
        return False
    backend.push(item)
    return True


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

    def search(keywords: Sequence[str]) -> list[str]:
        return [hit.id for hit in backend.retrieved(keywords, snapshot=item.id).hits]

    started = time.monotonic()
    sets = keyword_sets(queries, query)
    runs = search_all(search, queries, sets, query.manifest.normaliser)
    return Evaluation(
        split=split,
        item=item.id,
        query=query.id,
        backend=backend.name,
        queries=len(queries),
        seconds=time.monotonic() - started,
        figures=measure(dataset, queries, runs),
        graded=grades_of(dataset) is not None,
        keywords_per_item=item.manifest.keywords / max(1, item.manifest.entities),
        keywords_per_query=sum(map(len, sets.values())) / len(queries),
    )
