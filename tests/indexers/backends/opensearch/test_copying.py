"""A push by difference: the same bits as a full one, on every version and number of shards, and
after every mishap. Several catalogues on one cluster: each prefix sees and removes its own alone.
"""

from __future__ import annotations

import dataclasses
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from cogr.differences import differences
from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Provenance, Row, Snapshot, manifest_path
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.backends.opensearch import push
from indexers.backends.opensearch.indexes import (
    index_name,
    read_index,
    stats,
)
from indexers.release.inventory import prune
from tests.indexers.backends.backend_worlds import (
    SHOP,
    SHOPPERS,
    publish,
    random_queries,
    random_world,
)
from tests.indexers.backends.opensearch_worlds import backend_of
from tests.shops import frozen


def worlds(store: Store, items: int) -> tuple[Snapshot, Snapshot]:
    """A world, and its child, in which some items are changed, some gone, some new."""
    rows = random_world(items)
    first = frozen(store, "item", rows)
    changed = [
        dataclasses.replace(row, keywords=row.keywords[::2]) if n % 50 == 3 else row
        for n, row in enumerate(rows)
    ]
    new = [Row(f"new {n}", f"title {n}", ("keyword 1", f"fresh {n}")) for n in range(items // 100)]
    after = sorted([*changed[items // 100 :], *new], key=lambda row: row.id)
    return first, write_snapshot(store, "item", after, Provenance(parent=first.id))


@pytest.mark.server
@pytest.mark.parametrize(
    ("server", "shards"),
    [("opensearch", 3), pytest.param("opensearch_2", 1, marks=pytest.mark.drill)],
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
        assert read_index(backend.cluster, f"{backend.prefix}-items.draft") is None
        # The parent is untouched, and serves as well as before.
        backend.verify(first, random_queries(list(first.rows()), 10, 12))


@pytest.mark.server
@pytest.mark.parametrize("block", ["read_only_allow_delete", "read"])
def test_a_block_on_the_parents_index_is_no_block_of_its_clone(
    opensearch: OpenSearchSettings, tmp_path: Path, block: str
) -> None:
    first, second = worlds(Store(tmp_path), 200)
    with backend_of(opensearch, first.store) as backend:
        backend.push(first)
        backend.verify(first, [])
        index, doing = index_name(backend.prefix, first.id), "meddling"
        place = f"/{index}/_settings"
        backend.cluster.call("PUT", place, body={f"index.blocks.{block}": True}, doing=doing)
        try:
            written = backend.push(second).written
            assert written == sum(1 for _ in differences(first, second))
            backend.verify(second, random_queries(list(second.rows()), 5, 12))
        finally:
            backend.cluster.call("PUT", place, body={f"index.blocks.{block}": None}, doing=doing)


def test_a_template_of_the_cluster_hides_nothing(
    opensearch: OpenSearchSettings, tmp_path: Path
) -> None:
    first, second = worlds(Store(tmp_path), 200)
    with backend_of(opensearch, first.store) as backend:
        name, doing = f"/_index_template/{backend.prefix}", "meddling"
        source = {"enabled": False, "excludes": ["*"]}
        template = {"settings": {"index.hidden": True}, "mappings": {"_source": source}}
        body = {"index_patterns": [f"{backend.prefix}-*"], "template": template}
        backend.cluster.call("PUT", name, body=body, doing=doing)
        try:
            publish(backend, first)
            publish(backend, second)
            assert [one.snapshot for one in backend.list()] == sorted([first.id, second.id])
            backend.delete(first.id)
            assert [one.snapshot for one in backend.list()] == [second.id]
        finally:
            backend.cluster.call("DELETE", name, doing=doing)
            hidden = {"expand_wildcards": "open,hidden"}
            backend.cluster.call("DELETE", f"/{backend.prefix}-*", doing=doing, params=hidden)


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
            patch.setattr(push, "merge", die)
            with pytest.raises(KeyboardInterrupt):
                backend.push(second)
        index = index_name(backend.prefix, second.id)
        assert stats(backend.cluster, index, "docs")["docs"]["deleted"]
        assert backend.push(second).written == 0
        backend.verify(second, random_queries(list(second.rows()), 20, 12))
        assert not stats(backend.cluster, index, "docs")["docs"]["deleted"]


@pytest.mark.parametrize(
    "why",
    ["not verified", "other shards", "too much", "no clone", "not merged", "removed", "damaged"],
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
            monkeypatch.setattr(push, "LARGEST_SHARE", 0.01)
        if why == "no clone":
            monkeypatch.setattr(push, "CLONE", "_no_such_thing")
        if why == "not merged":
            monkeypatch.setattr(push, "merge", lambda *_: None)
        if why == "removed":
            first.store.remove(manifest_path(first.id))
        if why == "damaged":
            first.store.write(first.path, b"")
        assert backend.push(second).written == second.manifest.entities
        backend.verify(second, random_queries(list(second.rows()), 20, 12))


def test_catalogues_never_touch_one_another(opensearch: OpenSearchSettings, tmp_path: Path) -> None:
    first = f"test-{uuid.uuid4().hex[:8]}"
    prefixes = (first, f"{first}-items")
    with ExitStack() as stack:
        catalogues = []
        for prefix in prefixes:
            store = Store(tmp_path / prefix)
            backend = stack.enter_context(backend_of(opensearch, store, prefix=prefix))
            # The same snapshots in each: only the prefix tells them apart.
            old, new = frozen(store, "item", SHOP[:3]), frozen(store, "item", SHOP, round_=1)
            queries = frozen(store, "query", SHOPPERS)
            publish(backend, new)
            publish(backend, old, queries)
            catalogues.append((backend, store, old, new, queries))
        for backend, store, old, new, queries in catalogues:
            others = [other for other in catalogues if other[0] is not backend]
            before = [(other.serving(), other.list()) for other, *_ in others]
            assert {one.snapshot for one in backend.list()} == {old.id, new.id, queries.id}
            assert {one.documents for one in backend.list()} == {3, len(SHOP), len(SHOPPERS)}
            assert backend.publish({"item": new.id}) == {"item": old.id}
            assert backend.publish({"item": old.id}) == {"item": new.id}
            assert prune(store, backend, 0, files=False, dry_run=False).from_backend == [new.id]
            backend.publish({"item": old.id})
            assert {one.snapshot for one in backend.list()} == {old.id, queries.id}
            assert [(other.serving(), other.list()) for other, *_ in others] == before
