"""A backend of its own prefix on a running node, gone with the test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from cogr.settings.serving import OpenSearchSettings
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend


@contextmanager
def backend_of(
    server: OpenSearchSettings, store: Store, shards: int = 1, prefix: str | None = None
) -> Iterator[OpenSearchBackend]:
    """A backend over the node; its indexes are removed at the end."""
    settings = server.model_copy(
        update={"prefix": prefix or f"test-{uuid.uuid4().hex[:8]}", "shards": shards}
    )
    backend = OpenSearchBackend(settings, store)
    try:
        yield backend
    finally:
        backend.cluster.call("DELETE", f"/{settings.prefix}-*", doing="cleaning up")
        backend.close()


def flags_of(server: OpenSearchSettings, prefix: str | None = None) -> list[str]:
    """The flags of commands that work on it."""
    sets = (f"opensearch.url={server.url}", f"opensearch.prefix={prefix or server.prefix}")
    return [flag for one in sets for flag in ("--set", one)]
