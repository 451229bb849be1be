"""Items in mapped files: the same sequence as a list of objects."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr import mapped
from cogr.datasets.items import Items, ItemsSpool, in_id_order
from cogr.records import Item

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
    assert [*found] == items
    assert [*found[part]] == items[part]
    assert [found[at] for at in range(-len(items), len(items))] == [*items, *items]
    ordered = sorted(items[part], key=lambda item: item.id)
    assert [*in_id_order(found[part])] == ordered == in_id_order(items[part])
    assert [*in_id_order(found)[part]] == in_id_order(items)[part]


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
    assert [*found] == items
    assert [*found[5000:5003]] == items[5000:5003]
    assert found[9000].fields == {"stock": 3}
    assert [*in_id_order(found)] == sorted(items, key=lambda item: item.id)
