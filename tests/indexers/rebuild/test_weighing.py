"""Rebuilds give the keyword lists of other generators weights, where `statistical` is fitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.matching.mirror import Mirror
from cogr.settings import load_settings
from cogr.snapshots import Snapshot
from indexers.rebuild.run import RebuildRequest, generate_and_freeze, make_job
from indexers.workspace import Workspace
from trainers.demo import CATALOGUE

CONFIGURATION = f"""
store = "store"
[dataset]
loader = "jsonl"
path = "{CATALOGUE}"
[generator.query]
name = "extractive"
[generator.item]
name = "extractive"
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "cogr.toml").write_text(CONFIGURATION)
    return Workspace(load_settings(tmp_path / "cogr.toml"))


def rebuilt(workspace: Workspace, side: str, generator: str | None = None) -> Snapshot:
    request = RebuildRequest(side, generator=generator, push=False)  # type: ignore[arg-type]
    return generate_and_freeze(make_job(workspace, request)).snapshot


def test_lists_get_weights_once_there_are_a_ranker_and_items(
    workspace: Workspace, tmp_path: Path
) -> None:
    sure = rebuilt(workspace, "query", "statistical")
    assert all(0 < (row.confidence or 0) < 1 for row in sure.rows())
    plain = rebuilt(workspace, "query")
    assert all(row.weights == () for row in plain.rows()), "there is nothing to weigh for"
    mirror = Mirror.build(rebuilt(workspace, "item"))
    weighted = rebuilt(workspace, "query")
    changed = 0
    for before, after in zip(plain.rows(), weighted.rows(), strict=True):
        assert (before.id, before.keywords) == (after.id, after.keywords)
        assert mirror.retrieved(before.weighted) == mirror.retrieved(after.weighted)
        changed += mirror.search(before.weighted).ids != mirror.search(after.weighted).ids
    assert changed > 50
    without = Workspace(load_settings(tmp_path / "cogr.toml", ["keywords.weights=false"]))
    for generator in ("statistical", "extractive"):
        assert all(row.weights == () for row in rebuilt(without, "query", generator).rows())
