"""Evaluation on one split: a snapshot pair, searched through a backend, what it answers when it
serves, and BM25 over the items' own text.

`cogr.metrics` measures all three: the whole retrieved set, and rankings in one total order.
Memory and OpenSearch give equal figures.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.metrics import (
    grades_of,
    measure,
    rows_of_queries,
    sweep_cutoff,
)
from cogr.records import SPLITS, Dataset, Query, Split
from cogr.snapshots import Snapshot, check_pair, open_snapshot
from indexers.backends import Backend, Words, text_boost
from indexers.backends.memory import MemoryBackend
from indexers.text import Lexical
from indexers.workspace import Workspace

LONGEST = 1000
"""Length of rankings, from which cutoffs are chosen and rank metrics computed."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """One way to search: its rankings and retrieved sets on one split.

    Attributes:
        name: "bm25" or "what serves".
        of: what its sets are, in words.
        runs: query id -> ids of its retrieved items, best first: the head of its ranking.
        rankings: query id -> the whole ranking, 1,000 items at most.
        cutoff: items a query, where it is the same for all queries.
    """

    name: str
    of: str
    runs: Mapping[str, Sequence[str]]
    rankings: Mapping[str, Sequence[str]]
    cutoff: int | None = None

    def row(self, dataset: Dataset, split: Split) -> dict[str, Any]:
        """Its figures: P, R and F1 of the sets, rank metrics of the whole rankings."""
        found = measure(dataset, dataset.require(split), self.runs, self.rankings)
        figures = {**found.means, "f1_se": found.standard_errors["f1"]}
        cutoff = {"cutoff": self.cutoff} if self.cutoff else {}
        return {"name": self.name, **figures, **cutoff, "sets": self.of}


def bm25(dataset: Dataset, split: Split, cutoff: int | None = None) -> Baseline:
    """BM25 (bm25s, English stems), its sets cut at the number of items that maximises macro F1 on
    the training queries.

    Args:
        cutoff: the number, where it is known already.

    Raises DataError when the split or the training split is empty, MissingExtraError without the
    extra `statistical`.
    """
    train, asked = dataset.require("train"), dataset.require(split)
    lexical = Lexical(dataset.items)

    def rank(queries: Sequence[Query]) -> dict[str, list[str]]:
        return {
            query.id: [id_ for id_, _ in lexical.best(lexical.scores(query.text), LONGEST)]
            for query in queries
        }

    if cutoff is None:
        relevant = {query.id: dataset.relevant[query.id] for query in train}
        weights = {query.id: query.weight for query in train}
        cutoff, _ = sweep_cutoff(rank(train), relevant, weights)
    rankings = rank(asked)
    of = f"the best {cutoff} items of each ranking, as is best for the training queries"
    sets = {id_: ids[:cutoff] for id_, ids in rankings.items()}
    return Baseline("bm25", of, sets, rankings, cutoff)


def served(workspace: Workspace, split: Split, items: Snapshot, queries: Snapshot) -> Baseline:
    """What a pair answers when it serves: the set that keywords and literal matches of the query's
    text find, then more by text.
    """
    settings, backend = workspace.settings, workspace.backend
    asked = workspace.dataset.require(split)
    sets, rankings = {}, {}
    for id_, row in rows_of_queries(asked, queries, weights=settings.keywords.weights).items():
        words = Words(row.text, text_boost(row.weights, settings.serving.blend))
        found = backend.retrieved(row.weighted, snapshot=items.id, words=words)
        whole = backend.search(row.weighted, size=LONGEST, snapshot=items.id, words=words)
        sets[id_] = [hit.id for hit in found.hits]
        rankings[id_] = [hit.id for hit in whole.hits]
    of = "what keywords find, and items with every word of the query in one field"
    return Baseline("what serves", of, sets, rankings)


@dataclass(frozen=True)
class Evaluation:
    """Figures of one pair on one split.

    Attributes:
        queries: how many queries the split has.
        figures: measure -> macro average over them, as `cogr.metrics.measure` gives it.
        f1s: F1 of each query times its share of all weights times the number of queries, so that
            their mean is the weighted F1.
        graded: whether gains in nDCG are the labels' grades; else they are 1 for relevant items.
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
    f1s: NDArray[np.float64]
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
    """Push an item snapshot that the backend lacks, so that it can be evaluated; what serves stays.
    Returns whether it was pushed.
    """
    if any(known.snapshot == item.id and known.complete for known in backend.list()):
        return False
    backend.push(item)
    return True


def evaluate(
    backend: Backend,
    dataset: Dataset,
    item: Snapshot,
    query: Snapshot,
    split: Split,
    *,
    weights: bool = True,
) -> Evaluation:
    """P, R and F1 of the full retrieved set, and rank metrics, on one split.

    Args:
        weights: False leaves the keywords' weights out, as the setting `keywords.weights` does.

    Raises:
        DataError: the split is empty.
        SnapshotError: the snapshots don't fit one another, or lack a query of the split.
    """
    check_pair(item.manifest, query.manifest)
    queries = dataset.require(split)

    def search(keywords: Mapping[str, float]) -> list[str]:
        return [hit.id for hit in backend.retrieved(keywords, snapshot=item.id).hits]

    started = time.monotonic()
    rows = rows_of_queries(queries, query, weights=weights)
    found = measure(dataset, queries, {id_: search(row.weighted) for id_, row in rows.items()})
    return Evaluation(
        split=split,
        item=item.id,
        query=query.id,
        backend=backend.name,
        queries=len(queries),
        seconds=time.monotonic() - started,
        figures={**found.means, "f1_se": found.standard_errors["f1"]},
        f1s=found.values["f1"] * found.weights / found.weights.mean(),
        graded=grades_of(dataset) is not None,
        keywords_per_item=item.manifest.keywords / max(1, item.manifest.entities),
        keywords_per_query=sum(len(row.keywords) for row in rows.values()) / len(queries),
    )


def figures_of_pair(
    workspace: Workspace, items: str, queries: str, splits: Sequence[Split] = SPLITS
) -> dict[str, dict[str, Any]]:
    """Split -> figures of a pair of snapshots, measured in memory, for each split that has queries;
    those of dev with `f1s`.
    """
    dataset, backend = workspace.dataset, MemoryBackend(workspace.store)
    item, query = (open_snapshot(workspace.store, id_) for id_ in (items, queries))
    backend.push(item)
    found: dict[str, dict[str, Any]] = {}
    weights = workspace.settings.keywords.weights
    for split in splits:
        if dataset.queries.get(split):
            one = evaluate(backend, dataset, item, query, split, weights=weights)
            more = {"f1s": one.f1s.round(6).tolist()} if split == "dev" else {}
            found[split] = {**one.as_dict(), **more}
    return found
