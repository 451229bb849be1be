"""A small HTTP load generator for loopback: keep-alive connections, each sends its next request when the last one is answered."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Load:
    """What came of a load: latencies in seconds, HTTP statuses, wall time."""

    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0

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
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def send(port: int, requests: Iterator[bytes], connections: int, more: Callable[[], bool]) -> Load:
    """Send requests while `more` says so and there are some."""
    load = Load()
    started = time.perf_counter()
    await asyncio.gather(*(_connection(port, requests, more, load) for _ in range(connections)))
    load.seconds = time.perf_counter() - started
    return load


async def _connection(port: int, requests: Iterator[bytes], more: Callable[[], bool], load: Load) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while more() and (request := next(requests, None)) is not None:
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        load.latencies.append(time.perf_counter() - started)
        status = int(head[9:12])
        load.statuses[status] = load.statuses.get(status, 0) + 1
    writer.close()


def for_seconds(seconds: float) -> Callable[[], bool]:
    """True until the time is over."""
    ends = time.perf_counter() + seconds
    return lambda: time.perf_counter() < ends
