"""Item fields on their way: rebuild, update, export and import, and the index that serves: filters,
facets, sorting, verification.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cogr.snapshots import open_snapshot
from cogr.store import Store
from tests.commands import Command, done
from tests.shops import ITEMS, write_jsonl

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


REBUILD = ("rebuild", "--side", "item")
UPDATE = ("update", "--side", "item", "--changed")


def prices(snapshot: str) -> dict[str, Any]:
    rows = open_snapshot(Store(".cogr"), snapshot).rows()
    return {row.id: row.fields.get("price") for row in rows}


def best(cogr_index: Command, keywords: str) -> dict[str, Any]:
    """The first hit."""
    hit: dict[str, Any] = done(cogr_index, "search", "x", "--keywords", keywords)["hits"][0]
    return hit


def test_a_rebuild_says_what_fields_it_found_and_a_search_shows_them(
    priced: Path, cogr_index: Command
) -> None:
    told = " ".join(cogr_index(*REBUILD).out.split())
    assert "added date, brand keyword, in_stock boolean, price double" in told
    fields = {"brand": "Quillan", "in_stock": True, "price": 59.0}
    assert best(cogr_index, "floor lamp")["fields"] == fields
    (priced / "cogr.toml").write_text(CONFIGURATION.replace("fields =", "# fields ="))
    done(cogr_index, *REBUILD)
    assert "fields" not in best(cogr_index, "floor lamp")


def test_a_price_alone_makes_another_snapshot_and_generates_nothing(
    priced: Path, cogr_index: Command
) -> None:
    """Not the note of the last rebuild, not the same id: a price that changed is never
    passed over.
    """
    first = done(cogr_index, *REBUILD)["snapshot"]
    assert done(cogr_index, *REBUILD)["snapshot"] == first
    write_items(priced, {"price": 799})
    made = done(cogr_index, *REBUILD)
    assert (made["generated"], made["published"], made["snapshot"] != first) == (0, True, True)
    assert prices(made["snapshot"]) == {"a": 799.0, "b": 349.5, "c": 59.0, "d": 1249.0}
    assert best(cogr_index, "velvet sofa")["fields"]["price"] == 799.0
    diff = done(cogr_index, "diff", first, made["snapshot"])
    assert (diff["changed"], diff["other_fields"], diff["entities"]) == (0, 1, [])
    # The one before has the prices of its day.
    assert cogr_index("rollback").status == 0
    assert best(cogr_index, "velvet sofa")["fields"]["price"] == 899.0


def test_mixed_values_are_refused_before_anything_is_generated(
    priced: Path, cogr_index: Command
) -> None:
    write_items(priced, {}, {"price": "on request"})
    ended = cogr_index(*REBUILD)
    told = "The field price of item 'b' is the text 'on request', but of item 'a' the number 899;"
    assert (ended.status, told in ended.err) == (2, True)
    assert not Store(".cogr").list("cache")


def test_by_a_file_of_changes_the_file_says_what_changed(priced: Path, cogr_index: Command) -> None:
    """The data set on disk may be older than the parent: what the file does not name stays as the
    parent has it.
    """
    done(cogr_index, *REBUILD)
    write_jsonl(priced / "one.jsonl", [{**ITEMS[0], **EXTRA[0], "price": 799}])
    done(cogr_index, *UPDATE, "one.jsonl")
    write_jsonl(priced / "two.jsonl", [{**ITEMS[1], **EXTRA[1], "price": "249"}])
    second = done(cogr_index, *UPDATE, "two.jsonl")["snapshot"]
    assert prices(second) == {"a": 799.0, "b": 249.0, "c": 59.0, "d": 1249.0}
    # Other fields than the parent's take a rebuild.
    ended = cogr_index(*UPDATE, "one.jsonl", "--set", 'publish.fields=["price"]')
    told = "with the item fields added, brand, in_stock, price instead of price (publish.fields)"
    assert (ended.status, told in ended.err) == (2, True)
