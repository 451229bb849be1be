"""Extra fields of items: one type a field, derived from its values, which are converted to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cogr.errors import DataError
from cogr.records import FieldType, typed, types_of
from cogr.settings.serving import PublishSettings
from cogr.snapshots import Provenance, Row, open_snapshot
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store


def type_of(*values: Any) -> FieldType:
    items = ((f"i{n}", json.dumps({"f": value})) for n, value in enumerate(values))
    return types_of(items, ["f"])["f"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((20, 19.5), "double"),
        ((True, False), "boolean"),
        (("2026-01-31", "2026-02-01T10:00:00Z"), "date"),
        ((["a", "b"], "c", []), "keyword"),
        ((["1", 2], 3), "long"),
        # A table of texts, as CSV has it.
        (("20", "19.50", ""), "double"),
        (("true", "FALSE"), "boolean"),
        (("20", "on request"), "keyword"),
        (("01234", "99999"), "keyword"),
        (("2026-02-30",), "keyword"),
        # Rows of the snapshot before, beside new ones that are texts.
        ((True, "false"), "boolean"),
    ],
)
def test_a_field_has_the_first_type_that_every_value_fits(
    values: tuple[Any, ...], expected: FieldType
) -> None:
    assert type_of(*values) == expected


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((9.5, "on request"), "is the text 'on request', but of item 'i0' the number 9.5; "),
        ((1, True), "is true, but of item 'i0' the number 1; "),
    ],
)
def test_mixed_values_are_refused_with_item_and_field(values: tuple[Any, ...], said: str) -> None:
    with pytest.raises(DataError, match=f"field f .*'i1' {said}"):
        type_of(*values)


@pytest.mark.parametrize(
    ("type_", "value", "made"),
    [
        ("double", "19.50", 19.5),
        ("boolean", " TRUE", True),
        ("keyword", ["b", "", "a"], ["b", "a"]),
    ],
)
def test_values_get_their_types_own_form(type_: FieldType, value: Any, made: Any) -> None:
    kept = json.loads(typed("i", json.dumps({"f": value, "other": 1}), {"f": type_}))
    assert (kept, type(kept["f"])) == ({"f": made}, type(made))


def test_a_text_that_is_too_long_is_refused_with_item_and_field() -> None:
    said = "The field f of item 'a' has 20,000 characters, but a text for filters has at most"
    with pytest.raises(DataError, match=said):
        typed("a", json.dumps({"f": "\u00fc" * 20_000}), {"f": "keyword"})


@pytest.mark.parametrize(
    "name", ["item_id", "keywords", "text", "_id", "a.b", "a,b", "a*", "", " a"]
)
def test_names_that_an_index_can_not_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="field"):
        PublishSettings(fields=(name,))


def test_fields_are_part_of_what_a_snapshot_is(tmp_path: Any) -> None:
    store, rows = Store(tmp_path), [Row("a", "A", ("x",)), Row("b", "B", ())]
    priced = [Row("a", "A", ("x",), '{"price":9.5}'), Row("b", "B", ())]
    dearer = [Row("a", "A", ("x",), '{"price":10.5}'), Row("b", "B", ())]
    bare = write_snapshot(store, "item", rows, Provenance())
    made = [
        write_snapshot(store, "item", some, Provenance(), {"price": type_})
        for some, type_ in ((priced, "double"), (dearer, "double"), (priced, "keyword"))
    ]
    assert len({bare.id, *(one.id for one in made)}) == 4
    assert bare.manifest.fields == {}
    opened = open_snapshot(store, made[0].id)
    assert list(opened.rows()) == priced
    assert opened.manifest.fields == {"price": "double"}
    assert next(opened.rows()).fields == {"price": 9.5}
