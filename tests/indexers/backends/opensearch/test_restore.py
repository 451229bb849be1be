"""Backup and restore of what serves by OpenSearch's own snapshots, as docs/operations.md has it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from cogr.settings import OpenSearchSettings
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend
from tests.indexers.backends.backend_worlds import SHOP, SHOPPERS, frozen, priced

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_a_restored_index_serves_and_passes_verification(
    opensearch: OpenSearchSettings, tmp_path: Path
) -> None:
    store, prefix = Store(tmp_path), f"test-{uuid.uuid4().hex[:8]}"
    item, query = frozen(store, "item", priced(SHOP)), frozen(store, "query", SHOPPERS)
    backend = OpenSearchBackend(opensearch.model_copy(update={"prefix": prefix}), store)
    call = backend.cluster.call
    try:
        for snapshot in (item, query):
            backend.push(snapshot)
            backend.verify(snapshot, [["sofa"]])
        backend.publish({"item": item.id, "query": query.id})
        before, shown = backend.retrieved(["sofa", "couch"]), backend.search(["sofa", "couch"])
        repository = f"/_snapshot/{prefix}"
        call(
            "PUT",
            repository,
            body={"type": "fs", "settings": {"location": prefix}},
            doing="backing up",
        )
        what = {"indices": f"{prefix}-*", "include_global_state": False}
        taken = call(
            "PUT",
            f"{repository}/nightly",
            body=what,
            params={"wait_for_completion": "true"},
            doing="backing up",
        )
        assert taken["snapshot"]["state"] == "SUCCESS"
        call("DELETE", f"/{prefix}-*", doing="losing everything")
        assert backend.serving() == {"item": None, "query": None}
        whole = {"wait_for_completion": "true"}
        call("POST", f"{repository}/nightly/_restore", body=what, params=whole, doing="restoring")
        # The aliases came back with the indexes, both at once.
        assert backend.serving() == {"item": item.id, "query": query.id}
        assert backend.verify(item, [["sofa", "couch"]]).documents == len(SHOP)
        assert backend.retrieved(["sofa", "couch"]) == before
        assert backend.search(["sofa", "couch"]) == shown
        assert shown.hits[0].fields["in_stock"] is True
        assert backend.push(item).written == 0
    finally:
        call("DELETE", f"/{prefix}-*", doing="cleaning up")
        backend.close()
