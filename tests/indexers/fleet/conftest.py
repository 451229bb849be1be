"""A small shop with quick settings for the parts of a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.settings import load_settings
from indexers.workspace import Workspace
from tests.shops import write_thing_shop


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    write_thing_shop(tmp_path, items=20)
    monkeypatch.setattr("indexers.fleet.shards.FIRST_ENTITIES", 4)
    return Workspace(load_settings(tmp_path / "cogr.toml", ["fleet.lost_seconds=0.4"]))
