"""Redis or Valkey with earlier answers: keywords, never items, and no query with personal data
(`cogr.privacy`).

An answer's key names the pair and the normaliser, so that a new round never reads old answers; it
expires after a day.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from pydantic_core import to_json

from cogr.keywords import NORMALISER, query_key
from cogr.privacy import QueryFilter, personal_data
from cogr.settings.indexing import KEY_PREFIX, RedisSettings
from cogr.settings.serving import ServingSettings
from cogr.snapshots import Row
from indexers.backends import Entry, Pair
from ops.expander.upstream import MAX_IN_FLIGHT, Metrics, UnavailableError, Upstream

CACHE_SECONDS = 86_400
"""Seconds that an answer is cached. Queries may be personal data, so answers are kept for a day
and no longer.
"""


class Cache:
    """Redis or Valkey, without retries. One that is away holds nothing."""

    def __init__(self, redis: RedisSettings, settings: ServingSettings, metrics: Metrics) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError

        options: dict[str, Any] = {
            "retry": Retry(NoBackoff(), 0),
            "max_connections": 2 * MAX_IN_FLIGHT,
            "socket_keepalive": True,
            # Each call has a timeout of its own.
            "socket_timeout": None,
        }
        self._redis = Redis.from_url(redis.address, **options)
        self._upstream = Upstream("redis", metrics, (RedisError,))
        self._reads = _Reads(self._redis, self._upstream, settings.cache_timeout)
        # Writes delay no request, so they use another connection.
        self._write_seconds = max(1.0, settings.cache_timeout)

    async def connect(self) -> None:
        """Open the connection, which takes longer than an answer may."""
        personal_data("+1 212 555 0100")  # loads its libraries
        with suppress(UnavailableError):
            await self._upstream.call(self._reads.ping, self._write_seconds)

    async def read(self, pair: Pair, text: str) -> Row | None:
        """The cached row of a folded text; None where there is none."""
        try:
            value = await self._reads.get(self._key(pair, text))
            return None if value is None else Entry.model_validate_json(value).row()
        except UnavailableError:
            return None
        except ValueError as error:
            self._upstream.failed(error)
            return None

    async def write(self, pair: Pair, text: str, row: Row) -> None:
        """Cache the row of a folded text, unless the text has personal data in it."""
        if not QueryFilter().keeps(text):
            return
        key = self._key(pair, text)
        value = to_json(
            {"keywords": row.keywords, "weights": row.weights, "confidence": row.confidence}
        )
        with suppress(UnavailableError):
            await self._upstream.call(
                lambda: self._redis.set(key, value, ex=CACHE_SECONDS), self._write_seconds
            )

    async def close(self) -> None:
        await self._reads.close()
        await self._redis.aclose()

    def _key(self, pair: Pair, text: str) -> str:
        return f"{KEY_PREFIX}:expand:{pair.name}:{NORMALISER}:{query_key(text)}"


class _Reads:
    """Reads over one connection; those that wait for it together are one MGET."""

    def __init__(self, redis: Any, upstream: Upstream, seconds: float) -> None:
        # Where a read fails or is cancelled, it closes its connection and opens a new one.
        self._redis, self._upstream, self._seconds = redis.client(), upstream, seconds
        self._turn = asyncio.Lock()
        self._next: tuple[list[str], asyncio.Task[list[bytes | None]]] | None = None

    async def get(self, key: str) -> bytes | None:
        if self._next is None:
            batch: list[str] = []
            self._next = batch, asyncio.create_task(self._send(batch))
        together, values = self._next
        place = len(together)
        together.append(key)
        # Whoever gives up takes no answer away from the others.
        return (await asyncio.shield(values))[place]

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
