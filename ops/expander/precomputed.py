"""The precomputed keywords: the query index of an OpenSearch cluster, the memory backend of a
store, or nothing; and Redis or Valkey with answers of before.

An index tells which pair serves, and looks a query up in the query side of a given pair, in the
concrete index, never by the alias; every answer is made from one `Pair`, so that rounds never mix.
Redis holds keywords, never items, and no query with personal
data (`cogr.privacy`). A cached answer's key names the pair and the normaliser, so that a new round
never reads old answers; it expires after a day. Rows of both are checked when they are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import to_json

from cogr.errors import ServiceError
from cogr.keywords import NORMALISER, query_key
from cogr.privacy import QueryFilter, personal_data
from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import OpenSearchSettings, ServingSettings
from cogr.snapshots import Row
from cogr.snapshots.writing import HEAVIEST
from cogr.store import Store
from indexers.backends import Pair
from indexers.backends.opensearch.search import lookup_body
from indexers.backends.opensearch.serving import (
    ambiguous,
    count_of,
    pair_of,
    request_of,
    with_count,
)
from indexers.rebuild.fleet.broker import PREFIX, url_of
from indexers.workspace import Workspace
from ops.expander.upstream import (
    MAX_IN_FLIGHT,
    BadAnswerError,
    Metrics,
    UnavailableError,
    Upstream,
)

if TYPE_CHECKING:
    from indexers.backends import Backend


_Weight = Annotated[float, Field(ge=0, le=HEAVIEST, allow_inf_nan=False)]


class _Entry(BaseModel):
    # Of Redis, or a document of the query index, whose `keywords` have the text too.
    model_config = ConfigDict(strict=True)

    keywords: Annotated[list[str], Field(validation_alias=AliasChoices("generated", "keywords"))]
    weights: list[_Weight] | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _one_weight_each(self) -> _Entry:
        if self.weights and len(self.weights) != len(self.keywords) + 1:
            raise ValueError("there is a weight for each keyword and one for the query")
        return self

    def row(self) -> Row:
        # Lone surrogates can't be sent on: a UnicodeEncodeError is a ValueError.
        "".join(self.keywords).encode()
        return Row("", "", tuple(self.keywords), "", tuple(self.weights or ()), self.confidence)


class ClusterIndex:
    """An OpenSearch cluster. Raises SettingsError."""

    def __init__(
        self, cluster: OpenSearchSettings, settings: ServingSettings, metrics: Metrics
    ) -> None:
        from opensearchpy.exceptions import OpenSearchException

        from indexers.backends.opensearch.client import connect_async

        self._client = connect_async(cluster)
        self._seconds = settings.index_timeout
        self._upstream = Upstream("opensearch", metrics, (OpenSearchException,))
        self._prefix, self._into = cluster.prefix, settings.into
        self._metrics, self._counted = metrics, 0.0
        self._told: tuple[str, Any] = ("", None)

    async def pair(self) -> Pair:
        """What serves (`backends.opensearch.serving`), read by one request."""
        path, params = request_of(self._prefix, self._into)

        async def ask() -> dict[str, Mapping[str, Any]]:
            found = _mapping(await self._request("GET", path, params, None))
            return {name: _mapping(index) for name, index in found.items()}

        # Bad contents of an index are found outside the breaker: they must not open it, because the
        # cluster works.
        found = await self._upstream.call(ask, self._seconds)
        try:
            pair, several = pair_of(found, self._prefix, self._into), ambiguous(found, self._prefix)
        except ServiceError as error:
            raise BadAnswerError(str(error)) from error
        if several:
            raise BadAnswerError(several[0])
        return await self._counting(pair) if self._into.index else pair

    async def _counting(self, pair: Pair) -> Pair:
        field, told = self._told
        if pair.item is None:
            self._metrics.coverage.set(0)
            return pair
        if field != pair.item.field or time.monotonic() - self._counted > COUNT_SECONDS:
            path, params, body = count_of(pair.item)
            with suppress(UnavailableError):
                told = await self._upstream.call(
                    lambda: self._request("POST", path, params, body), self._seconds
                )
                self._told = pair.item.field, told
            self._counted = time.monotonic()
        if told and self._told[0] == pair.item.field:
            pair = with_count(pair, told)
            self._metrics.coverage.set(pair.coverage or 0.0)
        return pair

    async def lookup(self, pair: Pair, text: str) -> Row | None:
        if pair.query is None or not pair.matches:
            return None
        path = f"/{pair.query.index}/_search"
        params = {"filter_path": "timed_out,_shards.failed,hits.hits._source"}

        async def ask() -> Row | None:
            return _read_row(await self._request("POST", path, params, lookup_body(text)))

        return await self._upstream.call(ask, self._seconds)

    async def _request(self, method: str, path: str, params: Mapping[str, str], body: Any) -> Any:
        more = {**params, "request_timeout": self._seconds}
        return await self._client.transport.perform_request(method, path, params=more, body=body)

    async def close(self) -> None:
        await self._client.close()


COUNT_SECONDS = 15.0
"""Seconds between two counts of the documents with keywords."""


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadAnswerError("not an object")
    return value


def _read_row(answer: Any) -> Row | None:
    found = _mapping(answer)
    if found.get("timed_out") is not False or _mapping(found.get("_shards")).get("failed") != 0:
        raise BadAnswerError("not a whole answer")
    hits = _mapping(found.get("hits", {})).get("hits", [])
    return _Entry.model_validate(_mapping(hits[0]).get("_source")).row() if hits else None


_OPENING = 60.0
"""Seconds that opening a new pair of a store may take. No query waits for it: the previous pair
stays in use.
"""


class StoreIndex:
    """The memory backend of a store, for catalogues that fit into one process."""

    def __init__(
        self, backend: Backend, store: Store, settings: ServingSettings, metrics: Metrics
    ) -> None:
        self._backend, self._store = backend, store
        self._seconds = settings.index_timeout
        self._upstream = Upstream("store", metrics)
        self._warm = ""

    async def pair(self) -> Pair:
        return await self._upstream.call(lambda: asyncio.to_thread(self._read_pair), _OPENING)

    def _read_pair(self) -> Pair:
        pair = self._backend.pair()
        if pair.query and pair.query.snapshot != self._warm:
            # The first lookup opens the snapshot and loads parts of pyarrow, which takes longer
            # than a query's deadline.
            self._backend.lookup("a query", snapshot=pair.query.snapshot)
            self._warm = pair.query.snapshot
        return pair

    async def lookup(self, pair: Pair, text: str) -> Row | None:
        if pair.query is None or not pair.matches:
            return None
        snapshot = pair.query.snapshot
        return await self._upstream.call(
            lambda: asyncio.to_thread(self._backend.lookup, text, snapshot=snapshot), self._seconds
        )

    async def close(self) -> None:
        self._backend.close()


QueryIndex = ClusterIndex | StoreIndex
"""Where precomputed keywords are. `pair` says what serves, `lookup` gives the row of a text in the
pair's query side. Both raise UnavailableError, and `pair` raises BadAnswerError where an alias
names an index that `cogr-index` did not make.
"""


def make_index(workspace: Workspace, metrics: Metrics) -> QueryIndex:
    """The configured query index: of a cluster, or in memory. Raises SettingsError."""
    serving = workspace.settings.serving
    if workspace.settings.backend_name == "opensearch":
        return ClusterIndex(workspace.settings.opensearch, serving, metrics)
    return StoreIndex(workspace.backend, workspace.store, serving, metrics)


CACHE_SECONDS = 86_400
"""Seconds that an answer is cached; queries may be personal data, which is kept no longer than it
is useful.
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
        self._redis = Redis.from_url(url_of(redis), **options)
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
            return None if value is None else _Entry.model_validate_json(value).row()
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
        """Close the connections."""
        await self._reads.close()
        await self._redis.aclose()

    def _key(self, pair: Pair, text: str) -> str:
        return f"{PREFIX}:expand:{pair.name}:{NORMALISER}:{query_key(text)}"


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
