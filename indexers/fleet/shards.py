"""Shards of a run: their request files, the size of the next shard, a tracker of the open ones, and
the retry policy.

The tracker decides whether a worker is alive by its heartbeats and this process's monotonic clock,
so clocks need not agree.
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from opentelemetry.trace import INVALID_SPAN, Span

from cogr.errors import ServiceError
from cogr.prompts import Prompt
from cogr.records import Item, Query, Side
from indexers.fleet.run_files import Attempt, RunFolder
from indexers.generators import Request
from indexers.rebuild.plan import Keyed
from indexers.telemetry import prometheus

GROWTH = 4
"""A shard is at most so many times as large as the largest one so far, because first rates are
rough.
"""
PARTS = 8
"""A shard during which workers die is split into so many parts: a large number isolates the entity
after few deaths.
"""
DEATHS = 2
"""Deaths of workers before a shard is split: a machine may also die by itself."""
LAST_DEATHS = 3
"""Deaths of workers before an entity alone in its shard is set aside: two may be chance."""
SETBACKS = 20
"""Failed attempts in a row, without an answer in between, after which the fleet counts
as broken.
"""
SHARD_SECONDS = 180.0
"""How long a worker should have to do with one shard: what the death of a worker costs at most, and
long beside the second that a shard takes to come and go, however fast the worker is.
"""
FIRST_ENTITIES = 64
"""Entities of the first shards: enough for a batch, and done in minutes by a slow model."""
_RATES = 32
_LONGEST_PAUSE = 60.0


def write_requests(folder: RunFolder, shard: str, keyed: Sequence[Keyed]) -> None:
    """Write the requests of a shard, in their order."""
    lines = [(key.hex(), asdict(one.entity), asdict(one.prompt)) for key, one in keyed]
    # Its checksum tells whether the file is damaged.
    data = gzip.compress(json.dumps(lines).encode(), compresslevel=1)
    folder.store.write(_path(folder, shard), data)


def read_requests(folder: RunFolder, shard: str) -> list[Keyed] | None:
    """The requests of a shard; None when there is no such file, or a damaged one."""
    try:
        lines = json.loads(gzip.decompress(folder.store.read(_path(folder, shard))))
    except (OSError, EOFError, ValueError, zlib.error):
        return None
    kind = Item if folder.side == "item" else Query
    return [
        (bytes.fromhex(key), Request(entity["id"], kind(**entity), Prompt(**prompt)))
        for key, entity, prompt in lines
    ]


def _path(folder: RunFolder, shard: str) -> str:
    return f"{folder.path}/shards/{shard}.json.gz"


class ShardSizer:
    """How large the next shard should be, by the rates of the latest ones.

    Args:
        seconds: how long a shard should take, `SHARD_SECONDS` by default.
        first: entities of a shard before any rate is known, the least that is worth sending.
    """

    def __init__(self, seconds: float | None = None, first: int | None = None) -> None:
        self._seconds = SHARD_SECONDS if seconds is None else seconds
        self._first = FIRST_ENTITIES if first is None else first
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._largest = 0

    def measure(self, done: Attempt) -> None:
        """Learn from a finished shard."""
        if done.items and done.seconds > 0:
            self._rates.append(done.items / done.seconds)
            self._largest = max(self._largest, done.items)

    def next_size(self, unplanned: int, workers: int) -> int:
        """Entities of the next shard, at most `unplanned`.

        Near the end the rest is divided by twice the number of workers, so that all finish at about
        the same time.
        """
        size = self._first
        if self._rates:
            fitting = statistics.median(self._rates) * self._seconds
            size = int(min(fitting, GROWTH * max(self._first, self._largest)))
            share = -(-unplanned // (2 * max(1, workers)))
            size = max(min(size, share), min(size, self._first), 1)
        return min(size, unplanned)


@dataclass
class Shard:
    """A shard that is neither finished nor given up.

    Attributes:
        positions: of its entities in the plan.
        attempt: number of the attempt under way, or else of the next one.
        deaths: attempts that raised an error, or whose worker died while it generated.
        running: the last record of this attempt's worker; None before a worker has taken it.
        sent: time.monotonic() when the message of this attempt was sent; None before.
        retry_at: it is not sent before this time.
        span: from its planning to its end.
    """

    name: str
    positions: list[int]
    attempt: int = 1
    deaths: int = 0
    running: Attempt | None = None
    sent: float | None = None
    retry_at: float = 0.0
    span: Span = INVALID_SPAN


class ShardTracker:
    """The open shards and the attempts at them.

    Args:
        lost_seconds: silence after which the worker of an attempt counts as dead.
    """

    def __init__(self, folder: RunFolder, lost_seconds: float) -> None:
        self._folder = folder
        self._lost_seconds = lost_seconds
        self._heard: dict[str, tuple[float, float]] = {}
        self.open: dict[str, Shard] = {}

    def close(self, shard: Shard) -> None:
        del self.open[shard.name]
        shard.span.end()

    @property
    def running(self) -> list[Attempt]:
        """Attempts under way."""
        return [shard.running for shard in self.open.values() if shard.running is not None]

    def poll(self) -> tuple[list[tuple[Shard, Attempt]], list[tuple[Shard, Attempt]]]:
        """The attempts that finished and those that failed since the last call.

        A failed shard moves on to its next attempt, which is not sent yet.
        """
        written = set(self._folder.names("attempts"))
        done, failed, damaged = [], [], Attempt(shard="", worker="unknown", updated=0.0)
        for shard in self.open.values():
            shard.running = None
            name = f"{shard.name}.{shard.attempt}"
            if name not in written:
                continue
            attempt = self._folder.read(Attempt, f"attempts/{name}") or damaged
            if attempt.state == "done":
                done.append((shard, attempt))
            elif attempt.final or self._silent(name, attempt):
                shard.attempt, shard.sent = shard.attempt + 1, None
                shard.deaths += attempt.state in ("failed", "running")
                failed.append((shard, attempt if attempt.final else attempt.silenced))
            else:
                shard.running = attempt
        return done, failed

    def _silent(self, name: str, attempt: Attempt) -> bool:
        """Whether its worker has written nothing new for too long."""
        now = time.monotonic()
        last, since = self._heard.get(name, (None, now))
        if last != attempt.updated:
            self._heard[name] = attempt.updated, now
            return False
        return now - since > self._lost_seconds


class RetryPolicy:
    """Decides when a failed shard is sent again, and when the shard or the rebuild is given up."""

    def __init__(self, side: Side) -> None:
        self._gauge = prometheus.SETBACKS.labels(side)
        self.progress()

    def progress(self) -> None:
        """Note an answer: the fleet works."""
        self._setbacks = 0
        self._gauge.set(0)

    def setback(self, reason: str) -> None:
        """Note failed attempts. Raises ServiceError after too many without an answer in between."""
        self._setbacks += 1
        self._gauge.set(self._setbacks)
        if self._setbacks >= SETBACKS:
            raise ServiceError(
                f"The last {self._setbacks} attempts failed without an answer in between, the "
                f"latest: {reason}; see cogr-index status, mend the workers and run the same "
                "command again."
            )

    def pause(self, failed: Attempt) -> float:
        """Seconds before the shard is sent again: it may succeed later, or on another worker."""
        if failed.state not in ("declined", "away"):
            return 0.0
        return min(_LONGEST_PAUSE, 0.5 * float(2 ** min(self._setbacks, 10)))

    def exhausted(self, shard: Shard) -> bool:
        """Whether a shard is to be split, or its one entity set aside."""
        return shard.deaths >= (LAST_DEATHS if len(shard.positions) == 1 else DEATHS)
