"""Servers for the time of a benchmark, and pairs of keywords that serve."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cogr.settings.indexing import RedisSettings
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from indexers.release import release
from indexers.workspace import Workspace
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


def serve_pair(folder: Path, items: Iterable[Row], queries: Iterable[Row], more: str = "") -> None:
    """Let these keywords serve, in a shop without data; `more` continues its configuration."""
    config = folder / "cogr.toml"
    shop = '[dataset]\nloader = "jsonl"\npath = "data"\n[serving]\nlive = "none"\n'
    config.write_text(shop + more)
    workspace = Workspace.open(config)
    pair = [
        write_snapshot(workspace.store, "item", items, Provenance()),
        write_snapshot(workspace.store, "query", queries, Provenance()),
    ]
    release(workspace, [snapshot.id for snapshot in pair], gate=False)
