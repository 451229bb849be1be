"""The honest rivals beside a keyword pair: BM25 over the items' text, and the exact cut of the ranker that keywords distil."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cogr.metrics import sweep_cutoff
from cogr.records import Dataset, Query, Split
from indexers.lexical import Lexical
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
