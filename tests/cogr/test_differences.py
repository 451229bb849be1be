"""Differences of two snapshots, against a plain comparison of dicts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.differences import Difference, differences
from cogr.errors import SnapshotError
from cogr.snapshots import (
    Provenance,
    Row,
    Snapshot,
    writing,
)
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store

ROWS = st.dictionaries(
    st.sampled_from(["a", "b", "ba", "é", "z", "\uffff", "\U0001f6cb"]),
    st.tuples(
        st.sampled_from(["sofa", "lamp", ""]),
        st.lists(st.sampled_from(["k1", "k2", "k3"]), unique=True),
    ),
)


def frozen(name: str, rows: dict[str, tuple[str, list[str]]], side: str = "item") -> Snapshot:
    ordered = (Row(id_, text, tuple(words)) for id_, (text, words) in sorted(rows.items()))
    return write_snapshot(Store(f"memory://differences-{name}"), side, ordered, Provenance())  # type: ignore[arg-type]


@settings(deadline=None, max_examples=50)
@given(
    before=ROWS,
    after=ROWS,
    batches=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
)
def test_differences_are_those_of_plain_dicts(
    before: dict[str, tuple[str, list[str]]],
    after: dict[str, tuple[str, list[str]]],
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


WEIGHED = st.dictionaries(
    st.sampled_from(["a", "b", "ba", "z"]),
    st.tuples(st.sampled_from([None, 1.0, 2.5, 0.1]), st.sampled_from([None, 0.0, 0.73])),
)


@settings(deadline=None, max_examples=50)
@given(before=WEIGHED, after=WEIGHED)
def test_other_weights_or_another_confidence_is_a_difference(
    before: dict[str, tuple[float | None, float | None]],
    after: dict[str, tuple[float | None, float | None]],
) -> None:
    def weighed(name: str, rows: dict[str, tuple[float | None, float | None]]) -> Snapshot:
        made = [
            Row(
                id_, "sofa", ("k1",), weights=() if first is None else (first, 1.0), confidence=sure
            )
            for id_, (first, sure) in sorted(rows.items())
        ]
        return write_snapshot(Store(f"memory://differences-{name}"), "query", made, Provenance())

    old, new = weighed("c", before), weighed("d", after)
    assert list(differences(old, new)) == [
        Difference(old.by_id.get(id_), new.by_id.get(id_))
        for id_ in sorted(before.keys() | after.keys())
        if old.by_id.get(id_) != new.by_id.get(id_)
    ]


def test_snapshots_of_two_sides_have_no_differences() -> None:
    with pytest.raises(SnapshotError, match="different sides"):
        list(differences(frozen("a", {}), frozen("b", {}, "query")))
