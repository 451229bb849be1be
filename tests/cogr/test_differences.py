"""Differences of two snapshots, against a plain comparison of dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.differences import Difference, differences
from cogr.errors import SnapshotError
from cogr.records import FieldType, Side
from cogr.snapshots import Provenance, Row, Snapshot, writing
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store

BRAND: Mapping[str, FieldType] = {"brand": "keyword"}
WORDS = [(), ("k1",), ("k1", "k2"), ("k2", "k1")]
ROWS = st.dictionaries(
    st.sampled_from(["a", "b", "ba", "é", "z", "\uffff", "\U0001f6cb"]),
    st.builds(
        lambda text, words, weight, sure: Row(
            "", text, words, weights=weight and (weight,) * (len(words) + 1), confidence=sure
        ),
        st.sampled_from(["sofa", "lamp", ""]),
        st.sampled_from(WORDS),
        st.sampled_from([(), (), 2.5, 0.1]),
        st.sampled_from([None, None, 0.0, 0.73]),
    ),
)


def frozen(
    name: str,
    rows: dict[str, Row],
    side: Side = "query",
    fields: Mapping[str, FieldType] | None = None,
) -> Snapshot:
    ordered = (replace(row, id=id_) for id_, row in sorted(rows.items()))
    store = Store(f"memory://differences-{name}")
    return write_snapshot(store, side, ordered, Provenance(), fields)


@settings(deadline=None, max_examples=50)
@given(
    before=ROWS,
    after=ROWS,
    batches=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
)
def test_differences_are_those_of_plain_dicts(
    before: dict[str, Row],
    after: dict[str, Row],
    batches: tuple[int, int, int],
) -> None:
    """Whatever the sizes of batches are that they were written and are read in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "ROWS", batches[0])
        old = frozen("a", before)
        patch.setattr(writing, "ROWS", batches[1])
        new = frozen("b", after)
        patch.setattr("cogr.snapshots.ROWS", batches[2])
        found = list(differences(old, new))
    assert found == [
        Difference(old.by_id.get(id_), new.by_id.get(id_))
        for id_ in sorted(before.keys() | after.keys())
        if old.by_id.get(id_) != new.by_id.get(id_)
    ]
    assert [one.id for one in found] == sorted(one.id for one in found)


def test_items_differ_in_each_of_their_columns() -> None:
    row = Row("", "sofa", ("k1",), '{"brand":"b"}', body="c0ffee")
    before = dict.fromkeys("abcdef", row)
    after = before | {
        "b": replace(row, text="lamp"),
        "c": replace(row, keywords=("k1", "k2")),
        "d": replace(row, fields_json='{"brand":"c"}'),
        "e": replace(row, body=""),
    }
    old, new = frozen("a", before, "item", BRAND), frozen("b", after, "item", BRAND)
    assert [one.id for one in differences(old, new)] == [*"bcde"]
    assert all(one.before == old.by_id[one.id] for one in differences(old, new))


def test_fields_that_only_one_snapshot_has_are_differences() -> None:
    row = Row("", "sofa", ("k1",))
    old = frozen("a", {"a": row, "b": row}, "item")
    new = frozen("b", {"a": row, "b": replace(row, fields_json='{"brand":"b"}')}, "item", BRAND)
    for before, after in ((old, new), (new, old)):
        (found,) = differences(before, after)
        assert found == Difference(before.by_id["b"], after.by_id["b"])


def test_line_ends_do_not_make_two_rows_one() -> None:
    last = Row("", "lamp", ())
    old = frozen("a", {"a\nred": Row("", "sofa", ()), "z": last})
    new = frozen("b", {"a": Row("", "red\nsofa", ()), "z": last})
    assert [one.id for one in differences(old, new)] == ["a", "a\nred"]


def test_snapshots_of_two_sides_have_no_differences() -> None:
    with pytest.raises(SnapshotError, match="sides"):
        list(differences(frozen("a", {}), frozen("b", {}, "item")))
