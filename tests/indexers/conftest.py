"""Commands in this process, and a small shop to run them on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Command as Command
from tests.commands import Ended, run_here


@pytest.fixture
def cogr_index(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `cogr-index` with arguments, in this process."""
    from indexers.cli import main

    def run(*arguments: object) -> Ended:
        return run_here(main, monkeypatch, capsys, "cogr-index", *arguments)

    return run


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


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
CONFIGURATION = '[dataset]\nloader = "jsonl"\npath = "data"\n[generator]\nname = "extractive"\n'


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with four items, three queries and a configuration; also the working directory."""
    data = tmp_path / "data"
    data.mkdir()
    write_jsonl(data / "items.jsonl", ITEMS)
    write_jsonl(data / "queries.jsonl", QUERIES)
    write_jsonl(data / "labels.jsonl", LABELS)
    (tmp_path / "cogr.toml").write_text(CONFIGURATION)
    monkeypatch.chdir(tmp_path)
    return tmp_path
