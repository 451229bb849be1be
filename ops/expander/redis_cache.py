"""Redis or Valkey: cached answers. Holds keywords, never items, and no query with personal data
(`cogr.privacy`).

A cached answer's key names the pair and the normaliser, so that a new round never reads old
answers; it expires after a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cogr.keywords import NORMALISER
from cogr.privacy import QueryFilter, personal_data
from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import ServingSettings
from cogr.snapshots import Row
from indexers.fleet.broker import PREFIX, url_of
from ops.expander.follower import Pair
from ops.expander.precomputed import from_bytes, to_bytes
from ops.expander.upstream import (
    MAX_IN_FLIGHT,
    MAX_REQUESTS,
    Metrics,
    Upstream,
)

CACHE_SECONDS = 86_400
"""Seconds that an answer is cached; queries may be personal data, which is kept no longer than it
is useful.
"""
_PATIENT = 1.0
"""Seconds for what delays no request."""


class Cache:
    """Every method but close raises UnavailableError."""

    def __init__(self, redis: RedisSettings, settings: ServingSettings, metrics: Metrics) -> None:
        from redis.exceptions import RedisError

        self._redis = connect(redis)
        self._metrics = metrics
        self._upstream = Upstream("redis", metrics, (RedisError,))
        self._seconds = settings.cache_timeout

    async def connect(self) -> None:
        """Open the connection, which takes longer than an answer may."""
        personal_data("+1 212 555 0100")  # loads its libraries
        await self._upstream.call(self._redis.ping, max(_PATIENT, self._seconds))

    async def read(self, pair: Pair, texts: Sequence[str]) -> list[Row | None]:
        """Cached rows of normalised texts, None where there are none."""
        keys = [self._key(pair, text) for text in texts]
        values = await self._upstream.call(lambda: self._redis.mget(keys), self._seconds)
        return [None if value is None else self._row(value) for value in values]

    def _row(self, value: bytes) -> Row | None:
        try:
            return from_bytes(value)
        except ValueError as error:
            self._upstream.failed(error)
            return None

    async def write(self, pair: Pair, text: str, row: Row) -> None:
        """Cache the row of a normalised text, unless the text has personal data in it."""
        if not QueryFilter().keeps(text):
            self._metrics.personal.inc()
            return
        key, value = self._key(pair, text), to_bytes(row)
        await self._upstream.call(
            lambda: self._redis.set(key, value, ex=CACHE_SECONDS), max(_PATIENT, self._seconds)
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _key(self, pair: Pair, text: str) -> str:
        return f"{PREFIX}:expand:{pair.name}:{NORMALISER}:{text}"


def connect(redis: RedisSettings) -> Any:
    """A client for asyncio without retries; it connects at the first call. Raises SettingsError."""
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "max_connections": MAX_REQUESTS + MAX_IN_FLIGHT,
        "socket_keepalive": True,
        # Each call has a timeout of its own.
        "socket_timeout": None,
    }
    return Redis.from_url(url_of(redis), **options)
