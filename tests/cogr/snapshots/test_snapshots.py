"""Snapshots: equal content gives an equal id; opening verifies; a folder without a manifest is no
snapshot.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.errors import SnapshotError
from cogr.snapshots import (
    Provenance,
    Row,
    check_normalisers,
    list_snapshots,
    open_snapshot,
    writing,
)
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store

ROWS = [
    Row("a", "Velvet Sofa", ("sofa", "velvet")),
    Row("b", "", ()),
    Row("c", "沙发", ("couch", "沙发 绿色")),
]
HASH_OF_ROWS = "16c64dfba62ee34a1d31561113651a3dd147854617e22a632977f2eeee4e1120"
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
row_lists = st.dictionaries(
    words, st.tuples(words, st.lists(words, unique=True, max_size=5)), max_size=8
)


def test_written_rows_are_read_back_with_their_counts(store: Store) -> None:
    snapshot = open_snapshot(
        store, write_snapshot(store, "item", ROWS, Provenance(k_max=5, round=2)).id
    )
    assert list(snapshot.rows()) == ROWS
    manifest = snapshot.manifest
    counts = manifest.entities, manifest.keywords, manifest.vocabulary, manifest.empty
    assert counts == (3, 4, 4, 1)
    assert manifest.id == f"item-r002-{manifest.content_hash[:12]}"
    # Pinned: with another hash every pushed index is made anew.
    assert manifest.content_hash == HASH_OF_ROWS
    assert [batch["self"].to_pylist() for batch in snapshot.batches()] == [
        ["velvet sofa", "", "沙发"]
    ]


def test_some_rows_alone_are_read_in_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROWS", 8)
    rows = [
        Row(f"i{number:02}", f"text {number}", ("sofa", f"w{number}")[: number % 3])
        for number in range(50)
    ]
    snapshot = write_snapshot(store, "item", rows, Provenance())
    for numbers in ({31, 0, 49, 7, 8, 9}, {20}, set[int](), set(range(50))):
        assert list(snapshot.rows(numbers)) == [rows[number] for number in sorted(numbers)]
    assert [row.own for row in snapshot.rows([9, 49])] == ["text 9", "text 49"]


@settings(max_examples=40, deadline=None)
@given(row_lists)
def test_equal_content_gives_an_equal_hash_and_other_content_another(
    tmp_path_factory: pytest.TempPathFactory, made: dict[str, tuple[str, list[str]]]
) -> None:
    rows = [Row(id_, text, tuple(words)) for id_, (text, words) in sorted(made.items())]
    one, two = (Store(tmp_path_factory.mktemp("s")) for _ in range(2))
    first = write_snapshot(one, "item", rows, Provenance())
    second = write_snapshot(two, "item", iter(rows), Provenance(set_aside=3))
    assert first.id == second.id
    assert one.read(first.path) == two.read(second.path)
    other = write_snapshot(one, "item", [*rows, Row("\U0010ffff" * 9, "more", ())], Provenance())
    assert other.manifest.content_hash != first.manifest.content_hash


def test_ids_out_of_order_or_repeated_are_refused(store: Store) -> None:
    for ids in (("b", "a"), ("a", "a")):
        with pytest.raises(SnapshotError, match="order"):
            write_snapshot(store, "item", [Row(id_, "", ()) for id_ in ids], Provenance())
    assert list_snapshots(store) == []


def test_any_flipped_byte_is_found(store: Store) -> None:
    snapshot = write_snapshot(store, "item", ROWS, Provenance())
    good = store.read(snapshot.path)
    for at in random.Random(0).sample(range(len(good)), 50):
        store.write(snapshot.path, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(SnapshotError, match="manifest"):
            open_snapshot(store, snapshot.id)


def test_an_unknown_broken_or_half_snapshot_is_one_sentence(store: Store) -> None:
    with pytest.raises(SnapshotError, match="none"):
        open_snapshot(store, "item-r000-000000000000")
    snapshot = write_snapshot(store, "item", ROWS, Provenance())
    with pytest.raises(SnapshotError, match=snapshot.id):
        open_snapshot(store, "../secret")
    manifest = f"snapshots/{snapshot.id}/manifest.json"
    whole = store.read(manifest)
    store.write(manifest, whole[:-20])
    with pytest.raises(SnapshotError, match="broken"):
        open_snapshot(store, snapshot.id)
    store.write(manifest, whole)
    store.remove(snapshot.path)
    with pytest.raises(SnapshotError, match=r"keywords\.parquet"):
        open_snapshot(store, snapshot.id)
    store.remove(manifest)
    assert list_snapshots(store) == []


def test_other_normalisers_never_meet(store: Store) -> None:
    item = write_snapshot(store, "item", ROWS, Provenance())
    old = item.manifest.summed(normaliser="cogr-0")
    store.write_json(f"snapshots/{item.id}/manifest.json", old.model_dump(mode="json"))
    with pytest.raises(SnapshotError, match="cogr-0"):
        open_snapshot(store, item.id)
    with pytest.raises(SnapshotError, match="different normalisers"):
        check_normalisers({item.id: "cogr-0", "query": "cogr-3"})


weighed = st.tuples(
    st.sampled_from([(), (2.5, 1.0), (1.0, 2.5), (0.1, 1.0)]), st.sampled_from([None, 0.0, 0.5])
)


@settings(max_examples=60, deadline=None)
@given(weighed, weighed)
def test_each_weight_and_confidence_is_part_of_the_content(
    one: tuple[tuple[float, ...], float | None], other: tuple[tuple[float, ...], float | None]
) -> None:
    """Different ones have different hashes, also where a value goes from one row to the next."""
    store = Store("memory://weighed-hashes")
    rows = [
        Row(id_, "text", ("sofa",), "", weights, sure)
        for id_, (weights, sure) in zip("ab", (one, other), strict=True)
    ]
    made = write_snapshot(store, "query", rows, Provenance())
    assert list(open_snapshot(store, made.id).rows()) == rows
