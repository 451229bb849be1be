"""The figures of the honest rivals beside a keyword pair: BM25 over the items' text, and the exact cut of the ranker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cogr.records import Dataset, Split
from cogr.snapshots import Snapshot
from indexers.workspace import Workspace
from trainers import baselines
from trainers.evaluation import measure


def _row(dataset: Dataset, split: Split, make: Callable[[], baselines.Baseline]) -> dict[str, Any]:
    """Figures of one baseline, what its sets are, and how long it took in seconds."""
    started = time.monotonic()
    found = make()
    figures = measure(dataset, dataset.require(split), found.runs, found.rankings)
    row: dict[str, Any] = {"name": found.name, **figures, "seconds": round(time.monotonic() - started, 3)}
    if found.cutoff is None:
        return {**row, "sets": "the head of each ranking that has the highest expected F1"}
    cut = f"the best {found.cutoff} items of each ranking, the number that serves the training queries best"
    return {**row, "cutoff": found.cutoff, "sets": cut}


def bm25_row(dataset: Dataset, split: Split, cutoff: int | None = None) -> dict[str, Any]:
    """BM25 over titles and texts: rank metrics of its whole rankings, P, R and F1 of their best items.

    How many, one number for all queries, is what maximises F1 on the training queries; `cutoff`, where it is known already.

    Raises DataError when the split or the training split is empty, MissingExtraError without the extra `statistical`.
    """
    return _row(dataset, split, lambda: baselines.bm25(dataset, split, cutoff))


def exact_cut_row(workspace: Workspace, split: Split) -> dict[str, Any]:
    """What the ranker behind `statistical` retrieves by its own expected-F1 cut, without any keywords.

    Raises DataError when the split is empty, MissingExtraError without the extra `statistical`.
    """
    from indexers.generators.statistical.generator import Statistical

    with workspace.generator("query", "statistical") as generator:
        assert isinstance(generator, Statistical)
        artefact = generator.artefact
        return _row(workspace.dataset, split, lambda: baselines.exact_cut(artefact, workspace.dataset, split))


def baseline_rows(workspace: Workspace, split: Split, items: Snapshot, queries: Snapshot) -> list[dict[str, Any]]:
    """BM25, and the exact cut where one of the pair was written by `statistical`."""
    kinds = {snapshot.manifest.generator.get("kind") for snapshot in (items, queries)}
    rows = [bm25_row(workspace.dataset, split)]
    return [*rows, exact_cut_row(workspace, split)] if "statistical" in kinds else rows
