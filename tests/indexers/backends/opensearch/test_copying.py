"""A push by difference: the same bits as a full one, on every version and number of shards, and
after every mishap.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cogr.differences import differences
from cogr.settings import OpenSearchSettings
from cogr.snapshots import Provenance, Row, Snapshot, write_snapshot
from cogr.store import Store
from indexers.backends.opensearch import indexes
from indexers.backends.opensearch import push as copying
from indexers.backends.opensearch.backend import OpenSearchBackend
from indexers.backends.opensearch.indexes import read_index, stats
from indexers.backends.opensearch.mapping import index_name
from tests.indexers.backends.backend_worlds import random_queries, random_world
from tests.indexers.backends.opensearch_worlds import backend_of

pytestmark = pytest.mark.server


def child(parent: Snapshot, rows: list[Row]) -> Snapshot:
    """A snapshot that names its parent."""
    ordered = sorted(rows, key=lambda row: row.id)
    return write_snapshot(parent.store, "item", ordered, Provenance(parent=parent.id))


def worlds(store: Store, items: int) -> tuple[Snapshot, Snapshot]:
    """A world, and one in which some items are changed, some gone, some new."""
    rows = random_world(items)
    first = write_snapshot(store, "item", sorted(rows, key=lambda row: row.id), Provenance())
    changed = [
        dataclasses.replace(row, keywords=row.keywords[::2]) if n % 50 == 3 else row
        for n, row in enumerate(rows)
    ]
    new = [Row(f"new {n}", f"title {n}", ("keyword 1", f"fresh {n}")) for n in range(items // 100)]
    return first, child(first, [*changed[items // 100 :], *new])


@pytest.mark.parametrize(
    ("server", "shards"), [("opensearch", 1), ("opensearch", 3), ("opensearch_2", 1)]
)
def test_a_push_by_difference_has_the_bits_of_a_full_one(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, shards: int
) -> None:
    first, second = worlds(Store(tmp_path), 400)
    with backend_of(request.getfixturevalue(server), first.store, shards) as backend:
        backend.push(first)
        backend.verify(first, [])
        pushed = backend.push(second)
        assert pushed.written == sum(1 for _ in differences(first, second)) < 40
        # Live results against the mirror of the new snapshot: totals, order, every bit; documents
        # field by field.
        verified = backend.verify(second, random_queries(list(second.rows()), 30, 12))
        assert verified.documents == second.manifest.entities
        assert verified.scores > 300
        index = index_name(backend.prefix, second.id)
        assert stats(backend.cluster, index, "docs")["docs"]["deleted"] == 0
        assert read_index(backend.cluster, f"{index}.draft") is None
        # The parent is untouched, and serves as well as before.
        backend.verify(first, random_queries(list(first.rows()), 10, 12))


def test_segments_are_merged_apart(
    opensearch: OpenSearchSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each large one by itself when something is deleted from it; new documents join
    one of them.
    """
    monkeypatch.setattr(indexes, "SMALL_SEGMENT", 1)
    rows = random_world(3500)
    snapshot = write_snapshot(
        Store(tmp_path), "item", sorted(rows[:2000], key=lambda row: row.id), Provenance()
    )
    with backend_of(opensearch, snapshot.store) as backend:

        def push(rows: list[Row]) -> list[int]:
            nonlocal snapshot
            snapshot = child(snapshot, rows)
            backend.push(snapshot)
            backend.verify(snapshot, random_queries(rows, 10, 12))
            return segments(backend, index_name(backend.prefix, snapshot.id))

        backend.push(snapshot)
        backend.verify(snapshot, random_queries(rows[:2000], 10, 12))
        # These segments are of a few KB; Lucene is to see large ones in them, which it leaves
        # alone. Clones inherit it.
        large = {"merge.policy.floor_segment": "1b", "merge_on_flush.enabled": False}
        index = index_name(backend.prefix, snapshot.id)
        backend.cluster.call("PUT", f"/{index}/_settings", body={"index": large}, doing="preparing")
        assert push(rows) == [2000, 1500]
        rows = [row for number, row in enumerate(rows) if number % 10]
        assert push(rows) == [1800, 1350]
        assert push([*rows, Row("new", "", ("keyword 1",))]) == [1800, 1351]
        index = index_name(backend.prefix, snapshot.id)
        settings = backend.cluster.call("GET", f"/{index}/_settings", doing="looking")[index][
            "settings"
        ]["index"]
        assert settings["merge"] == {"policy": {"floor_segment": "1b"}}


def segments(backend: OpenSearchBackend, index: str) -> list[int]:
    """Documents of each segment, most first."""
    answer = backend.cluster.call("GET", f"/{index}/_segments", doing="looking at segments")
    (shard,) = answer["indices"][index]["shards"]["0"]
    return sorted(
        (one["num_docs"] for one in shard["segments"].values() if one["search"]), reverse=True
    )


def test_only_deletions(opensearch: OpenSearchSettings, tmp_path: Path) -> None:
    rows = random_world(200)
    first = write_snapshot(
        Store(tmp_path), "item", sorted(rows, key=lambda row: row.id), Provenance()
    )
    second = child(first, rows[20:])
    with backend_of(opensearch, first.store) as backend:
        backend.push(first)
        backend.verify(first, [])
        assert backend.push(second).written == 20
        backend.verify(second, random_queries(rows, 20, 12))


def test_a_draft_of_a_push_that_died_is_begun_anew(
    opensearch: OpenSearchSettings, tmp_path: Path
) -> None:
    first, second = worlds(Store(tmp_path), 200)
    with backend_of(opensearch, first.store) as backend:
        backend.push(first)
        backend.verify(first, [])
        index, draft = (index_name(backend.prefix, one.id) for one in (first, second))
        draft = f"{draft}.draft"
        body = {"settings": {"index": {"blocks.write": None}}}

        def die() -> None:
            backend.cluster.call(
                "POST", f"/{index}/_clone/{draft}", body=body, doing="as if it had died"
            )

        die()
        assert backend.push(second).written < 30
        backend.verify(second, random_queries(list(second.rows()), 20, 12))
        # Once it is there, a push has nothing to do but to remove what a dead one left.
        die()
        assert backend.push(second).written == 0
        assert read_index(backend.cluster, draft) is None


def test_a_push_that_died_before_its_merge_goes_on(
    opensearch: OpenSearchSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = worlds(Store(tmp_path), 200)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with backend_of(opensearch, first.store) as backend:
        backend.push(first)
        backend.verify(first, [])
        with monkeypatch.context() as patch:
            patch.setattr(copying, "drop_deleted", die)
            with pytest.raises(KeyboardInterrupt):
                backend.push(second)
        index = index_name(backend.prefix, second.id)
        assert stats(backend.cluster, index, "docs")["docs"]["deleted"]
        assert backend.push(second).written == 0
        backend.verify(second, random_queries(list(second.rows()), 20, 12))
        assert not stats(backend.cluster, index, "docs")["docs"]["deleted"]


@pytest.mark.parametrize(
    "why", ["not verified", "other shards", "too much", "no clone", "not merged"]
)
def test_what_can_not_be_copied_is_written_in_full(
    opensearch: OpenSearchSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    first, second = worlds(Store(tmp_path), 200)
    with backend_of(opensearch, first.store) as backend:
        backend.push(first)
        if why != "not verified":
            backend.verify(first, [])
        if why == "other shards":
            backend.cluster.settings = backend.cluster.settings.model_copy(update={"shards": 2})
        if why == "too much":
            monkeypatch.setattr(copying, "LARGEST_SHARE", 0.01)
        if why == "no clone":
            monkeypatch.setattr(copying, "CLONE", "_no_such_thing")
        if why == "not merged":
            monkeypatch.setattr(copying, "drop_deleted", lambda *_: None)
            monkeypatch.setattr(copying, "merge", lambda *_: None)
        assert backend.push(second).written == second.manifest.entities
        backend.verify(second, random_queries(list(second.rows()), 20, 12))
