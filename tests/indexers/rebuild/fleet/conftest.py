"""A small shop, and quick constants for the parts of a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.settings import load_settings
from indexers.rebuild.fleet import coordinator
from indexers.workspace import Workspace
from tests.shops import write_thing_shop


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    write_thing_shop(tmp_path, items=20)
    for name, value in {
        "MIN_SHARD": 4,
        "SHARDS": 5,
        "POLL_SECONDS": 0.01,
        "LOOK_SECONDS": 0,
    }.items():
        monkeypatch.setattr(coordinator, name, value)
    sets = ["redis.url=redis://127.0.0.1:1/0", "rebuild.max_failure_share=1"]
    return Workspace(load_settings(tmp_path / "cogr.toml", sets))
