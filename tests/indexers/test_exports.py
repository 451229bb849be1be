"""Exports, read by other means than those that wrote them: what is in the snapshot is in the file,
once and whole.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from cogr.errors import UserError
from cogr.matching.mirror import Mirror
from cogr.snapshots import Row, Snapshot, open_snapshot
from cogr.store import Store
from indexers.backends.opensearch.client import Cluster
from indexers.exports import NAMES, export
from tests.indexers.backends.backend_worlds import (
    SHOP,
    SHOPPERS,
    frozen,
    random_queries,
    random_world,
)

ODD = [
    Row("o1", "a, b => c", ("x\\y", "comma, inside", "it's")),
    Row("o2", "#hash", ("# not a comment", "=> arrow")),
    Row("o3", "no keywords", ()),
    Row("o4", "A,  B => C", ("never: the same text as of o1",)),
]


@pytest.fixture
def items(tmp_path: Path) -> Snapshot:
    return frozen(Store(tmp_path / "store"), "item", SHOP)


@pytest.fixture
def queries(tmp_path: Path) -> Snapshot:
    return frozen(Store(tmp_path / "store"), "query", [*SHOPPERS, *ODD])


def whole(row: Row) -> set[str]:
    return {word for word in (row.self_keyword, *row.keywords) if word}


def exported(snapshot: Snapshot, folder: Path, format_: str) -> tuple[str, dict[str, str]]:
    """The file's text, and those beside it by ending."""
    beside = export(snapshot, folder / "out", format_, "shop")
    return (folder / "out").read_text("utf-8"), {
        name.removeprefix("out."): (folder / name).read_text("utf-8") for name in beside
    }


def test_lines_and_parquet_have_every_row(
    items: Snapshot, queries: Snapshot, tmp_path: Path
) -> None:
    for snapshot in (items, queries):
        text, beside = exported(snapshot, tmp_path, "jsonl")
        lines = [json.loads(line) for line in text.splitlines()]
        found = [(one["id"], one["text"], one["self"], tuple(one["keywords"])) for one in lines]
        rows = list(snapshot.rows())
        assert found == [(row.id, row.text, row.self_keyword, row.keywords) for row in rows]
        assert [tuple(one.get("weights", ())) for one in lines] == [row.weights for row in rows]
        assert beside == {}
        assert export(snapshot, tmp_path / "out.parquet", "parquet") == []
        assert pq.read_table(tmp_path / "out.parquet")["id"].to_pylist() == [r.id for r in rows]


def test_a_snapshot_moves_to_another_store_as_a_folder(items: Snapshot, tmp_path: Path) -> None:
    """As docs/exchange.md says."""
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "store/snapshots" / items.id, other / "snapshots" / items.id)
    moved = open_snapshot(Store(other), items.id)
    assert list(moved.rows()) == list(items.rows())


def test_bulk_files_are_pairs_of_lines_with_a_mapping_beside(
    items: Snapshot, queries: Snapshot, tmp_path: Path
) -> None:
    for snapshot, index in ((items, "shop-items"), (queries, "shop-queries")):
        text, beside = exported(snapshot, tmp_path, "bulk")
        lines = [json.loads(line) for line in text.split("\n")[:-1]]
        rows = list(snapshot.rows())
        assert lines[::2] == [{"index": {"_index": index, "_id": row.id}} for row in rows]
        assert [set(document["keywords"]) for document in lines[1::2]] == [
            whole(row) for row in rows
        ]
        mapping = json.loads(beside["mapping.json"])["mappings"]
        assert {name for document in lines[1::2] for name in document} == set(mapping["properties"])
        keywords = mapping["properties"]["keywords"]
        assert (keywords["type"], keywords["norms"], keywords["index_options"]) == (
            "keyword",
            True,
            "freqs",
        )
        assert "use_similarity" in keywords


def test_what_can_not_be_exported_is_refused(items: Snapshot, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"is one of {', '.join(NAMES)}"):
        export(items, tmp_path / "out", "csv")
    with pytest.raises(UserError, match="does not exist; create it"):
        export(items, tmp_path / "no" / "out", "jsonl")
    assert not (tmp_path / "out").exists()


def test_a_bulk_file_by_hand_gives_the_mirrors_scores(cluster: Cluster, tmp_path: Path) -> None:
    rows = random_world(120)
    snapshot = frozen(Store(tmp_path / "store"), "item", rows)
    prefix, index = cluster.settings.prefix, f"{cluster.settings.prefix}-items"
    export(snapshot, tmp_path / "out", "bulk", prefix)
    mapping = json.loads((tmp_path / "out.mapping.json").read_text())
    cluster.call("PUT", f"/{index}", body=mapping, doing="as the docs say")
    answer = cluster.call(
        "POST", "/_bulk", body=(tmp_path / "out").read_bytes(), doing="as the docs say"
    )
    assert answer["errors"] is False
    cluster.call("POST", f"/{index}/_refresh", doing="refreshing")
    mirror = Mirror.build(snapshot)
    for keywords in random_queries(rows, 5, 10):
        clauses = [{"match": {"keywords": {"query": word}}} for word in dict.fromkeys(keywords)]
        body = {"size": 200, "query": {"bool": {"should": clauses}}, "sort": ["_score", "item_id"]}
        hits = cluster.call("POST", f"/{index}/_search", body=body, doing="searching")["hits"][
            "hits"
        ]
        expected = mirror.search(list(dict.fromkeys(keywords)), 200)
        assert [hit["_id"] for hit in hits] == expected.ids
        scores = np.array([hit["sort"][0] for hit in hits], np.float32)
        assert scores.tobytes() == expected.scores.tobytes()
