"""Which pair of snapshots serves, followed while it changes. Every answer is made from one `Pair`, so that no rounds mix.

The pair is read by one request (or one file), as `cogr-index publish` switches it. While it can't be read, the last one
stays: its indexes are still there and still belong together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cogr.keywords import NORMALISER, READABLE
from ops.expander.guard import AwayError
from ops.expander.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of what serves: the snapshot's id, its concrete index ("" in the memory backend), round and normaliser."""

    snapshot: str
    index: str
    round: int
    normaliser: str


@dataclass(frozen=True, slots=True)
class Pair:
    """What serves. Either side may be absent."""

    item: Side | None = None
    query: Side | None = None

    @property
    def matches(self) -> bool:
        """Whether the query side's keywords may be searched for in the item side: same round, same normaliser, one that this program knows."""
        if self.item is None or self.query is None:
            return False
        same = self.item.round == self.query.round and self.item.normaliser == self.query.normaliser
        return same and self.item.normaliser in READABLE

    @property
    def normaliser(self) -> str:
        """Of the item side, whose keywords a query is to meet; this program's own when there is none."""
        return self.item.normaliser if self.item else NORMALISER

    @property
    def round(self) -> int:
        """Of the item side; -1 when there is none."""
        return self.item.round if self.item else -1

    @property
    def name(self) -> str:
        """Tells this pair from every other one."""
        return ":".join(side.snapshot if side else "none" for side in (self.item, self.query))


class Follower:
    """Looks every so often which pair serves.

    Args:
        read: the pair, behind a guard (raises AwayError).
        changed: told of every new pair, before it is used.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Pair]],
        changed: Callable[[Pair], Awaitable[None]],
        every: float,
        metrics: Metrics,
    ) -> None:
        self._read, self._changed = read, changed
        self._every, self._metrics = every, metrics
        self.pair = Pair()
        self.looked = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._every)

    async def look(self) -> None:
        """Look once. A pair that can't be read stays as it was."""
        try:
            pair = await self._read()
        except AwayError:
            log.info("The serving pair can't be read; %s stays.", self.pair.name)
        else:
            self._metrics.followed.set(time.time())
            if pair != self.pair:
                log.info("The pair %s serves now.", pair.name)
                await self._changed(pair)
                self.pair = pair
                self._metrics.round.set(pair.round)
        self.looked.set()
