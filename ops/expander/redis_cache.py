"""Redis or Valkey: cached answers, and the backlog of queries that could not be answered. Holds
keywords, never items, and no query with personal data (`cogr.privacy`).

A cached answer's key names the pair and the normaliser, so that a new round never reads old
answers; it expires after a day. The backlog is a sorted set of normalised query
texts by how often they were asked; when it is full, the least asked ones are removed.

`work_off` (`cogr-ops backlog`) generates keywords for the backlog with the configuration's
generator and caches them for the expander. A text leaves the backlog only after it was answered, or
found to have no keywords, so a killed run loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

from cogr.errors import ServiceError, SettingsError, SnapshotError
from cogr.keywords import NORMALISER
from cogr.privacy import QueryFilter, personal_data
from cogr.records import Query, Say
from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import ServingSettings
from cogr.snapshots import Row
from indexers.fleet.broker import PREFIX, address_of
from indexers.generators import Completion, Generator, Request, query_row
from indexers.workspace import Workspace
from ops.expander.follower import Pair
from ops.expander.precomputed import from_bytes, make_index, to_bytes
from ops.expander.upstream import (
    MAX_IN_FLIGHT,
    MAX_REQUESTS,
    BadAnswerError,
    Metrics,
    UnavailableError,
    Upstream,
)

CACHE_SECONDS = 86_400
"""Seconds that an answer is cached; queries may be personal data, which is kept no longer than it
is useful.
"""
BACKLOG = 10_000
"""Most queries in the backlog: a megabyte of Redis."""


class Cache:
    """Answers and backlog. Every method but close raises UnavailableError."""

    def __init__(self, redis: RedisSettings, settings: ServingSettings, metrics: Metrics) -> None:
        from redis.exceptions import RedisError

        self._redis = connect(redis)
        self._metrics = metrics
        self._upstream = Upstream("redis", metrics, (RedisError,))
        self._reads = _Reads(self._redis, self._upstream, settings.cache_timeout)
        # Writes delay no request, so they use another connection.
        self._write_seconds = max(1.0, settings.cache_timeout)

    async def connect(self) -> None:
        """Open the connection, which takes longer than an answer may."""
        personal_data("+1 212 555 0100")  # loads its libraries
        await self._upstream.call(self._reads.ping, self._write_seconds)

    async def read(self, pair: Pair, texts: Sequence[str]) -> list[Row | None]:
        """Cached rows of normalised texts, None where there are none."""
        values = await self._reads.get([self._key(pair, text) for text in texts])
        return [None if value is None else self._row(value) for value in values]

    def _row(self, value: bytes) -> Row | None:
        try:
            return from_bytes(value)
        except ValueError as error:
            self._upstream.failed(error)
            return None

    async def write(self, pair: Pair, answers: Mapping[str, Row]) -> None:
        """Cache the rows of normalised texts."""
        kept = {text: row for text, row in answers.items() if self._keeps(text)}

        async def ask() -> None:
            async with self._redis.pipeline(transaction=False) as batch:
                for text, row in kept.items():
                    batch.set(self._key(pair, text), to_bytes(row), ex=CACHE_SECONDS)
                await batch.execute()

        await self._upstream.call(ask, self._write_seconds)

    async def add_to_backlog(self, text: str) -> None:
        """Put an unanswered text into the backlog, or increment its count."""
        if not self._keeps(text):
            return

        async def ask() -> None:
            async with self._redis.pipeline(transaction=False) as batch:
                batch.zincrby(self._backlog, 1, text)
                batch.zremrangebyrank(self._backlog, 0, -BACKLOG - 1)
                batch.expire(self._backlog, CACHE_SECONDS)
                await batch.execute()

        await self._upstream.call(ask, self._write_seconds)
        self._metrics.backlog_added.inc()

    def _keeps(self, text: str) -> bool:
        kept = QueryFilter().keeps(text)
        self._metrics.personal.inc(not kept)
        return kept

    async def most_asked(self, most: int) -> list[str]:
        """Texts of the backlog, the most asked ones first."""

        async def ask() -> list[bytes]:
            return list(await self._redis.zrevrange(self._backlog, 0, most - 1))

        return [text.decode() for text in await self._upstream.call(ask, self._write_seconds)]

    async def remove_from_backlog(self, texts: Sequence[str]) -> None:
        """Remove texts from the backlog."""

        async def ask() -> None:
            await self._redis.zrem(self._backlog, *texts)

        await self._upstream.call(ask, self._write_seconds)

    async def close(self) -> None:
        """Close the connections."""
        await self._reads.close()
        await self._redis.aclose()

    @property
    def _backlog(self) -> str:
        return f"{PREFIX}:expand:backlog"

    def _key(self, pair: Pair, text: str) -> str:
        return f"{PREFIX}:expand:{pair.name}:{NORMALISER}:{text}"


class _Reads:
    def __init__(self, redis: Any, upstream: Upstream, seconds: float) -> None:
        # Where a read fails or is cancelled, it closes its connection and opens a new one.
        self._redis, self._upstream, self._seconds = redis.client(), upstream, seconds
        self._turn = asyncio.Lock()
        self._next: tuple[list[str], asyncio.Task[list[bytes | None]]] | None = None

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        if self._next is None:
            batch: list[str] = []
            self._next = batch, asyncio.create_task(self._send(batch))
        together, values = self._next
        start = len(together)
        together += keys
        # Whoever gives up takes no answer away from the others.
        return (await asyncio.shield(values))[start : start + len(keys)]

    async def ping(self) -> None:
        async with self._turn:
            await self._redis.ping()

    async def close(self) -> None:
        await self._redis.aclose()

    async def _send(self, keys: list[str]) -> list[bytes | None]:
        own = self._next

        async def ask() -> list[bytes | None]:
            async with self._turn:
                self._next = None
                return list(await self._redis.mget(keys))

        try:
            return await self._upstream.call(ask, self._seconds)
        finally:
            if self._next is own:
                self._next = None


def connect(redis: RedisSettings) -> Any:
    """A client for asyncio without retries; it connects at the first call. Raises SettingsError."""
    from redis.asyncio import Redis, Sentinel
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "max_connections": MAX_REQUESTS + MAX_IN_FLIGHT,
        "socket_keepalive": True,
        # Each call has a timeout of its own.
        "socket_timeout": None,
    }
    address = address_of(redis)
    options |= {"db": address.database, "username": address.username, "password": address.password}
    if address.tls:
        options |= {"ssl": True, **address.tls}
    if address.master:
        of_sentinels = {"password": address.sentinel_password}
        group: Any = Sentinel([*address.hosts], sentinel_kwargs=of_sentinels)  # type: ignore[no-untyped-call]
        return group.master_for(address.master, **options)
    if address.scheme == "unix":
        return Redis(unix_socket_path=address.path, **options)
    host, port = address.hosts[0]
    return Redis(host=host, port=port, **options)


BATCH = 256
"""Queries that are generated and written as one batch."""


@dataclass
class Worked:
    """The result of `work_off`: queries answered, and queries without keywords."""

    answered: int = 0
    without: int = 0


def work_off(workspace: Workspace, limit: int | None = None, say: Say = lambda _: None) -> Worked:
    """Answer the backlog, the most asked first, up to `limit` queries. Raises SettingsError,
    SnapshotError and ServiceError.
    """
    if not workspace.settings.redis.url:
        raise SettingsError(
            "The backlog is in Redis, and redis.url is not set: set redis.url or COGR_REDIS__URL."
        )
    with workspace.generator("query") as generator:
        return asyncio.run(_work_off(workspace, generator, limit, say))


async def _work_off(
    workspace: Workspace, generator: Generator, limit: int | None, say: Say
) -> Worked:
    serving, metrics = workspace.settings.serving, Metrics()
    index, cache = make_index(workspace, metrics), Cache(workspace.settings.redis, serving, metrics)
    done, left = Worked(), inf if limit is None else limit
    try:
        pair = await index.pair()
        if pair.item is None or (pair.query is not None and not pair.matches):
            raise SnapshotError(
                "No pair of one round serves: run cogr-index publish with an item and a query "
                "snapshot."
            )
        while left > 0 and (texts := await cache.most_asked(int(min(BATCH, left)))):
            # Generators are synchronous, and some run an event loop of their own.
            found = await asyncio.to_thread(_answers, workspace, generator, texts)
            if found:
                await cache.write(pair, found)
            await cache.remove_from_backlog(texts)
            left -= len(texts)
            done.answered += len(found)
            done.without += len(texts) - len(found)
            say(f"{done.answered} queries answered, {done.without} without keywords")
    except (UnavailableError, BadAnswerError) as error:
        raise ServiceError(
            f"The backlog can't be worked off: {error}; run the same command again later."
        ) from error
    finally:
        await index.close()
        await cache.close()
    return done


def _answers(workspace: Workspace, generator: Generator, texts: Sequence[str]) -> dict[str, Row]:
    prompter, most = workspace.prompter("query"), workspace.settings.keywords.k_max
    queries = {str(number): Query(str(number), text) for number, text in enumerate(texts)}
    requests = [Request(id_, query, prompter(query)) for id_, query in queries.items()]
    return {
        queries[answer.id].text: query_row(answer, queries[answer.id], most)
        for answer in islice(generator.generate(requests), len(requests))
        if isinstance(answer, Completion)
    }
