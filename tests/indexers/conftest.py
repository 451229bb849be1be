"""Commands in this process, a small shop to run them on, and empty stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.store import Store
from tests.commands import Command as Command
from tests.shops import DATASET, write_shop


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store, in a folder and in memory."""
    return Store(tmp_path if request.param == "local" else f"memory://{tmp_path.name}")


ITEMS = [
    {"id": "a", "title": "Velvet sofa", "text": "A green velvet sofa for the living room"},
    {"id": "b", "title": "Oak table", "text": "A solid oak dining table"},
    {"id": "c", "title": "Floor lamp", "text": "A brass floor lamp for reading"},
    {"id": "d", "title": "Leather sofa", "text": "A brown leather sofa, living room classic"},
]
QUERIES = [
    {"id": "q1", "text": "green couch", "split": "train"},
    {"id": "q2", "text": "living room sofa", "split": "test"},
    {"id": "q3", "text": "floor lamp", "split": "test"},
]
LABELS = [
    {"query": "q1", "item": "a", "grade": 1},
    {"query": "q2", "item": "a", "grade": 1},
    {"query": "q2", "item": "d", "grade": 1},
    {"query": "q3", "item": "c", "grade": 1},
]
GENERATOR = '[generator]\nname = "extractive"\n'
CONFIGURATION = DATASET + GENERATOR


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with four items, three queries and a configuration; also the working directory."""
    write_shop(tmp_path, ITEMS, QUERIES, LABELS, GENERATOR)
    monkeypatch.chdir(tmp_path)
    return tmp_path
