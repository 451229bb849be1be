"""Finds a query's keywords within the deadline: in Redis, then in the query index, then by a model.
The fallback is the query alone. And follows the pair of snapshots that serves: it is read by one
request (or from one file), as `cogr-index publish` switches it. While it can't be read, the last
pair stays in use: its indexes still exist and belong together.

The process keeps answers for `HOT_SECONDS`: most searches of a shop are for few queries, and the
round trip to Redis takes most of their time.

An unknown query has at most one lookup in flight for each pair, which all its requests share. A
lookup goes on after the deadline of its requests, so that a slow answer is cached for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from cachetools import TTLCache

from cogr.errors import CogrError
from cogr.keywords import folded, query_key, self_keyword
from cogr.settings import Settings
from cogr.settings.serving import ServingSettings
from cogr.snapshots import Row
from indexers.backends import Pair
from indexers.release.rules import Rules, rules_of
from indexers.search import PLACES, Found, RowPlace, together
from indexers.serving import Published, published, with_flaws
from indexers.workspace import Workspace
from ops.expander.cache import Cache
from ops.expander.live_models import Models
from ops.expander.precomputed import QueryIndex, make_index
from ops.expander.upstream import MAX_IN_FLIGHT, BadAnswerError, Metrics, UnavailableError

log = logging.getLogger(__name__)
T = TypeVar("T")

Source = Literal["cache", "index", "model", "none"]
Reason = Literal["", "unknown", "loading", "deadline", "overloaded", "away", "empty"]
HOT_QUERIES = 10_000
"""Most answers that a process keeps."""
HOT_SECONDS = 60.0
"""Seconds that an answer is kept in this process, also after its removal from Redis."""
FOLLOW_SECONDS = 1.0
"""Seconds between two reads of the serving pair. One small request a second is no load for a
cluster.
"""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a folded text: its row, where it comes from, or why there is none."""

    row: Row | None
    source: Source = "none"
    reason: Reason = ""


@dataclass(frozen=True)
class Expansion(Found):
    """What a query is searched by, and why by its text alone."""

    reason: Reason = ""


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
        """Read what serves again and again, until cancelled."""
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
            await self._changed(pair)
            self._metrics.round.set(pair.round)
        if pair.flaws != self.pair.flaws:
            log.warning("What serves: %s", " ".join(pair.problems) or "it is a whole pair again.")
        self.pair = pair
        self._metrics.flaws.set(len(pair.flaws) + len(pair.warnings))

    def _failed(self, error: Exception) -> None:
        expected = isinstance(error, UnavailableError | BadAnswerError)
        if isinstance(error, BadAnswerError):
            self.pair = replace(self.pair, warnings=(str(error).rstrip("."),))
            self._metrics.flaws.set(len(self.pair.flaws) + 1)
        if not expected:
            self._metrics.bugs.inc()
        if not self.problem:
            said = "The serving pair can't be read (%s); %s stays."
            log.warning(said, error, self.pair.name, exc_info=None if expected else error)
        cause = error.__cause__ if isinstance(error, UnavailableError) else None
        self.problem = type(cause or error).__name__


HISTORY_SECONDS = 15.0
"""Seconds between two reads of what was published."""
_STORE_SECONDS = 5.0


class JudgedPair:
    """The pair that an index sees, compared with what was published. The store is read when the
    pair changes, and at intervals; while it is away, what it said last counts.
    """

    def __init__(self, index: QueryIndex, workspace: Workspace) -> None:
        self._index, self._workspace = index, workspace
        self._history: Sequence[Published] = ()
        self._of, self._read = "", 0.0

    async def read(self) -> Pair:
        pair, now = await self._index.pair(), time.monotonic()
        if pair.name != self._of or now - self._read > HISTORY_SECONDS:
            with suppress(CogrError, TimeoutError):
                async with asyncio.timeout(_STORE_SECONDS):
                    self._history = await asyncio.to_thread(published, self._workspace)
            self._of, self._read = pair.name, now
        return with_flaws(pair, self._history)


class Expander:
    """Expands queries. Never raises, and never waits beyond the deadline.

    Attributes:
        rules: name of a pair -> the merchant's rules of its query snapshot.
    """

    def __init__(
        self,
        cache: Cache | None,
        index: QueryIndex,
        models: Models,
        follower: Follower,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self._cache, self._models, self._follower = cache, models, follower
        self._places: Mapping[RowPlace, Any] = {"index": index.lookup, "model": models.ask}
        self._settings, self._metrics = settings, metrics
        self.rules: dict[str, Rules] = {}
        self._hot: TTLCache[tuple[str, str], Known] = TTLCache(HOT_QUERIES, HOT_SECONDS)
        self._in_flight: dict[tuple[str, str], asyncio.Task[Known]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        metrics.in_flight.set_function(lambda: len(self._tasks))

    async def expand(self, query: str, pair: Pair) -> Expansion:
        """Expand a query for one pair, within the deadline."""
        text = folded(query)
        try:
            known = self._hot.get((pair.name, query_key(text))) or await self._expand(text, pair)
        except Exception as error:  # noqa: BLE001 (the query alone is always an answer)
            self._bug(error)
            known = Known(None, reason="away")
        self._metrics.queries.labels(known.source, known.reason).inc()
        rules = self._rules_of(pair)
        expansion = Expansion.of(query, known.row, known.source, rules, self._settings)
        return replace(expansion, reason=known.reason)

    def _rules_of(self, pair: Pair) -> Rules:
        return self.rules.get(pair.name) or Rules(())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _remember(self, pair: Pair, text: str, row: Row) -> Known:
        known = Known(row, "cache")
        if self._hot.maxsize:
            self._hot[pair.name, query_key(text)] = known
        return known

    async def _expand(self, text: str, pair: Pair) -> Known:
        if not text:
            return Known(None, reason="empty")
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._settings.serving.deadline
        if (cached := await self._cached(pair, text)) is not None:
            return cached
        if (lookup := self._lookup(pair, text)) is None:
            return Known(None, reason="overloaded")
        await asyncio.wait([lookup], timeout=max(0.0, ends - loop.time()))
        if not lookup.done():
            return Known(None, reason="deadline")
        failed = lookup.cancelled() or lookup.exception() is not None
        return Known(None, reason="away") if failed else lookup.result()

    async def _cached(self, pair: Pair, text: str) -> Known | None:
        row = await self._cache.read(pair, text) if self._cache else None
        return self._remember(pair, text, row) if row else None

    def _lookup(self, pair: Pair, text: str) -> asyncio.Task[Known] | None:
        key = (pair.name, text)
        if (lookup := self._in_flight.get(key)) is None and len(self._tasks) < MAX_IN_FLIGHT:
            lookup = self._in_flight[key] = self._start(self._look_up(pair, text))
            lookup.add_done_callback(lambda _: self._in_flight.pop(key))
        return lookup

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug(error)

    async def _look_up(self, pair: Pair, text: str) -> Known:
        readings = self._rules_of(pair).readings(text)
        looked_up = [await self._find(pair, reading) for reading in readings]
        rows = [known.row for known in looked_up if known.row]
        if (row := together(self_keyword(text), rows)) is None:
            away = any(known.reason for known in looked_up)
            return Known(None, reason="away" if away else self._nowhere(text))
        if self._cache is not None:
            self._start(self._cache.write(pair, text, row))
        self._remember(pair, text, row)
        return Known(row, next(known.source for known in looked_up if known.row))

    async def _find(self, pair: Pair, text: str) -> Known:
        reason: Reason = ""
        for place in PLACES:
            try:
                if row := await self._places[place](pair, text):
                    return Known(replace(row, own=self_keyword(text)), place)
            except UnavailableError:
                reason = "away"
        return Known(None, reason=reason)

    def _nowhere(self, text: str) -> Reason:
        if not self_keyword(text):
            return "empty"
        if not self._follower.looked.is_set() or self._models.state == "loading":
            return "loading"
        return "unknown" if self._follower.seen_ago is not None else "away"

    def _bug(self, error: BaseException) -> None:
        self._metrics.bugs.inc()
        log.error("Something unexpected; the query alone was the answer.", exc_info=error)


@dataclass(frozen=True)
class Parts:
    """The expander's parts, made from the settings."""

    settings: ServingSettings
    metrics: Metrics
    cache: Cache | None
    index: QueryIndex
    models: Models
    follower: Follower
    expander: Expander

    def state(self) -> dict[str, Any]:
        """For /readyz: the pair and the upstreams, without secrets and addresses."""
        pair = self.follower.pair
        return {
            "item": pair.item and pair.item.snapshot,
            "query": pair.query and pair.query.snapshot,
            "pair_matches": pair.matches,
            "pair_seen_seconds_ago": self.follower.seen_ago,
            "pair_problem": self.follower.problem or None,
            "problems": list(pair.problems),
            "cache": self.cache is not None,
            "model": self.models.state,
        }

    async def started(self) -> None:
        """Wait until the serving pair was looked for and Redis was reached, or could not be."""
        if self.cache is not None:
            await self.cache.connect()
        await self.follower.looked.wait()

    async def close(self) -> None:
        """Cancel the lookups in flight and close every connection."""
        await self.expander.close()
        await self.models.close()
        await self.index.close()
        if self.cache is not None:
            await self.cache.close()


def make_parts(workspace: Workspace, model: str | None = None) -> Parts:
    """Make the parts of a configuration. They connect at their first call. Raises SettingsError."""
    settings, serving = workspace.settings, workspace.settings.serving
    metrics = Metrics()
    cache = Cache(settings.redis, serving, metrics) if settings.redis.url else None
    index = make_index(workspace, metrics)
    # A new pair may come from new data, so every model is made from a configuration that is read
    # again.
    models = Models(lambda: Workspace(settings), metrics, model)

    async def changed(pair: Pair) -> None:
        # The first look into an index takes longer than a query's deadline.
        with suppress(UnavailableError):
            await index.lookup(pair, "a query")
        await models.follow(pair)
        with suppress(CogrError):
            rules = await asyncio.to_thread(rules_of, workspace.store, pair.ids["query"])
            before = follower.pair.name
            expander.rules = {before: expander.rules.get(before, rules), pair.name: rules}

    follower = Follower(JudgedPair(index, workspace).read, changed, FOLLOW_SECONDS, metrics)
    expander = Expander(cache, index, models, follower, settings, metrics)
    return Parts(serving, metrics, cache, index, models, follower, expander)
