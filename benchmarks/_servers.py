"""Servers for the time of a benchmark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from cogr.settings.indexing import RedisSettings
from ops import servers
from ops.servers import OpenSearchSpec, ServerSpec, ServerState, ValkeySpec


@contextmanager
def started(wanted: ServerSpec) -> Iterator[ServerState]:
    """A server of this process, gone at the end."""
    state = servers.start(wanted)
    try:
        yield state
    finally:
        servers.stop(state.kind, state.name, remove=True)


@contextmanager
def node(url: str | None) -> Iterator[str]:
    """The URL of an OpenSearch node: the given one, or one that is started."""
    if url:
        yield url
        return
    name = f"benchmark-{os.getpid()}"
    with started(OpenSearchSpec(version="3.8.0", name=name, port=0, options="-Xmx1g")) as state:
        yield str(state.url)


@contextmanager
def redis() -> Iterator[RedisSettings]:
    """A Valkey."""
    with started(ValkeySpec(name=f"bench-{os.getpid()}", port=0)) as state:
        yield RedisSettings(url=state.url)
