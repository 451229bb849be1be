"""A catalogue of parts: what serves finds part numbers, sizes and names in all their spellings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cogr.metrics import full_set, sets_of
from cogr.settings import load_settings
from cogr.snapshots import open_snapshot
from indexers.workspace import Workspace
from tests.shops import in_memory, parts_records
from trainers.evaluation import ensure_pushed, served
from trainers.training.contest import generated_pair

MIN_PRECISION = {"numbers": 0.95, "sizes": 0.95, "names": 0.85}
"""Mean precision; by single words without digits and units it was 0.02, 0.72 and 0.40."""


@pytest.mark.slow
def test_the_set_is_precise_for_numbers_sizes_and_names_of_5000_parts(tmp_path: Path) -> None:
    own = {"name": "statistical", "statistical": {"encoder": "none"}}
    table = {"loader": "jsonl", "path": str(tmp_path)}
    settings = {"dataset": table, "store": str(tmp_path / "store"), "generator": own}
    workspace = Workspace(load_settings(None, [], otherwise=settings))
    dataset = in_memory(*parts_records())
    vars(workspace)["dataset"] = dataset
    pair = generated_pair(workspace, splits=())
    item, query = (open_snapshot(workspace.store, id_) for id_ in (pair.items, pair.queries))
    ensure_pushed(workspace.backend, item)
    found = sets_of(served(workspace, "test", item, query).runs)
    figures = full_set(found, {id_: dataset.relevant[id_] for id_ in found}).values
    assert len(found) == 30
    kinds = {"numbers": slice(10), "sizes": slice(10, None, 2), "names": slice(11, None, 2)}
    precision = {kind: float(np.mean(figures["p"][asked])) for kind, asked in kinds.items()}
    assert all(precision[kind] >= least for kind, least in MIN_PRECISION.items()), precision
    assert figures["r"].mean() >= 0.95
