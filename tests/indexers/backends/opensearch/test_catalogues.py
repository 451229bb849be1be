"""Several catalogues on one cluster, and what dead pushes leave: each prefix sees and removes its
own alone.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from pathlib import Path

from cogr.settings.serving import OpenSearchSettings
from cogr.store import Store
from indexers.release.inventory import prune
from tests.indexers.backends.backend_worlds import SHOP, SHOPPERS, frozen, publish
from tests.indexers.backends.opensearch_worlds import backend_of


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
