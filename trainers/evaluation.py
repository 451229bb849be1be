"""Evaluation on one split: a snapshot pair, through a backend, and what it must beat: BM25 over the
items' own text, and the exact cut of the ranker that `statistical` distils.

`cogr.evaluation` measures all three: the whole retrieved set, and rankings in one total order.
Memory and OpenSearch give equal figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cogr.evaluation import grades_of, measure, rows_of_queries, search_all
from cogr.metrics import sweep_cutoff
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Snapshot, check_pair
from indexers.backends import Backend
from indexers.text import Lexical
from indexers.workspace import Workspace

if TYPE_CHECKING:
    from indexers.generators.statistical.artefact import Artefact

LONGEST = 1000
"""Longest ranking: what a cutoff is chosen from, and what rank metrics see."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline's rankings and retrieved sets on one split.

    Attributes:
        name: "bm25" or "exact cut".
        runs: query id -> ids of its retrieved items, best first: the head of its ranking.
        rankings: query id -> the whole ranking, 1,000 items at most.
        cutoff: items a query, where one number serves all queries; None where each query has its
            own.
    """

    name: str
    runs: Mapping[str, Sequence[str]]
    rankings: Mapping[str, Sequence[str]]
    cutoff: int | None = None


def bm25(dataset: Dataset, split: Split, cutoff: int | None = None) -> Baseline:
    """BM25 (bm25s, English stems), its sets cut at the number of items that maximises macro F1 on
    the training queries.

    Args:
        cutoff: that number, where it is known already.

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
        cutoff = sweep_cutoff(rank(train), relevant, {query.id: query.weight for query in train}).k
    rankings = rank(asked)
    return Baseline("bm25", {id_: ids[:cutoff] for id_, ids in rankings.items()}, rankings, cutoff)


def exact_cut(artefact: Artefact, dataset: Dataset, split: Split) -> Baseline:
    """What the ranker of `statistical` ranks, and retrieves at its own expected-F1 optimum, without
    any keywords.

    Raises DataError when the split is empty.
    """
    from indexers.generators.statistical.artefact import rankings

    found = list(rankings(artefact, dataset.require(split)))
    sets = {id_: ids[:cut] for id_, ids, cut in found}
    return Baseline("exact cut", sets, {id_: ids[:LONGEST] for id_, ids, _ in found})


def _row(dataset: Dataset, split: Split, make: Callable[[], Baseline]) -> dict[str, Any]:
    """Figures of one baseline, what its sets are, and how long it took in seconds."""
    started = time.monotonic()
    found = make()
    figures = measure(dataset, dataset.require(split), found.runs, found.rankings)
    row: dict[str, Any] = {
        "name": found.name,
        **figures,
        "seconds": round(time.monotonic() - started, 3),
    }
    if found.cutoff is None:
        return {**row, "sets": "the head of each ranking that has the highest expected F1"}
    cut = (
        f"the best {found.cutoff} items of each ranking, the number that serves the training "
        "queries best"
    )
    return {**row, "cutoff": found.cutoff, "sets": cut}


def bm25_row(dataset: Dataset, split: Split, cutoff: int | None = None) -> dict[str, Any]:
    """BM25 over titles and texts: rank metrics of its whole rankings, P, R and F1 of their best
    items.

    How many, one number for all queries, is what maximises F1 on the training queries; `cutoff`,
    where it is known already.

    Raises DataError when the split or the training split is empty, MissingExtraError without the
    extra `statistical`.
    """
    return _row(dataset, split, lambda: bm25(dataset, split, cutoff))


def exact_cut_row(workspace: Workspace, split: Split) -> dict[str, Any]:
    """What the ranker behind `statistical` retrieves by its own expected-F1 cut, without any
    keywords.

    Raises DataError when the split is empty, MissingExtraError without the extra `statistical`.
    """
    from indexers.generators.statistical.generator import Statistical

    with workspace.generator("query", "statistical") as generator:
        assert isinstance(generator, Statistical)
        artefact = generator.artefact
        return _row(workspace.dataset, split, lambda: exact_cut(artefact, workspace.dataset, split))


def baseline_rows(
    workspace: Workspace, split: Split, items: Snapshot, queries: Snapshot
) -> list[dict[str, Any]]:
    """BM25, and the exact cut where one of the pair was written by `statistical`."""
    kinds = {snapshot.manifest.generator.get("kind") for snapshot in (items, queries)}
    rows = [bm25_row(workspace.dataset, split)]
    return [*rows, exact_cut_row(workspace, split)] if "statistical" in kinds else rows


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
    runs = search_all(search, rows)
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
        keywords_per_query=sum(len(row.keywords) for row in rows.values()) / len(queries),
    )
