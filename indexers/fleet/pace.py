"""How large the next shard should be: measured rates, a stated duration, and equal shares towards
the end.
"""

from __future__ import annotations

import statistics
from collections import deque

from indexers.fleet.records import Attempt, Done

GROWTH = 4
"""No shard is planned more than so many times as large as the largest one that was measured: first
rates are rough.
"""
_REMEMBERED = 32


class Pace:
    """Rates of the latest shards.

    Args:
        seconds: how long a shard should take.
        first: entities of a shard before anything was measured; also the least that is worth
            sending.
    """

    def __init__(self, seconds: float, first: int) -> None:
        self._seconds = seconds
        self._first = first
        self._rates: deque[float] = deque(maxlen=_REMEMBERED)
        self._largest = 0

    def measure(self, done: Done) -> None:
        """Learn from a finished shard."""
        if done.items and done.seconds > 0:
            self._rates.append(done.items / done.seconds)
            self._largest = max(self._largest, done.items)

    @property
    def rate(self) -> float | None:
        """Entities a second of one worker, the median of the latest shards; None before
        the first.
        """
        return statistics.median(self._rates) if self._rates else None

    def next_size(self, unplanned: int, workers: int) -> int:
        """Entities of the next shard, at most `unplanned`.

        Towards the end the rest is shared out among twice the workers, so that none of them is left
        with a long one.
        """
        size = self._first
        if self.rate is not None:
            size = int(min(self.rate * self._seconds, GROWTH * max(self._first, self._largest)))
            share = -(-unplanned // (2 * max(1, workers)))
            size = max(min(size, share), min(size, self._first), 1)
        return min(size, unplanned)


def living_rate(attempts: list[Attempt]) -> tuple[float, float]:
    """Entities and tokens a second of all attempts under way together."""
    timed = [attempt for attempt in attempts if attempt.seconds > 0]
    return (
        sum(attempt.items / attempt.seconds for attempt in timed),
        sum(attempt.tokens / attempt.seconds for attempt in timed),
    )
