"""Item fields on their way: rebuild, update, export and import, and the index that serves: filters,
facets, sorting, verification.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cogr.snapshots import open_snapshot
from cogr.store import Store
from tests.indexers.conftest import ITEMS, Command
from tests.shops import write_jsonl

EXTRA: list[dict[str, Any]] = [
    {"price": 899, "brand": "Lindmoor", "in_stock": True, "added": "2026-01-31"},
    {"price": 349.5, "brand": "Quillan", "in_stock": False, "added": "2026-02-01"},
    {"price": 59, "brand": "Quillan", "in_stock": True},
    {"price": 1249, "brand": "Lindmoor", "in_stock": True, "updated": "2026-01-01"},
]
CONFIGURATION = """[dataset]
loader = "jsonl"
path = "data"
[generator]
name = "scripted"
[publish]
tolerance = 1
fields = ["price", "brand", "in_stock", "added"]
"""


def write_items(shop: Path, *extra: dict[str, Any]) -> None:
    """The shop's items with their fields, those of the first ones changed by `extra`."""
    more = [*extra, *({} for _ in EXTRA[len(extra) :])]
    items = [
        {**item, **fields, **new} for item, fields, new in zip(ITEMS, EXTRA, more, strict=True)
    ]
    write_jsonl(shop / "data/items.jsonl", items)


@pytest.fixture
def priced(shop: Path) -> Path:
    """The shop, with fields."""
    write_items(shop)
    (shop / "cogr.toml").write_text(CONFIGURATION)
    return shop


def prices(shop: Path, snapshot: str) -> dict[str, Any]:
    return {
        row.id: row.fields.get("price")
        for row in open_snapshot(Store(shop / ".cogr"), snapshot).rows()
    }


def rebuilt(cogr_index: Command) -> str:
    ended = cogr_index("rebuild", "--side", "item", "--json")
    assert ended.status == 0, ended.err
    return str(ended.json["snapshot"])


def found(cogr_index: Command, keyword: str) -> dict[str, Any]:
    """The best hit of a search."""
    ended = cogr_index("search", "x", "--keywords", keyword, "--json")
    hit: dict[str, Any] = ended.json["hits"][0]
    return hit


def test_a_rebuild_says_what_fields_it_found_and_a_search_shows_them(
    priced: Path, cogr_index: Command
) -> None:
    said = " ".join(cogr_index("rebuild", "--side", "item").out.split())
    assert "added date, brand keyword, in_stock boolean, price double" in said
    fields = {"brand": "Quillan", "in_stock": True, "price": 59.0}
    assert found(cogr_index, "floor lamp")["fields"] == fields
    table = cogr_index("search", "lamp", "--keywords", "floor lamp").out
    assert all(word in table for word in ("brand", "Quillan", "in_stock", "yes", "59.0"))
    (priced / "cogr.toml").write_text(CONFIGURATION.replace("fields =", "# fields ="))
    rebuilt(cogr_index)
    assert "fields" not in found(cogr_index, "floor lamp")


def test_a_price_alone_makes_another_snapshot_and_generates_nothing(
    priced: Path, cogr_index: Command
) -> None:
    """Not the note of the last rebuild, not the same id: a price that changed is never
    passed over.
    """
    first = rebuilt(cogr_index)
    assert rebuilt(cogr_index) == first
    write_items(priced, {"price": 799})
    ended = cogr_index("rebuild", "--side", "item", "--json").json
    assert (ended["generated"], ended["published"], ended["snapshot"] != first) == (0, True, True)
    assert prices(priced, ended["snapshot"]) == {"a": 799.0, "b": 349.5, "c": 59.0, "d": 1249.0}
    assert found(cogr_index, "velvet sofa")["fields"]["price"] == 799.0
    diff = cogr_index("diff", first, ended["snapshot"], "--json").json
    assert (diff["changed"], diff["other_fields"], diff["entities"]) == (0, 1, [])
    # The one before has the prices of its day.
    assert cogr_index("rollback").status == 0
    assert found(cogr_index, "velvet sofa")["fields"]["price"] == 899.0


def test_mixed_values_are_refused_before_anything_is_generated(
    priced: Path, cogr_index: Command
) -> None:
    write_items(priced, {}, {"price": "on request"})
    ended = cogr_index("rebuild", "--side", "item")
    assert ended.status == 2
    assert "price of item 'b' is the text 'on request', but of item 'a' the number 8" in ended.err
    assert not Store(priced / ".cogr").list("cache")


def test_by_a_file_of_changes_the_file_says_what_changed(priced: Path, cogr_index: Command) -> None:
    """The data set on disk may be older than the parent: what the file does not name stays as the
    parent has it.
    """
    rebuilt(cogr_index)
    write_jsonl(priced / "one.jsonl", [{**ITEMS[0], **EXTRA[0], "price": 799}])
    cogr_index("update", "--side", "item", "--changed", "one.jsonl")
    write_jsonl(priced / "two.jsonl", [{**ITEMS[1], **EXTRA[1], "price": "249"}])
    ended = cogr_index("update", "--side", "item", "--changed", "two.jsonl", "--json")
    assert prices(priced, ended.json["snapshot"]) == {
        "a": 799.0,
        "b": 249.0,
        "c": 59.0,
        "d": 1249.0,
    }


def test_other_fields_than_the_parents_take_a_rebuild(priced: Path, cogr_index: Command) -> None:
    rebuilt(cogr_index)
    write_jsonl(priced / "one.jsonl", [{**ITEMS[0], **EXTRA[0]}])
    other = ("--set", 'publish.fields=["price"]')
    ended = cogr_index("update", "--side", "item", "--changed", "one.jsonl", *other)
    assert ended.status == 2
    said = "with the item fields added, brand, in_stock, price instead of price (publish.fields)"
    assert said in ended.err
