"""Tasks over a small part of the sample shop, for the methods that train a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.compare import Fitted, Task
from cogr.records import Dataset
from cogr.settings import Settings
from tests.shops import sample_part


def task_of(
    work: Path, models: Mapping[str, str], dataset: Dataset | None = None, steps: int | None = None
) -> Task:
    """A task as the runner makes it; what is said is thrown away."""
    folder = work / "method" / "seed-0"
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings.model_validate({"dataset": {"loader": "jsonl", "path": "data"}})
    found = sample_part() if dataset is None else dataset
    return Task(found, folder, 0, lambda _line: None, settings, steps, models)


def recall(task: Task, fitted: Fitted, k: int = 5) -> float:
    """Mean recall of the first k items over the training queries."""
    asked = task.dataset.require("train")
    run = fitted.rank(asked, k)
    for query in asked:
        scores = [score for _, score in run[query.id]]
        assert scores == sorted(scores, reverse=True)
        assert np.isfinite(scores).all()
    found = [
        len({id_ for id_, _ in run[query.id]} & task.dataset.relevant[query.id])
        / min(k, len(task.dataset.relevant[query.id]))
        for query in asked
    ]
    return float(np.mean(found))
