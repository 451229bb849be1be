"""What a coordinator tells about its run as metrics. Decides nothing."""

from __future__ import annotations

from cogr.records import Side
from indexers.fleet.ledger import Ended, Shard
from indexers.fleet.pace import living_rate
from indexers.telemetry import prometheus


class Gauges:
    """The metrics of one run's coordinator. Those of an earlier run in this process are
    overwritten.

    Args:
        side: whose rebuild it is.
        done, given_up: shards that an earlier coordinator of the run has seen to the end.
    """

    def __init__(self, side: Side, done: int, given_up: int) -> None:
        self._side = side
        self._over = {"done": done, "given_up": given_up}
        self.broker(up=True)
        self.setbacks(0)

    def done(self) -> None:
        """A shard's result is in."""
        self._over["done"] += 1
        prometheus.ATTEMPTS.labels(self._side, "done").inc()

    def given_up(self) -> None:
        """A shard was split, or its entity set aside."""
        self._over["given_up"] += 1

    def ended(self, ended: Ended) -> None:
        """An attempt came to nothing."""
        prometheus.ATTEMPTS.labels(self._side, ended.outcome).inc()

    def broken(self) -> None:
        """A result's files are not what the worker said they are."""
        prometheus.ATTEMPTS.labels(self._side, "broken").inc()

    def setbacks(self, count: int) -> None:
        """Failures in a row."""
        prometheus.SETBACKS.labels(self._side).set(count)

    def broker(self, *, up: bool) -> None:
        """Whether the broker answered."""
        prometheus.BROKER_UP.labels(self._side).set(up)

    def queue(self, messages: int) -> None:
        """What waits in the broker."""
        prometheus.QUEUE.labels(self._side).set(messages)

    def look(self, shards: list[Shard], unplanned: int, answered: int) -> None:
        """How things stand now."""
        living = [shard.living for shard in shards if shard.living is not None]
        states = {"running": len(living), "waiting": len(shards) - len(living), **self._over}
        for state, count in states.items():
            prometheus.SHARDS.labels(self._side, state).set(count)
        items, tokens = living_rate(living)
        figures = {
            prometheus.UNPLANNED: unplanned,
            prometheus.ANSWERED: answered,
            prometheus.WORKERS: len({attempt.worker for attempt in living}),
            prometheus.ENTITY_RATE: items,
            prometheus.TOKEN_RATE: tokens,
        }
        for gauge, value in figures.items():
            gauge.labels(self._side).set(value)
