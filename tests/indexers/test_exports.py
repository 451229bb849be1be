"""Exports: what is in the snapshot is in the file, once and whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cogr.errors import StorageError
from cogr.snapshots import Row, open_snapshot
from cogr.store import Store
from indexers.exports import export_keywords
from tests.indexers.backends.backend_worlds import SHOP, SHOPPERS, frozen

ODD = [Row("o1", "a, b => c", ("x\\y", "comma, inside", "it's")), Row("o2", "no keywords", ())]


def test_lines_have_every_row(tmp_path: Path) -> None:
    for side, given in (("item", SHOP), ("query", [*SHOPPERS, *ODD])):
        snapshot = frozen(Store(tmp_path / "store"), side, given)
        export_keywords(snapshot, tmp_path / "out")
        lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        found = [(one["id"], one["text"], one["self"], tuple(one["keywords"])) for one in lines]
        rows = list(snapshot.rows())
        assert found == [(row.id, row.text, row.self_keyword, row.keywords) for row in rows]
        assert [tuple(one.get("weights", ())) for one in lines] == [row.weights for row in rows]
    with pytest.raises(StorageError, match="does not exist; create it"):
        export_keywords(snapshot, tmp_path / "no" / "out")


def test_a_snapshot_moves_to_another_store_as_a_folder(tmp_path: Path) -> None:
    """As docs/exchange.md says."""
    items, other = frozen(Store(tmp_path / "store"), "item", SHOP), tmp_path / "other"
    shutil.copytree(tmp_path / "store/snapshots" / items.id, other / "snapshots" / items.id)
    moved = open_snapshot(Store(other), items.id)
    assert list(moved.rows()) == list(items.rows())
