"""Items in mapped files: the same sequence as a list of objects. HTML goes out of their texts; what
only looks like it stays.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr import mapped
from cogr.datasets.fields import plain_text
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
    monkeypatch.setattr(mapped, "_SMALL", small)
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


# HTML


@pytest.mark.parametrize(
    "text",
    [
        "a < b", "p<0.05 and q>3", "a <b and c> d", "List<String>", "R&D", "x&y=1&copy=2",
        "cut <a href='x", "<!-- open > b", "&bogus;", "<" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_html_stays_as_it_is(text: str) -> None:
    assert plain_text(text) == text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("<p>Soft &amp; warm</p><ul><li>Wool</li><li>Red</li></ul>", "Soft & warm\nWool\nRed"),
        ("&lt;p&gt;Escaped&lt;/p&gt; 40&quot; TV", 'Escaped\n40" TV'),
        ("&amp;quot;twice&amp;quot;", '"twice"'),
        ("<b>Acme</b>, blue <strong>Colour</strong>Red", "Acme, blue Colour Red"),
        ("H<sub>2</sub>O", "H2O"),
        ("<a href=http://x?a=1&b=2>link</a>", "link"),
        ("<script>x<1;</script>shown<!-- not --><style>p {}</style>", "shown"),
        ("a <b, c <p>text</p>", "a <b, c\ntext"),
        ("<p>5 < 6 &lt; 7</p> a <b", "5 < 6 < 7\na <b"),
        ("soft&shy;ware&#0;&#x202e; &#39;x&#39; &hellip;", "software 'x' …"),
        ("<i>" * 3000, ""),
    ],
)
def test_html_goes_and_what_a_reader_sees_stays(text: str, plain: str) -> None:
    assert plain_text(text) == plain


@settings(deadline=None)
@given(st.text("<>/&;!-[]= ab\"'pCDAT#1\n", max_size=60))
def test_any_text_is_read_without_error_and_settles(text: str) -> None:
    assert isinstance(plain_text(text), str)
    if "<" not in text and "&" not in text:
        assert plain_text(text) == text
