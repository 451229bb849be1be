"""A running expander for tests: the real application in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from granian.constants import Interfaces
from granian.log import LogLevels
from granian.server.embed import Server

from cogr.records import Side
from cogr.settings import load_settings
from cogr.snapshots import Row, Snapshot
from indexers.release import release
from indexers.release.order import push_and_verify
from indexers.workspace import Workspace
from ops.expander.app import create_app, free_address
from ops.expander.expander import Parts, make_parts
from ops.playground import add_playground
from tests.shops import frozen, write_shop

ITEMS = [
    Row("a", "Velvet sofa", ("sofa", "couch", "green")),
    Row("b", "Oak table", ("table", "dining")),
    Row("c", "Floor lamp", ("lamp", "light", 'quo"ted {{mustache}}')),
]
QUERIES = [
    Row("q1", "green couch", ("sofa", "couch")),
    Row("q2", "Reading LIGHT", ("lamp", "light")),
]


@dataclass
class Running:
    """A running expander."""

    url: str
    parts: Parts
    client: httpx.Client

    def expand(self, query: str) -> Any:
        """The answer to one query, which must be 200."""
        answer = self.client.post("/expand", json={"query": query})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def until(self, query: str, source: str) -> Any:
        """The answer to a query, as soon as it comes from there."""
        return wait_for(lambda: (found := self.expand(query))["source"] == source and found)

    def metric(self, name: str, **labels: str) -> float:
        return self.parts.metrics.registry.get_sample_value(name, labels) or 0.0


def workspace(folder: Path, *overrides: str) -> Workspace:
    """A shop's configuration in a folder, with `key=value` overrides."""
    file = folder / "cogr.toml"
    if not file.exists():
        items = [{"id": row.id, "title": row.text, "text": " ".join(row.keywords)} for row in ITEMS]
        queries = [{"id": "q", "text": "green sofa", "split": "test"}]
        labels = [{"query": "q", "item": "a", "grade": 1}]
        write_shop(folder, items, queries, labels, '[serving]\nlive = "none"\n')
    return Workspace(load_settings(file, overrides))


def freeze(
    workspace: Workspace, side: Side, rows: list[Row], round_: int = 0, **generator: Any
) -> Snapshot:
    """A snapshot in the workspace's store, pushed and verified."""
    snapshot = frozen(workspace.store, side, rows, round_, **generator)
    push_and_verify(workspace.backend, snapshot)
    return snapshot


def serve_pair(
    workspace: Workspace,
    items: list[Row] = ITEMS,
    queries: list[Row] = QUERIES,
    round_: int = 0,
) -> list[str]:
    """Let a pair serve; its ids, item first."""
    ids = [
        freeze(workspace, "item", items, round_).id,
        freeze(workspace, "query", queries, round_).id,
    ]
    release(workspace, ids, gate=False)
    return ids


@contextmanager
def running(
    workspace: Workspace,
    *,
    playground: bool = False,
    model: str | None = None,
    hot_queries: int = 10_000,
) -> Iterator[Running]:
    """The expander of a workspace, once it is ready.

    Args:
        hot_queries: answers that the process keeps; with 0 it asks Redis and the index each time.
    """
    address = free_address("127.0.0.1", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ops.expander.expander.HOT_QUERIES", hot_queries)
        patch.setattr("ops.expander.expander.FOLLOW_SECONDS", 0.05)
        parts = make_parts(workspace, model)
    app = create_app(parts, playground=playground)
    if playground:
        add_playground(app, workspace, parts)
    server = Server(app, *address, interface=Interfaces.ASGI, log_level=LogLevels.error)
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{address[1]}"
    try:
        with httpx.Client(base_url=url, timeout=20) as client:
            wait_for(parts.follower.looked.is_set)
            wait_for(lambda: is_up(client))
            yield Running(url, parts, client)
    finally:
        loops[0].call_soon_threadsafe(server.stop)
        thread.join(20)
        assert not thread.is_alive()


def is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def wait_for(holds: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What a condition gives as soon as it is true."""
    ends = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.02)
    return found
