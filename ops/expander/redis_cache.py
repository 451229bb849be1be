"""Redis or Valkey: cached answers, and the backlog of queries that could not be answered. Holds
keywords, never items.

A cached answer's key names the pair and the normaliser, so that a new round never reads an old
one's answers; it ends by itself (serving.cache_seconds). The backlog is a sorted set of normalised
query texts by how often they were asked; when it is full, the least asked ones go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from cogr.keywords import NORMALISER
from cogr.settings.fleet import RedisSettings
from cogr.settings.serving import ServingSettings
from indexers.fleet.broker import broker_url
from ops.expander.follower import Pair
from ops.expander.guard import MAX_IN_FLIGHT, MAX_REQUESTS, Guard
from ops.expander.metrics import Metrics

Keywords = tuple[str, ...]


def cache_key(prefix: str, pair: Pair, text: str, hash_key: str | None) -> str:
    """The key of a normalised text's answer, with the text itself or, given a hash key, its keyed
    BLAKE2b.
    """
    if hash_key is not None:
        text = blake2b(text.encode(), key=hash_key.encode()[:64], digest_size=16).hexdigest()
    return f"{prefix}:expand:{pair.name}:{NORMALISER}:{text}"


class Cache:
    """Answers and backlog behind a guard. Every method raises UnavailableError."""

    def __init__(self, redis: RedisSettings, settings: ServingSettings, metrics: Metrics) -> None:
        from redis.exceptions import RedisError

        self._redis = connect(redis)
        self._prefix, self._settings, self._metrics = redis.prefix, settings, metrics
        self._hash_key = settings.hash_key.get_secret_value() if settings.hash_key else None
        self._guard = Guard("redis", metrics, (RedisError,))
        # Writing is not in anybody's way.
        self._write_seconds = max(1.0, settings.cache_timeout)

    async def read(self, pair: Pair, texts: Sequence[str], seconds: float) -> list[Keywords | None]:
        """Cached keywords of normalised texts, None where there are none."""
        keys = [self._key(pair, text) for text in texts]

        async def ask() -> list[Keywords | None]:
            found = (
                [await self._redis.get(keys[0])] if len(keys) == 1 else await self._redis.mget(keys)
            )
            return [None if value is None else read_keywords(value) for value in found]

        return await self._guard.call(ask, min(seconds, self._settings.cache_timeout))

    async def write(self, pair: Pair, answers: Mapping[str, Sequence[str]]) -> None:
        """Cache the keywords of normalised texts."""

        async def ask() -> None:
            async with self._redis.pipeline(transaction=False) as batch:
                for text, keywords in answers.items():
                    value = json.dumps(list(keywords), ensure_ascii=False)
                    batch.set(self._key(pair, text), value, ex=self._settings.cache_seconds)
                await batch.execute()

        await self._guard.call(ask, self._write_seconds)

    async def owe(self, texts: Sequence[str]) -> None:
        """Put unanswered texts into the backlog, or count them once more."""
        most = self._settings.backlog
        if not most:
            return

        async def ask() -> None:
            async with self._redis.pipeline(transaction=False) as batch:
                for text in texts:
                    batch.zincrby(self._backlog, 1, text)
                batch.zremrangebyrank(self._backlog, 0, -most - 1)
                batch.expire(self._backlog, self._settings.cache_seconds)
                await batch.execute()

        await self._guard.call(ask, self._write_seconds)
        self._metrics.owed.inc(len(texts))

    async def owed(self, most: int) -> list[str]:
        """Texts of the backlog, the most asked ones first."""

        async def ask() -> list[str]:
            return [
                value.decode() for value in await self._redis.zrevrange(self._backlog, 0, most - 1)
            ]

        return await self._guard.call(ask, self._write_seconds)

    async def settle(self, texts: Sequence[str]) -> None:
        """Take texts out of the backlog."""

        async def ask() -> None:
            await self._redis.zrem(self._backlog, *texts)

        await self._guard.call(ask, self._write_seconds)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    @property
    def _backlog(self) -> str:
        return f"{self._prefix}:expand:backlog"

    def _key(self, pair: Pair, text: str) -> str:
        return cache_key(self._prefix, pair, text, self._hash_key)


_ANSWER = TypeAdapter(Keywords)


def read_keywords(value: bytes) -> Keywords:
    """A cached value. Raises ValidationError, a ValueError, when somebody else wrote it: no JSON,
    or no list of texts.
    """
    return _ANSWER.validate_json(value, strict=True)


def connect(redis: RedisSettings) -> Any:
    """A client for asyncio that tries nothing twice; connects at the first call.

    Raises:
        SettingsError: redis.url is not set.
    """
    from redis.asyncio import Redis, Sentinel
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "max_connections": MAX_REQUESTS + MAX_IN_FLIGHT,
        "socket_keepalive": True,
    }
    urls = broker_url(redis).split(";")
    if not redis.sentinel_master:
        if urls[0].startswith("rediss://"):
            options |= _tls(redis)
        return Redis.from_url(urls[0], **options)
    if redis.tls:
        options |= {"ssl": True, **_tls(redis)}
    secret = redis.password.get_secret_value() if redis.password else None
    sentinels = [(str(part.hostname), part.port or 26379) for part in map(urlsplit, urls)]
    of_sentinels = redis.sentinel_password.get_secret_value() if redis.sentinel_password else None
    group: Any = Sentinel(sentinels, sentinel_kwargs={"password": of_sentinels})  # type: ignore[no-untyped-call]
    return group.master_for(
        redis.sentinel_master, username=redis.username, password=secret, **options
    )


def _tls(redis: RedisSettings) -> dict[str, Any]:
    files = {
        "ssl_ca_certs": redis.ca_file,
        "ssl_certfile": redis.cert_file,
        "ssl_keyfile": redis.key_file,
    }
    return {"ssl_check_hostname": True, **{name: path for name, path in files.items() if path}}
