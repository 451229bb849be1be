"""Where a query's keywords come from: Redis, then the query index, then a model, then the
query alone, which is the fallback; always within the deadline.

What was found is remembered in the process for `HOT_SECONDS`: most searches of a shop are
for few queries, and the way to Redis and back is most of the time that they take.

An unknown query is looked up once at a time for each pair, whoever asks. A lookup in flight
outlives the deadline of the requests that wait for it, so that a slow answer is there, cached, for
the next one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Literal

from cachetools import TTLCache

from cogr.keywords import MAX_KEYWORD_CHARS, normalise, self_keyword
from cogr.settings.generator import KeywordSettings
from cogr.settings.serving import ServingSettings
from cogr.snapshots import Row
from cogr.snapshots.manifest import Mode
from indexers.workspace import Workspace
from ops.expander.circuit_breaker import MAX_IN_FLIGHT, MAX_REQUESTS, UnavailableError
from ops.expander.entries import weigh
from ops.expander.follower import Follower, Pair
from ops.expander.live_models import Models
from ops.expander.precomputed import QueryIndex, make_index
from ops.expander.prometheus import Metrics
from ops.expander.redis_cache import Cache

log = logging.getLogger(__name__)

Source = Literal["cache", "index", "model", "none"]
Reason = Literal["", "unknown", "deadline", "overloaded", "away", "empty"]
HOT_SECONDS = 60.0
"""Life of an answer in this process: as long as what was removed from Redis may live on."""
FOLLOW_SECONDS = 1.0
"""How often to look which pair serves: one small request a second is nothing to a cluster."""
_PLAIN = re.compile("[a-z0-9]++(?: [a-z0-9]++)*+")
"""Keywords, with a space between them, that `normalise` leaves as they are."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """One query's keywords.

    Attributes:
        keywords: S_q ∪ {q}, the query as a keyword first; empty when nothing is left of it.
        source: where S_q comes from.
        reason: for the source none, why: nobody knows the query, the deadline came first, too much
            is going on, an upstream is away, or nothing is left of the query when it is normalised.
        weights: how much each keyword counts in the order of what is found; () where all are 1.
        confidence: expected F1 of what the keywords retrieve; None where it is unknown.
        mode: what to search by: the keywords, the keywords beside the query's words, or the words.
        text_boost: how much the words count beside the keywords.
    """

    keywords: Sequence[str]
    source: Source
    reason: Reason = ""
    weights: Sequence[float] = ()
    confidence: float | None = None
    mode: Mode = "both"
    text_boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Expanded:
    """The answers to one request, all of one pair."""

    pair: Pair
    expansions: Sequence[Expansion]


class Expander:
    """Expands queries; never raises and never waits beyond the deadline.

    Args:
        keywords: the most of a model's answer, where a snapshot has a budget of its own, and
            whether weights count.
    """

    def __init__(
        self,
        cache: Cache | None,
        index: QueryIndex,
        models: Models,
        settings: ServingSettings,
        metrics: Metrics,
        keywords: KeywordSettings,
    ) -> None:
        self._cache, self._index, self._models = cache, index, models
        self._settings, self._metrics, self._keywords = settings, metrics, keywords
        self._hot: TTLCache[tuple[str, str], Expansion] = TTLCache(
            settings.hot_queries, HOT_SECONDS
        )
        self._in_flight: dict[tuple[str, str], asyncio.Future[Expansion]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        metrics.in_flight.set_function(lambda: len(self._tasks))

    async def expand(self, queries: Sequence[str], pair: Pair) -> Expanded:
        """Expand queries for one pair, within the deadline."""
        texts = [self_keyword(query, pair.normaliser) for query in queries]
        found = self._remembered(pair, texts) or await self._in_time(texts, pair)
        for expansion in found:
            self._metrics.queries.labels(expansion.source, expansion.reason).inc()
            self._metrics.modes.labels(expansion.mode).inc()
        return Expanded(pair, found)

    async def close(self) -> None:
        """Cancel the lookups in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _remembered(self, pair: Pair, texts: Sequence[str]) -> list[Expansion]:
        """The answers, if this process has all of them."""
        name = pair.name
        found = [
            expansion for text in texts if (expansion := self._hot.get((name, text))) is not None
        ]
        if len(found) < len(texts):
            return []
        self._metrics.remembered.inc(len(found))
        return found

    def _remember(self, pair: Pair, text: str, expansion: Expansion) -> None:
        if self._hot.maxsize:
            self._hot[pair.name, text] = replace(expansion, source="cache")

    async def _in_time(self, texts: Sequence[str], pair: Pair) -> list[Expansion]:
        if self._under_way >= MAX_REQUESTS:
            return [_fallback(pair, text, "overloaded") for text in texts]
        self._under_way += 1
        try:
            return await self._expand(texts, pair)
        except Exception as error:  # noqa: BLE001 (the query alone is always an answer)
            self._bug(error)
            return [_fallback(pair, text, "away") for text in texts]
        finally:
            self._under_way -= 1

    async def _expand(self, texts: Sequence[str], pair: Pair) -> list[Expansion]:
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._settings.deadline
        known = await self._cached(pair, [text for text in dict.fromkeys(texts) if text])
        unknown = {
            text: self._lookup(pair, text)
            for text in dict.fromkeys(texts)
            if text and text not in known
        }
        waiting = {lookup for lookup in unknown.values() if lookup is not None}
        if waiting:
            await asyncio.wait(waiting, timeout=max(0.0, ends - loop.time()))
        return [known.get(text) or _result_of(pair, text, unknown.get(text)) for text in texts]

    async def _cached(self, pair: Pair, texts: Sequence[str]) -> dict[str, Expansion]:
        if self._cache is None or not texts:
            return {}
        try:
            found = await self._cache.read(pair, texts)
        except UnavailableError:
            return {}
        pairs = zip(texts, found, strict=True)
        known = {
            text: self._known(pair, text, self._cut(pair, row), "cache")
            for text, row in pairs
            if row is not None
        }
        for text, expansion in known.items():
            self._remember(pair, text, expansion)
        return known

    def _cut(self, pair: Pair, row: Row) -> Row:
        """Cached keywords as index and model give them, whoever wrote them: normalised, no more
        than the budget.
        """
        words, most = row.keywords, max(self._keywords.k_max, pair.query.k_max if pair.query else 0)
        # One look at all of them, where they are plain words, as most are.
        plain = 0 < len(words) <= most and _PLAIN.fullmatch(" ".join(words))
        if plain and max(map(len, words)) <= MAX_KEYWORD_CHARS:
            return row
        found: dict[str, float] = {}
        for word, weight in zip(map(normalise, words), row.weights or repeat(1.0), strict=False):
            if word:
                found.setdefault(word, weight)
        kept = tuple(found)[:most]
        weights = (*(found[word] for word in kept), row.weights[-1]) if row.weights else ()
        return replace(row, keywords=kept, weights=weights)

    def _known(self, pair: Pair, text: str, row: Row, source: Source) -> Expansion:
        words, weights = weigh(text, row if self._keywords.weights else replace(row, weights=()))
        sure = row.confidence
        return Expansion(words, source, "", weights, sure, pair.mode(sure), pair.text_boost)

    def _lookup(self, pair: Pair, text: str) -> asyncio.Future[Expansion] | None:
        """The lookup of this text, started unless it is in flight; None when too many are."""
        key = (pair.name, text)
        lookup = self._in_flight.get(key)
        if lookup is None and len(self._tasks) < MAX_IN_FLIGHT:
            lookup = self._in_flight[key] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._look_up(pair, text, lookup))
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._end(done, pair, text))
        return lookup

    def _end(self, task: asyncio.Task[None], pair: Pair, text: str) -> None:
        self._tasks.discard(task)
        lookup = self._in_flight.pop((pair.name, text))
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug(error)
        if not lookup.done():
            lookup.set_result(_fallback(pair, text, "away"))

    async def _look_up(self, pair: Pair, text: str, lookup: asyncio.Future[Expansion]) -> None:
        """Find keywords, answer who waits, then cache them, or put the query into the backlog."""
        found, source, away = await self._find(pair, text)
        if found is not None:
            lookup.set_result(known := self._known(pair, text, found, source))
            self._remember(pair, text, known)
        else:
            lookup.set_result(_fallback(pair, text, "away" if away else "unknown"))
        if self._cache is None:
            return
        try:
            await (
                self._cache.add_to_backlog([text])
                if found is None
                else self._cache.write(pair, {text: found})
            )
        except UnavailableError:
            log.info("An answer could not be kept.")

    async def _find(self, pair: Pair, text: str) -> tuple[Row | None, Source, bool]:
        """The row of index or model, which of the two, and whether one of them was away."""
        away = False
        try:
            stored = await self._index.lookup(pair, text) if pair.matches else None
        except UnavailableError:
            stored, away = None, True
        if stored is not None:
            return stored, "index", away
        try:
            return await self._models.ask(pair, text), "model", away
        except UnavailableError:
            return None, "model", True

    def _bug(self, error: BaseException) -> None:
        self._metrics.bugs.inc()
        log.error("Something unexpected; the query alone was the answer.", exc_info=error)


def _fallback(pair: Pair, text: str, reason: Reason) -> Expansion:
    return Expansion([text] if text else [], "none", reason, text_boost=pair.text_boost)


def _result_of(pair: Pair, text: str, lookup: asyncio.Future[Expansion] | None) -> Expansion:
    if not text:
        return _fallback(pair, text, "empty")
    if lookup is None:
        return _fallback(pair, text, "overloaded")
    return lookup.result() if lookup.done() else _fallback(pair, text, "deadline")


@dataclass(frozen=True)
class Parts:
    """The expander's parts, as the settings name them, put together."""

    settings: ServingSettings
    metrics: Metrics
    cache: Cache | None
    index: QueryIndex
    models: Models
    follower: Follower
    expander: Expander
    closing: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """What else is to be closed with them."""

    def state(self) -> dict[str, Any]:
        """For /readyz: what is followed and what answers; no secrets, no addresses."""
        pair = self.follower.pair
        return {
            "item": pair.item and pair.item.snapshot,
            "query": pair.query and pair.query.snapshot,
            "pair_matches": pair.matches,
            "pair_seen_seconds_ago": self.follower.seen_ago,
            "pair_problem": self.follower.problem or None,
            "cache": self.cache is not None,
            "model": self.models.state,
        }

    async def close(self) -> None:
        """Cancel the lookups in flight and close every connection."""
        for close in self.closing:
            await close()
        await self.expander.close()
        await self.models.close()
        await self.index.close()
        if self.cache is not None:
            await self.cache.close()


def make_parts(workspace: Workspace, follow_seconds: float = FOLLOW_SECONDS) -> Parts:
    """The parts of a configuration. Call it inside a running event loop; nothing is connected to
    before the first call.

    Raises:
        SettingsError: an address or a limit that is none.
    """
    settings, serving = workspace.settings, workspace.settings.serving
    metrics = Metrics()
    cache = Cache(settings.redis, serving, metrics) if settings.redis.url else None
    index = make_index(workspace, metrics)
    # A new pair may be of new data: every model is made from the configuration, read anew.
    models = Models(lambda: Workspace(settings), serving, metrics, settings.keywords.k_max)
    follower = Follower(index.pair, models.follow, follow_seconds, metrics)
    expander = Expander(cache, index, models, serving, metrics, settings.keywords)
    return Parts(serving, metrics, cache, index, models, follower, expander)
