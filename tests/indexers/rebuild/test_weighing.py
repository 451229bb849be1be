"""Rebuilds give the keyword lists of other generators weights, where `statistical` is fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cogr.matching.mirror import Mirror
from cogr.settings import Settings
from indexers.workspace import Workspace
from tests.shops import rebuild_here
from trainers.demo import CATALOGUE

pytestmark = pytest.mark.slow


def test_lists_get_weights_once_there_are_a_ranker_and_items(tmp_path: Path) -> None:
    settings: Any = {
        "dataset": {"loader": "jsonl", "path": str(CATALOGUE)},
        "store": str(tmp_path),
        "generator": {"name": "extractive"},
    }
    workspace, statistical = Workspace(Settings(**settings)), {"generator": "statistical"}
    sure = rebuild_here(workspace, "query", push=False, **statistical).snapshot
    assert all(0 < (row.confidence or 0) < 1 for row in sure.rows())
    plain = rebuild_here(workspace, "query", push=False).snapshot
    assert all(row.weights == () for row in plain.rows()), "there is nothing to weigh for"
    mirror = Mirror.build(rebuild_here(workspace, push=False).snapshot)
    weighted = rebuild_here(workspace, "query", push=False).snapshot
    changed = 0
    for before, after in zip(plain.rows(), weighted.rows(), strict=True):
        assert (before.id, before.keywords) == (after.id, after.keywords)
        assert mirror.retrieved(before.weighted) == mirror.retrieved(after.weighted)
        changed += mirror.search(before.weighted).ids != mirror.search(after.weighted).ids
    assert changed > 50
    without = Workspace(Settings(**settings, keywords={"weights": False}))
    for options in (statistical, {}):
        rows = rebuild_here(without, "query", push=False, **options).snapshot.rows()
        assert all(row.weights == () for row in rows)
