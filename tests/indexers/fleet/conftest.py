"""A small shop with quick settings, and an empty store, for the parts of a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.settings import load_settings
from cogr.store import Store
from indexers.workspace import Workspace
from tests.indexers.fleet.fleet_worlds import write_shop


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    write_shop(tmp_path, items=20)
    monkeypatch.setattr("indexers.fleet.shards.FIRST_ENTITIES", 4)
    return Workspace(load_settings(tmp_path / "cogr.toml", ["fleet.lost_seconds=0.4"]))


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path if request.param == "local" else f"memory://{tmp_path.name}")
