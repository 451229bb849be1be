"""A small HTTP load generator for loopback: keep-alive connections, each sends its next request
when the last one is answered.

It shares the cores with what it asks, so its own work is by uvloop (`run` is to be used for it) and
pydantic's JSON.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from uvloop import run

__all__ = [
    "Connection",
    "Load",
    "ask",
    "connect",
    "for_seconds",
    "request_bytes",
    "run",
    "send",
]


@dataclass
class Load:
    """What came of a load: latencies in seconds, HTTP statuses, wall time."""

    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, started: float, status: int) -> None:
        """Count a request that is answered now."""
        self.latencies.append(time.perf_counter() - started)
        self.statuses[status] = self.statuses.get(status, 0) + 1

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """The latency that so large a share of the requests does not exceed."""
        ordered = sorted(self.latencies)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def request_bytes(path: str, body: Any) -> bytes:
    """A POST of JSON."""
    content = to_json(body)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
        f"application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def send(
    port: int, requests: Iterator[bytes], connections: int, more: Callable[[], bool]
) -> Load:
    """Send requests while `more` says so and there are some."""
    load = Load()
    started = time.perf_counter()
    await asyncio.gather(*(_connection(port, requests, more, load) for _ in range(connections)))
    load.seconds = time.perf_counter() - started
    return load


async def _connection(
    port: int, requests: Iterator[bytes], more: Callable[[], bool], load: Load
) -> None:
    connection = await connect(port)
    while more() and (request := next(requests, None)) is not None:
        started = time.perf_counter()
        status, _ = await ask(connection, request)
        load.add(started, status)
    connection[1].close()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int) -> Connection:
    """A keep-alive connection to a port of this machine."""
    return await asyncio.open_connection("127.0.0.1", port)


async def ask(connection: Connection, request: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to one request."""
    reader, writer = connection
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return int(head[9:12]), await reader.readexactly(length)


def for_seconds(seconds: float) -> Callable[[], bool]:
    """True until the time is over."""
    ends = time.perf_counter() + seconds
    return lambda: time.perf_counter() < ends
