"""Verification document by document: every difference is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.errors import CheckFailedError
from cogr.matching.mirror import Mirror
from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Row
from cogr.store import Store
from indexers.backends.memory import MemoryBackend, mirror_folder
from indexers.backends.opensearch import verify
from indexers.release import verify as release_verify
from indexers.release.verify import compare_all
from tests.indexers.backends.backend_worlds import SHOP, frozen, random_world
from tests.indexers.backends.opensearch_worlds import backend_of
from tests.indexers.conftest import Command


def test_every_difference_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_verify, "ROWS", 30)
    store, rows = Store(tmp_path), random_world(200)
    snapshot = frozen(store, "item", rows)
    # The mirror of other rows in the place of this snapshot's: one gone, one new, one changed, in
    # the first piece and in the last.
    ordered = sorted(rows, key=lambda row: row.id)
    other = [
        *ordered[1:-2],
        Row("item 0new", "x", ("y",)),
        Row(ordered[-2].id, "other text", ("z",)),
        Row("zz", "", ()),
    ]
    backend = MemoryBackend(store)
    backend.push(snapshot)
    store.remove(mirror_folder(snapshot.id))
    mirror = Mirror.build(frozen(store, "item", other))
    monkeypatch.setattr("indexers.backends.memory.mirror_of", lambda *_: mirror)
    found = compare_all(backend, snapshot)
    assert found.entities == 200
    assert (found.missing, found.extra, found.different) == (2, 2, 1)
    assert [(one.kind, one.id) for one in found.first] == [
        ("missing", ordered[0].id),
        ("extra", "item 0new"),
        ("different", ordered[-2].id),
        ("missing", ordered[-1].id),
        ("extra", "zz"),
    ]
    assert "'z'" in found.first[2].found


def test_the_command_shows_the_first_ones_and_ends_with_1(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cogr_index("rebuild", "--side", "item", "--json").json["snapshot"]
    equal = cogr_index("verify", "--json").json["verified"][made]
    assert (equal["entities"], equal["differences"], equal["sampled"], equal["first"]) == (
        4,
        0,
        4,
        [],
    )
    quick = cogr_index("verify", "--quick", "--json").json["verified"][made]
    assert "entities" not in quick
    empty = frozen(Store(shop / ".cogr"), "item", [])
    monkeypatch.setattr("indexers.backends.memory.mirror_of", lambda *_: Mirror.build(empty))
    ended = cogr_index("verify", made, "--json")
    found = ended.json["verified"][made]
    assert (ended.status, found["missing"], found["differences"], len(found["first"])) == (
        1,
        4,
        4,
        4,
    )
    assert "4 entities of" in ended.err
    shown = cogr_index("verify", made)
    assert (shown.status, shown.out.count("missing")) == (1, 5)
    # Nothing switches to it before it has passed again.
    monkeypatch.undo()
    monkeypatch.chdir(shop)
    assert "has not passed verification" in cogr_index("publish", made, "--no-gate").err
    assert cogr_index("verify", made).status == 0
    assert cogr_index("publish", made, "--no-gate").status == 0


@pytest.mark.server
@pytest.mark.parametrize("shards", [3])
def test_every_way_a_document_can_differ(
    opensearch: OpenSearchSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    monkeypatch.setattr(release_verify, "ROWS", 40)
    monkeypatch.setattr(verify, "PAGE", 7)
    store, rows = Store(tmp_path), [*SHOP, *random_world(150)]
    snapshot = frozen(store, "item", rows)
    with backend_of(opensearch, store, shards) as backend:
        index = backend.push(snapshot).index
        backend.verify(snapshot, [])
        assert compare_all(backend, snapshot).as_dict()["differences"] == 0

        def change(method: str, path: str, body: object = None) -> None:
            backend.cluster.call(method, f"/{index}/{path}", body=body, doing="meddling")

        change("PUT", "_settings", {"index": {"blocks.write": None}})
        change("DELETE", "_doc/c")
        change("PUT", "_doc/zzz", {"item_id": "zzz", "keywords": ["x"], "text": ""})
        change("PUT", "_doc/nameless", {"keywords": ["x"], "text": ""})
        change("POST", "_update/a-2", {"doc": {"keywords": ["oak", "table"]}})
        change("POST", "_update/e", {"doc": {"text": "other"}})
        change("POST", "_refresh")
        found = compare_all(backend, snapshot)
        assert [(one.kind, one.id, one.field) for one in found.first] == [
            ("different", "a-2", "keywords"),
            ("missing", "c", ""),
            ("different", "e", "text"),
            ("extra", "nameless", ""),
            ("extra", "zzz", ""),
        ]
        assert found.first[0].found == "['oak', 'table']"
        backend.distrust(snapshot.id)
        with pytest.raises(CheckFailedError, match="has not passed verification"):
            backend.publish({"item": snapshot.id})
