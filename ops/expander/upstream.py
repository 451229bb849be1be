"""Calls to an upstream, each with a timeout and behind a circuit breaker. Failures are counted, and
each becomes an UnavailableError.

The breaker is the library `circuitbreaker`: after several failures in a row it is open for some
seconds, in which no call is made; then calls try the upstream again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from circuitbreaker import CircuitBreaker

from cogr.errors import CogrError
from ops.expander.metrics import Metrics

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
