"""cogr-index end to end on a small shop with the embedded backend: every command does what its help
says.
"""

from __future__ import annotations

from pathlib import Path

from tests.indexers.conftest import Command


def test_from_nothing_to_a_search(shop: Path, cogr_index: Command) -> None:
    items, _ = (cogr_index("rebuild", "--side", side, "--json").json for side in ("item", "query"))
    found = cogr_index("search", "floor lamp", "--json").json
    assert found["hits"][0]["id"] == "c"
    assert found["source"] == "index"
    assert found["snapshot"] == items["snapshot"]
    assert "floor lamp" in found["hits"][0]["matched"]
    shown = cogr_index("search", "floor lamp", "--explain")
    assert shown.status == 0
    assert "Floor lamp" in shown.out


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
    assert cogr_index("rebuild", "--side", "item", "--no-publish", "--json").status == 0
    rows = cogr_index("list", "--json").json["snapshots"]
    assert [(row["pushed"], row["serving"]) for row in rows] == [(True, False)]
    published = cogr_index("publish", made["snapshot"], "--json").json
    assert published["serving"]["item"] == made["snapshot"]
