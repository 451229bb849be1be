"""Items in mapped files: the same sequence as a list of objects."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr import mapped
from cogr.datasets import load_dataset
from cogr.datasets.changes import Changes, changes_since
from cogr.datasets.items import Items, ItemsSpool, ItemTable, in_id_order
from cogr.datasets.reading import Place
from cogr.mapped import (
    SortedStrings,
    arrow_strings,
)
from cogr.records import Dataset, Item

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
FIELDS = st.sampled_from(["", "", '{"price":1.5}'])
ITEMS = st.lists(
    st.builds(Item, TEXTS, TEXTS, TEXTS, FIELDS), max_size=20, unique_by=lambda item: item.id
)


def spooled(items: list[Item]) -> Items:
    found = ItemsSpool()
    for item in items:
        found.add(item)
    return found.items()


@settings(deadline=None, max_examples=40)
@given(ITEMS, st.slices(20))
def test_items_are_a_sequence(items: list[Item], part: slice) -> None:
    found = spooled(items)
    assert found == items
    assert list(found) == items
    assert found[part] == items[part]
    assert [found[at] for at in range(-len(items), len(items))] == [*items, *items]
    assert found != [*items, Item("more", "", "")]
    ordered = sorted(items[part], key=lambda item: item.id)
    assert in_id_order(found[part]) == ordered == in_id_order(items[part])
    assert in_id_order(found)[part] == in_id_order(items)[part]


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_many_items_lie_in_files(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "SMALL", small)
    items = [
        Item(f"i{number * 7919 % 10_007}", "ü" * (number % 5), "text") for number in range(10_007)
    ]
    items[9000] = dataclasses.replace(
        items[9000], fields_json='{"stock":3}'
    )  # long after the first was written
    found = spooled(items)
    assert found == items
    assert found[5000:5003] == items[5000:5003]
    assert found[9000].fields == {"stock": 3}
    assert in_id_order(found) == sorted(items, key=lambda item: item.id)


def test_times_are_told_by_id() -> None:
    table, place, zone = ItemTable(), Path("shop"), timezone(timedelta(hours=2))
    times = {
        "b": datetime(2026, 1, 31, 1, 2, 3, 4, zone),
        "c": None,
        "a": datetime(1900, 1, 1, tzinfo=UTC),
    }
    for line, (id_, time) in enumerate(times.items()):
        table.add(Place(place, line), Item(id_, "", ""), time)
    assert table.times == {"b": times["b"], "a": times["a"]}
    assert "c" not in table.times
    assert "d" not in table.times
    assert not ItemTable().times


def test_a_loaded_data_set_has_no_object_an_item(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"id": "b", "title": "B"}\n{"id": "a", "title": "A"}\n')
    dataset = load_dataset("jsonl", tmp_path)
    assert isinstance(dataset.items, Items)
    assert isinstance(dataset.entities("item")[:1], Items)
    changed = Changes(
        "item", {"c": Item("c", "C"), "b": Item("b", "BB")}, frozenset(["a"])
    ).applied_to(dataset)
    assert isinstance(changed.items, Items)
    assert changed.items == [Item("b", "BB"), Item("c", "C")]


@settings(deadline=None, max_examples=40)
@given(ITEMS, st.sets(TEXTS))
def test_what_only_the_snapshot_knows_is_gone(items: list[Item], more: set[str]) -> None:
    known = SortedStrings(arrow_strings(sorted(more)))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    times = {item.id: now + timedelta(days=at % 3 - 1) for at, item in enumerate(items)}
    dataset = Dataset("shop", spooled(items), {}, {}, {}, "", updated={"item": times or {"": now}})
    changes = changes_since(dataset, "item", now, known)
    assert changes.deletes == more - {item.id for item in items}
    assert changes.upserts == {
        item.id: item for item in items if item.id not in more or times[item.id] >= now
    }
