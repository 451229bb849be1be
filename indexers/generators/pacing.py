"""How many requests an endpoint is asked at once: grows while it answers well, shrinks when it is
overloaded (AIMD).

As TCP does it: up by one for each round of good answers (by one for each answer until the first
trouble), down to half when the endpoint says that it is too much (429, 503) or gives no answer in
time, down a little when answers take longer than they should. A round trip brings one cut at most,
however many requests of it fail. Nothing here knows HTTP or waits for anything but a place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from indexers.telemetry import prometheus

Outcome = Literal["answered", "limited", "unavailable", "timeout", "lost", "refused"]
"""answered: well. limited: 429. unavailable: 5xx. lost: the connection broke. refused: any other
status.
"""

REQUESTS = prometheus.counter(
    "cogr_endpoint_requests_total", "Requests to the generator's endpoint, retries too", "outcome"
)
SECONDS = prometheus.histogram(
    "cogr_endpoint_request_duration_seconds", "How long an answer of the endpoint took"
)
IN_FLIGHT = prometheus.gauge("cogr_endpoint_requests_in_flight", "Requests under way now")
LIMIT = prometheus.gauge(
    "cogr_endpoint_requests_limit", "Requests that may be under way at once, as adapted"
)

START = 8
"""Requests at once before anything is known of the endpoint."""
_CUT, _EASE = 0.5, 0.9
_OVERLOADED: frozenset[Outcome] = frozenset({"limited", "unavailable", "timeout"})
_REMEMBERED = 0.8


@dataclass
class Limit:
    """The present limit, and what moves it. Times are seconds of one clock.

    Attributes:
        least, most: bounds.
        target: seconds that an answer should take at most, on average.
        limit: as adapted; a request may begin while fewer are under way.
    """

    least: int
    most: int
    target: float
    limit: float = field(init=False)
    _eager: bool = True
    _cut_at: float = 0.0
    _latency: float | None = None

    def __post_init__(self) -> None:
        self.limit = float(max(self.least, min(START, self.most)))

    def learn(self, outcome: Outcome, started: float, now: float, *, crowded: bool) -> None:
        """Move the limit by what became of a request.

        Args:
            started, now: when the request began and ended.
            crowded: as many as allowed were under way: only then a higher limit would have been
                used.
        """
        # What began before the last cut tells of the time before it.
        news = started >= self._cut_at
        if outcome in _OVERLOADED:
            if news:
                self._shrink(_CUT, now)
            return
        if outcome != "answered":
            return
        took = now - started
        self._latency = (
            took
            if self._latency is None
            else _REMEMBERED * self._latency + (1 - _REMEMBERED) * took
        )
        if self._latency > self.target:
            if news:
                self._shrink(_EASE, now)
                self._latency = None
        elif crowded:
            self.limit = min(
                float(self.most), self.limit + (1.0 if self._eager else 1.0 / self.limit)
            )

    def _shrink(self, factor: float, now: float) -> None:
        self.limit = max(float(self.least), self.limit * factor)
        self._eager = False
        self._cut_at = now


class Gate:
    """Lets requests through as the limit allows. Belongs to one event loop."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._running = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[Passage]:
        """Wait for a place; the block is one request and says what became of it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._running < int(self.limit.limit))
            self._running += 1
        IN_FLIGHT.inc()
        passage = Passage(time.monotonic())
        crowded = self._running >= int(self.limit.limit)
        try:
            yield passage
        finally:
            now = time.monotonic()
            self._running -= 1
            IN_FLIGHT.dec()
            if passage.outcome is not None:
                self.limit.learn(passage.outcome, passage.started, now, crowded=crowded)
                REQUESTS.labels(passage.outcome).inc()
                SECONDS.observe(now - passage.started)
                LIMIT.set(int(self.limit.limit))
            async with self._changed:
                self._changed.notify_all()


@dataclass
class Passage:
    """One request under way; without an outcome it was given up by us and says nothing of the
    endpoint.
    """

    started: float
    outcome: Outcome | None = None
