"""Evaluation on one split: a snapshot pair, searched through a backend, and its baselines: BM25
over the items' own text, and the exact cut of the ranker behind `statistical`.

`cogr.metrics` measures all three: the whole retrieved set, and rankings in one total order.
Memory and OpenSearch give equal figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cogr.metrics import grades_of, measure, rows_of_queries, search_all, sweep_cutoff
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Snapshot, check_pair
from indexers.backends import Backend, Words, text_boost
from indexers.text import Lexical
from indexers.workspace import Workspace

if TYPE_CHECKING:
    from indexers.generators.statistical.artefact import Artefact

LONGEST = 1000
"""Length of rankings, from which cutoffs are chosen and rank metrics computed."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline's rankings and retrieved sets on one split.

    Attributes:
        name: "bm25", "exact cut" or "what serves".
        runs: query id -> ids of its retrieved items, best first: the head of its ranking.
        rankings: query id -> the whole ranking, 1,000 items at most.
        cutoff: items a query, where it is the same for all queries; None where each query has its
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
        cutoff = sweep_cutoff(rank(train), relevant, {query.id: query.weight for query in train}).k
    rankings = rank(asked)
    return Baseline("bm25", {id_: ids[:cutoff] for id_, ids in rankings.items()}, rankings, cutoff)


def exact_cut(artefact: Artefact, dataset: Dataset, split: Split) -> Baseline:
    """The rankings of the ranker behind `statistical`, cut where their expected F1 is highest; no
    keywords are used.

    Raises DataError when the split is empty.
    """
    from indexers.generators.statistical.artefact import rankings

    found = list(rankings(artefact, dataset.require(split)))
    sets = {id_: ids[:cut] for id_, ids, cut in found}
    return Baseline("exact cut", sets, {id_: ids[:LONGEST] for id_, ids, _ in found})


def _row(dataset: Dataset, split: Split, make: Callable[[], Baseline]) -> dict[str, Any]:
    """Figures of one baseline, a description of its sets, and its seconds."""
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


def serving_row(
    workspace: Workspace, split: Split, items: Snapshot, queries: Snapshot
) -> dict[str, Any]:
    """What a pair answers when it serves: P, R and F1 of the set (keywords and literal matches of
    the query's text), rank metrics of both tiers.
    """
    settings, backend = workspace.settings, workspace.backend
    asked = workspace.dataset.require(split)

    def search() -> Baseline:
        sets, rankings = {}, {}
        for id_, row in rows_of_queries(asked, queries, weights=settings.keywords.weights).items():
            words = Words(row.text, text_boost(row.weights, settings.serving.blend))
            keywords = row.weighted
            found = backend.retrieved(keywords, snapshot=items.id, words=words)
            whole = backend.search(keywords, size=LONGEST, snapshot=items.id, words=words)
            sets[id_] = [hit.id for hit in found.hits]
            rankings[id_] = [hit.id for hit in whole.hits]
        return Baseline("what serves", sets, rankings)

    row = _row(workspace.dataset, split, search)
    return {
        **row,
        "sets": "what keywords find, and items with every word of the query in one field",
    }


def bm25_row(dataset: Dataset, split: Split, cutoff: int | None = None) -> dict[str, Any]:
    """BM25 over titles and texts: rank metrics of its whole rankings; P, R and F1 of their best
    items.

    The number of best items is the same for all queries: the one that maximises F1 on the training
    queries, or `cutoff` where it is known already.

    Raises DataError when the split or the training split is empty, MissingExtraError without the
    extra `statistical`.
    """
    return _row(dataset, split, lambda: bm25(dataset, split, cutoff))


def exact_cut_row(workspace: Workspace, split: Split) -> dict[str, Any]:
    """The sets that the ranker behind `statistical` retrieves by its own expected-F1 cut, without
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
        figures: measure -> macro average over them, as `cogr.metrics.measure` gives it.
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
