"""Evaluation on one split: a snapshot pair, searched through a backend, what it answers when it
serves, and BM25 over the items' own text.

`cogr.metrics` measures the whole retrieved set, and rankings in one total order. Memory and
OpenSearch give equal figures.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cogr.metrics import grades_of, measure, rows_of_queries, sweep_cutoff
from cogr.records import SPLITS, Dataset, Query, Split
from cogr.snapshots import Snapshot, check_side, open_snapshot
from indexers.backends import Backend, Pair, ServedSide
from indexers.backends.memory import MemoryBackend, Opened
from indexers.release.beside_text import MAX_RANKING
from indexers.search import Searcher
from indexers.text import Lexical
from indexers.workspace import Workspace


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
        measured = measure(dataset, dataset.require(split), self.runs, self.rankings)
        figures = {**measured.means, "f1_se": measured.standard_errors["f1"]}
        cutoff = {"cutoff": self.cutoff} if self.cutoff else {}
        return {"name": self.name, **figures, **cutoff, "sets": self.of}


def bm25(dataset: Dataset, split: Split, cutoff: int | None = None) -> Baseline:
    """BM25 over words, its sets cut at the number of items that maximises macro F1 on the training
    queries, or at a known one. Raises DataError when the split or the training split is empty.
    """
    train, asked = dataset.require("train"), dataset.require(split)
    lexical = Lexical(dataset.items)

    def rank(queries: Sequence[Query]) -> dict[str, list[str]]:
        return {
            query.id: [id_ for id_, _ in lexical.rank(query.text, MAX_RANKING)] for query in queries
        }

    if cutoff is None:
        cutoff, _ = sweep_cutoff(rank(train), dataset, train)
    rankings = rank(asked)
    of = f"the best {cutoff} items of each ranking, as is best for the training queries"
    sets = {id_: ids[:cutoff] for id_, ids in rankings.items()}
    return Baseline("bm25", of, sets, rankings, cutoff)


def served(workspace: Workspace, split: Split, items: Snapshot, queries: Snapshot) -> Baseline:
    """What a pair answers when it serves, as a search gives it: the set that keywords and literal
    matches of the query's text find, then more by text.
    """
    pair = Pair(ServedSide.of(items.manifest), ServedSide.of(queries.manifest))
    serving, sets = Searcher(workspace, pair, Opened(queries).row_of), dict[str, list[str]]()
    rankings = dict[str, list[str]]()
    for query in workspace.dataset.require(split):
        looked_up = serving.row_for(query.text)
        whole = serving.find(looked_up, MAX_RANKING)
        hits = whole.hits if whole.total <= MAX_RANKING else serving.whole_set(looked_up)
        rankings[query.id] = [hit.id for hit in whole.hits]
        sets[query.id] = [hit.id for hit in hits[: whole.total]]
    of = "what keywords find, and items with every word of the query in one field"
    return Baseline("what serves", of, sets, rankings)


@dataclass(frozen=True)
class Evaluation:
    """Figures of one pair on one split.

    Attributes:
        figures: measure -> macro average over its queries, as `cogr.metrics.measure` gives it.
        f1s: F1 of each query times its share of all weights times the number of queries, so that
            their mean is the weighted F1.
        ndcg_gains: "grades" if gains in nDCG are the labels' grades; else they are 1 for relevant
            items.
        keywords_per_item: mean size of S_i over all items.
        keywords_per_query: mean size of S_q over the split's queries.
        seconds: how long the searches took.
    """

    split: Split
    item_snapshot: str
    query_snapshot: str
    backend: str
    queries: int
    figures: Mapping[str, float]
    f1s: NDArray[np.float64]
    ndcg_gains: Literal["grades", "binary"]
    keywords_per_item: float
    keywords_per_query: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For --json: the attributes, and each of the figures."""
        own = {name: value for name, value in vars(self).items() if name not in ("figures", "f1s")}
        rounded = {name: round(own[name], 3) for name in _ROUNDED}
        return {**own, **rounded, **{name: round(f, 6) for name, f in self.figures.items()}}


_ROUNDED = ("keywords_per_item", "keywords_per_query", "seconds")


def ensure_pushed(backend: Backend, item: Snapshot) -> bool:
    """Push an item snapshot that the backend lacks, so that it can be evaluated; what serves stays.
    Returns whether it was pushed.
    """
    if any(known.snapshot == item.id and known.complete for known in backend.list()):
        return False
    backend.push(item)
    return True


def evaluate(
    workspace: Workspace,
    item: Snapshot,
    query: Snapshot,
    split: Split,
    backend: Backend | None = None,
) -> Evaluation:
    """P, R and F1 of the full retrieved set, and rank metrics, on one split, searched in the
    workspace's backend or another one. Raises DataError where the split is empty, SnapshotError
    where the snapshots don't fit one another, or lack a query of the split.
    """
    check_side(item.id, "item")
    check_side(query.id, "query")
    searched, dataset = backend or workspace.backend, workspace.dataset
    queries, started = dataset.require(split), time.monotonic()
    rows = rows_of_queries(queries, query, weights=workspace.settings.keywords.weights)
    hits = {id_: searched.retrieved(r.weighted, snapshot=item.id).hits for id_, r in rows.items()}
    figures = measure(dataset, queries, {id_: [hit.id for hit in own] for id_, own in hits.items()})
    return Evaluation(
        split,
        item.id,
        query.id,
        searched.name,
        len(queries),
        figures={**figures.means, "f1_se": figures.standard_errors["f1"]},
        f1s=figures.values["f1"] * figures.weights / figures.weights.mean(),
        ndcg_gains="binary" if grades_of(dataset) is None else "grades",
        keywords_per_item=item.manifest.keywords / max(1, item.manifest.entities),
        keywords_per_query=sum(len(row.keywords) for row in rows.values()) / len(queries),
        seconds=time.monotonic() - started,
    )


def split_figures(
    workspace: Workspace, items: str, queries: str, splits: Sequence[Split] = SPLITS
) -> dict[str, dict[str, Any]]:
    """Split -> figures of a pair of snapshots, measured in memory, for each split that has queries;
    those of dev with `f1s`.
    """
    backend = MemoryBackend(workspace.store)
    item, query = (open_snapshot(workspace.store, id_) for id_ in (items, queries))
    backend.push(item)
    figures: dict[str, dict[str, Any]] = {}
    for split in splits:
        if workspace.dataset.queries.get(split):
            one = evaluate(workspace, item, query, split, backend)
            more = {"f1s": one.f1s.round(6).tolist()} if split == "dev" else {}
            figures[split] = {**one.as_dict(), **more}
    return figures
