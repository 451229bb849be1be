"""The honest rivals beside a keyword pair: BM25 over the items' text, and the exact cut of the ranker that keywords distil."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cogr.metrics import sweep_cutoff
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Snapshot
from indexers.lexical import Lexical
from indexers.workspace import Workspace
from trainers.evaluation import measure

LONGEST = 1000
"""Longest ranking that a cutoff is chosen from."""


def bm25_row(dataset: Dataset, split: Split) -> dict[str, Any]:
    """BM25 over titles and texts, cut at the number of items that maximises F1 on the training queries.

    Raises DataError when the split or the training split is empty, MissingExtraError without the extra `statistical`.
    """
    started = time.monotonic()
    lexical = Lexical(dataset.items)

    def runs(queries: Sequence[Query], size: int) -> dict[str, list[str]]:
        return {query.id: [item.id for item, _ in lexical.rank(query.text, size)] for query in queries}

    train = dataset.require("train")
    relevant = {query.id: dataset.relevant[query.id] for query in train}
    cutoff = sweep_cutoff(runs(train, LONGEST), relevant, {query.id: query.weight for query in train}).k
    queries = dataset.require(split)
    figures = measure(dataset, queries, runs(queries, cutoff))
    return {"name": "bm25", "cutoff": cutoff, **figures, "seconds": round(time.monotonic() - started, 3)}


def exact_cut_row(workspace: Workspace, split: Split) -> dict[str, Any]:
    """What the ranker behind `statistical` retrieves by its own expected-F1 cut, without any keywords.

    Raises DataError when the split is empty, MissingExtraError without the extra `statistical`.
    """
    from indexers.generators.statistical.artefact import exact_cut_run
    from indexers.generators.statistical.generator import Statistical

    started = time.monotonic()
    queries = workspace.dataset.require(split)
    with workspace.generator("query", "statistical") as generator:
        assert isinstance(generator, Statistical)
        runs = exact_cut_run(generator.artefact, queries)
    figures = measure(workspace.dataset, queries, runs)
    return {"name": "exact cut", **figures, "seconds": round(time.monotonic() - started, 3)}


def baseline_rows(workspace: Workspace, split: Split, items: Snapshot, queries: Snapshot) -> list[dict[str, Any]]:
    """BM25, and the exact cut where one of the pair was written by `statistical`."""
    kinds = {snapshot.manifest.generator.get("kind") for snapshot in (items, queries)}
    rows = [bm25_row(workspace.dataset, split)]
    return [*rows, exact_cut_row(workspace, split)] if "statistical" in kinds else rows
