"""Prefixes of a test's own on a running node, gone with the test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from cogr.settings.serving import OpenSearchSettings
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Cluster


@contextmanager
def prefix_of(server: OpenSearchSettings, **changes: Any) -> Iterator[Cluster]:
    """The node under a new prefix, and with these settings; what lies under it goes at the end."""
    own = {"prefix": f"test-{uuid.uuid4().hex[:8]}", **changes}
    with closing(Cluster(server.model_copy(update=own))) as cluster:
        try:
            yield cluster
        finally:
            cluster.call("DELETE", f"/{own['prefix']}-*", doing="cleaning up")
            template = f"/_scripts/{own['prefix']}-search"
            cluster.call("DELETE", template, doing="cleaning up", missing_ok=True)


@contextmanager
def backend_of(
    server: OpenSearchSettings, store: Store, shards: int = 1, **changes: Any
) -> Iterator[OpenSearchBackend]:
    """A backend over the node under a new prefix."""
    with (
        prefix_of(server, shards=shards, **changes) as cluster,
        closing(OpenSearchBackend(cluster.settings, store)) as backend,
    ):
        yield backend


def flags_of(server: OpenSearchSettings) -> list[str]:
    """The flags of commands that work on it."""
    sets = (f"opensearch.url={server.url}", f"opensearch.prefix={server.prefix}")
    return [flag for one in sets for flag in ("--set", one)]
