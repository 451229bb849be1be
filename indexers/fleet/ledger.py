"""The coordinator's view of shards under way, from what workers wrote: who lives, what came to
which end. Decides nothing.

Whether a worker lives is judged by its heartbeat's count and this process's monotonic clock: no two
clocks are compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from opentelemetry.trace import INVALID_SPAN, Span

from indexers.fleet.records import Attempt, Done, RunFolder


@dataclass
class Shard:
    """A shard that is neither done nor given up.

    Attributes:
        positions: of its entities in the plan.
        suspect: it is part of a shard that took workers down.
        deaths: attempts at it that failed or fell silent while they generated.
        closed: ids of attempts that are over; `dead` of those that fell silent.
        living: the attempt under way.
        sent: when its message was sent, by time.monotonic(); None when it must be.
        span: from its planning to its end.
        not_before: it is not sent earlier than that.
    """

    name: str
    positions: list[int]
    suspect: bool = False
    deaths: int = 0
    closed: set[str] = field(default_factory=set)
    dead: list[str] = field(default_factory=list)
    living: Attempt | None = None
    sent: float | None = None
    not_before: float = 0.0
    last_words: str = ""
    span: Span = INVALID_SPAN


@dataclass(frozen=True)
class Ended:
    """An attempt that came to an end without a result.

    Attributes:
        silent: its worker said nothing for too long.
        stuck: its worker lives, and has brought no answer for too long.
        inherited: it began under an earlier coordinator.
    """

    shard: Shard
    attempt: Attempt
    silent: bool
    inherited: bool
    stuck: bool = False

    @property
    def counts(self) -> bool:
        """Whether it speaks against the shard: an error, or a death while it was generated."""
        return self.attempt.state == "failed" or (self.gone and self.attempt.state == "running")

    @property
    def gone(self) -> bool:
        """Whether it had no last word."""
        return self.silent or self.stuck

    @property
    def outcome(self) -> str:
        """One word for metrics: the attempt's last state, or `silent`, or `stuck`."""
        return "silent" if self.silent else "stuck" if self.stuck else self.attempt.state

    @property
    def told(self) -> str:
        """`why` for a log: of an unexpected error its class alone, since its text may quote an
        item.
        """
        return (
            self.why.partition(": ")[0] + ": " + self.attempt.reason.partition(":")[0]
            if self._unexpected
            else self.why
        )

    @property
    def _unexpected(self) -> bool:
        return not self.gone and self.attempt.state == "failed"

    @property
    def why(self) -> str:
        if self.silent:
            return f"worker {self.attempt.worker} fell silent while {self.attempt.state}"
        if self.stuck:
            return (
                f"worker {self.attempt.worker} lives, but brought no answer for too long while "
                f"{self.attempt.state}"
            )
        return f"worker {self.attempt.worker}: {self.attempt.reason}"


class Ledger:
    """Shards under way.

    Args:
        folder: where workers write.
        lost_seconds: silence after which an attempt counts as dead.
        stuck_seconds: time without an answer after which it counts as dead although its heart
            beats.
    """

    def __init__(self, folder: RunFolder, lost_seconds: float, stuck_seconds: float) -> None:
        self._folder = folder
        self._beats = _Watch(lost_seconds)
        # The worker itself gives up first, and says why.
        self._progress = _Watch(stuck_seconds + lost_seconds)
        self._inherited = frozenset(name.partition(".")[2] for name in folder.names("attempts"))
        self.shards: dict[str, Shard] = {}

    def add(self, shard: Shard) -> None:
        self.shards[shard.name] = shard

    def drop(self, shard: Shard) -> None:
        if self.shards.pop(shard.name, None) is not None:
            shard.span.end()

    @property
    def living(self) -> list[Attempt]:
        """Attempts under way."""
        return [shard.living for shard in self.shards.values() if shard.living is not None]

    def results(self) -> Iterator[tuple[Shard, Done]]:
        """Shards whose result has come.

        A damaged result is removed: the shard is sent again, and most of it is in the cache.
        """
        for name in self._folder.names("done"):
            shard = self.shards.get(name)
            if shard is None:
                continue
            if (done := self._folder.read(Done, f"done/{name}")) is not None:
                yield shard, done
            else:
                self._folder.store.remove(f"{self._folder.path}/done/{name}.json")
                shard.sent = None

    def ends(self) -> list[Ended]:
        """Attempts that have ended since the last look, without a result; brings `living` up to
        date.
        """
        found = []
        living: dict[str, Attempt] = {}
        for name in self._folder.names("attempts"):
            shard_name, _, id_ = name.partition(".")
            shard = self.shards.get(shard_name)
            if shard is None or id_ in shard.closed:
                continue
            attempt = self._folder.read(Attempt, f"attempts/{name}")
            if attempt is None or (attempt.state == "done"):
                continue
            silent = not attempt.final and self._beats.still(id_, attempt.beat)
            stuck = (
                not attempt.final
                and self._progress.still(id_, (attempt.state, attempt.items))
                and not silent
            )
            if attempt.final or silent or stuck:
                shard.closed.add(id_)
                shard.dead += [id_] if silent or stuck else []
                found.append(Ended(shard, attempt, silent, id_ in self._inherited, stuck))
            else:
                living[shard_name] = attempt
        for shard in self.shards.values():
            shard.living = living.get(shard.name)
        return found


class _Watch:
    """Tells what has not changed for too long, by this process's clock alone."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[str, tuple[object, float]] = {}

    def still(self, name: str, value: object) -> bool:
        """Whether the value of that name has been the same for longer than allowed."""
        now = time.monotonic()
        last, since = self._seen.get(name, (None, now))
        if last != value:
            self._seen[name] = (value, now)
            return False
        return now - since > self._seconds
