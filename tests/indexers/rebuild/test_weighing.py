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
    return Workspace(load_settings(tmp_path / "cogr.toml"), "memory")


def rebuilt(workspace: Workspace, side: str, generator: str | None = None) -> Snapshot:
    request = RebuildRequest(side, generator=generator, push=False)  # type: ignore[arg-type]
    return generate_and_freeze(make_job(workspace, request)).snapshot


def test_lists_get_weights_once_the_ranker_is_there(workspace: Workspace) -> None:
    items = rebuilt(workspace, "item")
    plain = rebuilt(workspace, "query")
    assert all(row.weights == () for row in plain.rows())
    rebuilt(workspace, "query", "statistical")
    weighted = rebuilt(workspace, "query")
    mirror = Mirror.build(items)
    changed = 0
    for before, after in zip(plain.rows(), weighted.rows(), strict=True):
        assert (before.id, before.keywords) == (after.id, after.keywords)
        assert mirror.retrieved(before.weighted) == mirror.retrieved(after.weighted)
        changed += mirror.search(before.weighted).ids != mirror.search(after.weighted).ids
    assert changed > 50


def test_weights_can_be_left_out(workspace: Workspace, tmp_path: Path) -> None:
    rebuilt(workspace, "item")
    rebuilt(workspace, "query", "statistical")
    without = Workspace(load_settings(tmp_path / "cogr.toml", ["keywords.weights=false"]), "memory")
    for generator in ("statistical", "extractive"):
        assert all(row.weights == () for row in rebuilt(without, "query", generator).rows())


def test_without_items_there_is_nothing_to_weigh_for(workspace: Workspace) -> None:
    rebuilt(workspace, "query", "statistical")
    assert all(row.weights == () for row in rebuilt(workspace, "query").rows())


def test_statistical_says_how_sure_it_is_and_what_is_to_answer(workspace: Workspace) -> None:
    rebuilt(workspace, "item", "statistical")
    queries = rebuilt(workspace, "query", "statistical")
    assert all(0 < (row.confidence or 0) < 1 for row in queries.rows())
    assert queries.manifest.blend is not None
    assert rebuilt(workspace, "query").manifest.blend is None
