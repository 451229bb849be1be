"""Follows the pair of snapshots that serves. Every answer is made from one `Pair`, so that rounds
never mix.

The pair is read by one request (or from one file), as `cogr-index publish` switches it. While it
can't be read, the last pair stays in use: its indexes still exist and belong together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from cogr.snapshots import why_no_pair
from indexers.backends.opensearch.search import KEYWORDS
from ops.expander.upstream import BadAnswerError, Metrics, UnavailableError

log = logging.getLogger(__name__)


@checked_dataclass(frozen=True, slots=True, config=ConfigDict(strict=True, extra="ignore"))
class ServedSide:
    """One side of the serving pair: the snapshot's id, the index to search ("" in the memory
    backend) and its field of keywords, and facts of its manifest.
    """

    snapshot: Annotated[str, Field(min_length=1)]
    index: str
    round: int
    normaliser: str
    k_max: int
    field: str = KEYWORDS


@dataclass(frozen=True, slots=True)
class Pair:
    """The pair that serves. Either side may be absent."""

    item: ServedSide | None = None
    query: ServedSide | None = None

    @property
    def mismatch(self) -> str:
        """Why the two sides are not a pair; "" where they are one, or one is absent."""
        return why_no_pair(self.item, self.query) if self.item and self.query else ""

    @property
    def matches(self) -> bool:
        """Whether both sides serve and make a pair."""
        return self.item is not None and self.query is not None and not self.mismatch

    @property
    def round(self) -> int:
        """The round of the item side; -1 without one."""
        return self.item.round if self.item else -1

    @property
    def name(self) -> str:
        """The ids of both snapshots, which identify the pair."""
        return ":".join(side.snapshot if side else "none" for side in (self.item, self.query))


class Follower:
    """Reads the serving pair at intervals."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Pair]],
        changed: Callable[[Pair], Awaitable[None]],
        every: float,
        metrics: Metrics,
    ) -> None:
        self._read, self._changed = read, changed
        self._every, self._metrics = every, metrics
        self._seen: float | None = None
        self.pair = Pair()
        self.looked = asyncio.Event()
        self.problem = ""
        """Kind of error of the last look; "" when it went well."""

    @property
    def seen_ago(self) -> float | None:
        """Seconds since the serving pair was last read; None when it never was."""
        return None if self._seen is None else time.monotonic() - self._seen

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._every)

    async def look(self) -> None:
        """Read the pair once. If it can't be read, the last one stays in use until the
        next read.
        """
        try:
            await self._follow(await self._read())
        except Exception as error:  # noqa: BLE001
            self._failed(error)
        else:
            if self.problem:
                log.warning("The serving pair can be read again: %s.", self.pair.name)
            self.problem = ""
            self._seen = time.monotonic()
            self._metrics.followed.set(time.time())
        self.looked.set()

    async def _follow(self, pair: Pair) -> None:
        if pair != self.pair:
            log.info("The pair %s serves now.", pair.name)
            if pair.mismatch:
                log.warning(
                    "Precomputed keywords are not used, because %s; publish a pair of one round.",
                    pair.mismatch,
                )
            await self._changed(pair)
            self.pair = pair
            self._metrics.round.set(pair.round)

    def _failed(self, error: Exception) -> None:
        expected = isinstance(error, UnavailableError | BadAnswerError)
        if not expected:
            self._metrics.bugs.inc()
        if not self.problem:
            said = "The serving pair can't be read (%s); %s stays."
            log.warning(said, error, self.pair.name, exc_info=None if expected else error)
        cause = error.__cause__ if isinstance(error, UnavailableError) else None
        self.problem = type(cause or error).__name__
