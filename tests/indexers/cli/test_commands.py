"""cogr-index end to end on a small shop with the embedded backend: every command does what its help
says.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from tests.indexers.conftest import Command


def rebuild_both(cogr_index: Command) -> dict[str, str]:
    ids = {}
    for side in ("item", "query"):
        ended = cogr_index("rebuild", "--side", side, "--json")
        assert ended.status == 0, ended.err
        ids[side] = ended.json["snapshot"]
    return ids


def test_from_nothing_to_a_search(shop: Path, cogr_index: Command) -> None:
    ids = rebuild_both(cogr_index)
    found = cogr_index("search", "floor lamp", "--json").json
    assert found["hits"][0]["id"] == "c"
    assert found["source"] == "index"
    assert found["snapshot"] == ids["item"]
    assert "floor lamp" in found["hits"][0]["matched"]
    shown = cogr_index("search", "floor lamp", "--explain")
    assert shown.status == 0
    assert "Floor lamp" in shown.out


def test_given_keywords_take_the_place_of_generated_ones(shop: Path, cogr_index: Command) -> None:
    rebuild_both(cogr_index)
    found = cogr_index("search", "anything", "--keywords", "Oak Table, LEATHER SOFA", "--json").json
    assert found["keywords"] == ["anything", "oak table", "leather sofa"]
    assert {hit["id"] for hit in found["hits"]} == {"b", "d"}
    assert found["source"] == "given"


def test_a_dry_run_writes_nothing(shop: Path, cogr_index: Command) -> None:
    planned = cogr_index(
        "rebuild", "--side", "item", "--generator", "scripted", "--dry-run", "--json"
    ).json
    assert (planned["prompts"], planned["cached"], planned["to_generate"]) == (4, 0, 4)
    assert not list((shop / ".cogr").rglob("*.parquet"))


def test_a_part_of_a_side_is_never_pushed(shop: Path, cogr_index: Command) -> None:
    ended = cogr_index("rebuild", "--side", "item", "--limit", 2, "--json")
    assert ended.json["items"] == 2
    assert ended.json["published"] is False
    assert cogr_index("search", "lamp").status == 2


def test_no_push_and_no_publish(shop: Path, cogr_index: Command) -> None:
    made = cogr_index("rebuild", "--side", "item", "--no-push", "--json").json
    rows = cogr_index("list", "--json").json["snapshots"]
    assert [(row["pushed"], row["serving"]) for row in rows] == [(False, False)]
    ended = cogr_index("rebuild", "--side", "item", "--no-publish", "--json")
    assert f"cogr-index publish {made['snapshot']}" in ended.err
    rows = cogr_index("list", "--json").json["snapshots"]
    assert [(row["pushed"], row["serving"]) for row in rows] == [(True, False)]
    assert (
        cogr_index("publish", made["snapshot"], "--json").json["serving"]["item"]
        == made["snapshot"]
    )


def test_publish_and_rollback(shop: Path, cogr_index: Command) -> None:
    ids = rebuild_both(cogr_index)
    other = cogr_index(
        "rebuild", "--side", "item", "--generator", "scripted", "--no-push", "--json"
    ).json["snapshot"]
    assert other != ids["item"]
    pushed = cogr_index("publish", other, "--no-switch", "--json")
    assert ("pushed 4 of 4 documents" in pushed.err, list(pushed.json["indexes"])) == (
        True,
        ["item"],
    )
    assert cogr_index("publish", other, "--json").json["before"]["item"] == ids["item"]
    assert cogr_index("rollback", "--json").json["serving"]["item"] == ids["item"]
    assert cogr_index("rollback", "--to", other, "--json").json["serving"]["item"] == other
    assert cogr_index("verify", "--json").status == 0


def test_exports_hold_what_is_indexed(shop: Path, cogr_index: Command) -> None:
    made = cogr_index("rebuild", "--side", "item", "--json").json
    for format_ in ("jsonl", "bulk", "parquet"):
        ended = cogr_index("export", shop / f"out.{format_}", "--format", format_, "--json")
        assert ended.json["entities"] == made["items"]
    lines = [json.loads(line) for line in (shop / "out.jsonl").read_text("utf-8").splitlines()]
    assert [line["id"] for line in lines] == ["a", "b", "c", "d"]
    assert lines[0]["self"] == "velvet sofa"
    bulk = [json.loads(line) for line in (shop / "out.bulk").read_text("utf-8").splitlines()]
    assert bulk[0] == {"index": {"_index": "cogr-items", "_id": "a"}}
    assert bulk[1]["keywords"] == ["velvet sofa", *lines[0]["keywords"]]
    assert pq.read_table(shop / "out.parquet")["id"].to_pylist() == ["a", "b", "c", "d"]


def test_inspect_says_what_is_in_the_data(shop: Path, cogr_index: Command) -> None:
    assert cogr_index("inspect", "--json").json["advice"]
    shown = cogr_index("inspect")
    assert shown.status == 0
