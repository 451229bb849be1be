"""Calls to an upstream, each with a timeout and behind a circuit breaker. Failures are counted, and
each becomes an UnavailableError. And the expander's Prometheus metrics, with their names; no label
holds a query, token or address.

The breaker is the library `circuitbreaker`: after several failures in a row it is open for some
seconds, in which no call is made; then calls try the upstream again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from circuitbreaker import CircuitBreaker
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from cogr.errors import CogrError

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_IN_FLIGHT = 256
"""Most unknown queries looked up at once, including those past their deadline. It bounds memory."""
MODEL_CONCURRENCY = 32
"""Most queries sent to a model at once, as in the generator `openai`; more wait."""
BREAKER_FAILURES = 5
"""Failures in a row after which a breaker opens; fewer may be chance."""
BREAKER_SECONDS = 2.0
"""Seconds that a breaker stays open, so that an upstream is used again soon after it is back."""

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """The metrics of one process, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="cogr_expander", registry=self.registry)
        gauge = partial(Gauge, namespace="cogr_expander", registry=self.registry)
        self.queries = counter(
            "queries",
            "Queries answered, by where the keywords came from and, for none, why",
            ("source", "reason"),
        )
        self.seconds = Histogram(
            "request_seconds",
            "Time of a POST /expand after its body was read",
            namespace="cogr_expander",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.rejected = counter("refused", "Requests rejected, by HTTP status", ("status",))
        self.failures = counter(
            "upstream_failures",
            "Failed calls of redis, opensearch, store or model, by kind of error",
            ("upstream", "error"),
        )
        self.open = gauge(
            "upstream_open", "1 while the upstream's circuit breaker is open", ("upstream",)
        )
        self.in_flight = gauge("in_flight", "Unknown queries being looked up now")
        self.asked = counter("model_asked", "Queries that the model was asked")
        self.round = gauge("round", "Round of the pair that is followed; -1 for none")
        self.followed = gauge("pair_seen_timestamp_seconds", "When the serving pair was last seen")
        self.coverage = gauge(
            "coverage",
            "Share of the documents of serving.into.index with keywords; 0 without the field",
        )
        self.coverage.set(math.nan)
        self.flaws = gauge("flaws", "What is missing or wrong in the pair that serves; see /readyz")
        self.bugs = counter("bugs", "Unexpected errors; the log has their tracebacks")

    def page(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class UnavailableError(Exception):
    """An upstream did not answer, gave a bad answer, or its circuit breaker is open."""


class BadAnswerError(ValueError):
    """An upstream's answer is not of the shape that it must have."""


class Upstream:
    """One upstream behind its circuit breaker."""

    def __init__(
        self, name: str, metrics: Metrics, errors: tuple[type[Exception], ...] = ()
    ) -> None:
        self.name = name
        self._errors: tuple[type[Exception], ...] = (OSError, ValueError, CogrError, *errors)
        self._breaker = CircuitBreaker(BREAKER_FAILURES, BREAKER_SECONDS, self._errors, name)
        self._failures = metrics.failures
        metrics.open.labels(name).set_function(lambda: float(self.is_open))

    @property
    def is_open(self) -> bool:
        return bool(self._breaker.opened)

    async def call(self, ask: Callable[[], Awaitable[T]], seconds: float) -> T:
        """The result of `ask`, within so many seconds. Raises UnavailableError."""
        if self.is_open:
            raise UnavailableError(f"the circuit breaker of {self.name} is open")
        try:
            with self._breaker:
                async with asyncio.timeout(seconds):
                    return await ask()
        except self._errors as error:
            raise UnavailableError(f"{self.name} failed ({self.failed(error)})") from error

    def failed(self, error: Exception) -> str:
        """Count and log a failure; its kind."""
        kind = type(error).__name__
        self._failures.labels(self.name, kind).inc()
        # The error's text may contain the query, so only its kind is logged.
        log.info("%s failed: %s", self.name, kind)
        return kind
