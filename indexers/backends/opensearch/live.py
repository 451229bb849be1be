"""A cluster as the query expander asks it: one request a call, without blocking."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cogr.errors import ServiceError
from cogr.settings.serving import IntoSettings, OpenSearchSettings
from cogr.snapshots import Row
from indexers.backends import Bodies, Entry, Keywords, Pair, ServedSide, Words
from indexers.backends.opensearch.client import connect_async
from indexers.backends.opensearch.search import bodies, lookup_body
from indexers.backends.opensearch.serving import (
    ambiguous,
    count_of,
    pair_of,
    request_of,
    served_fields,
    with_count,
)

COUNT_SECONDS = 15.0
"""Seconds between two counts of the documents with keywords."""


class LiveCluster:
    """What serves in an OpenSearch cluster, asked by asyncio. Raises SettingsError."""

    name = "opensearch"

    def __init__(self, settings: OpenSearchSettings, into: IntoSettings, seconds: float) -> None:
        from opensearchpy.exceptions import OpenSearchException

        self.errors: tuple[type[Exception], ...] = (OpenSearchException,)
        self._client = connect_async(settings)
        self._prefix, self._into, self._seconds = settings.prefix, into, seconds
        self.patience = 2 * seconds
        self._counts: Mapping[str, Any] = {}
        self._of, self._counted = "", 0.0

    async def pair(self) -> Pair | ServiceError:
        path, params = request_of(self._prefix, self._into)
        answer = _mapping(await self._request("GET", path, params, None))
        seen = {name: _mapping(index) for name, index in answer.items()}
        try:
            pair, several = pair_of(seen, self._prefix, self._into), ambiguous(seen, self._prefix)
        except ServiceError as error:
            return error
        if several:
            return ServiceError(several[0])
        return await self._with_coverage(pair) if self._into.index else pair

    async def _with_coverage(self, pair: Pair) -> Pair:
        if pair.item is None:
            return replace(pair, coverage=0.0)
        if pair.item.field != self._of or time.monotonic() - self._counted > COUNT_SECONDS:
            path, params, body = count_of(pair.item)
            with suppress(*self.errors):
                self._counts = _mapping(await self._request("POST", path, params, body))
                self._of = pair.item.field
            self._counted = time.monotonic()
        return with_count(pair, self._counts) if self._of == pair.item.field else pair

    async def lookup(self, query: ServedSide, text: str) -> Row | None:
        params = {"filter_path": "timed_out,_shards,hits.hits._source"}
        path = f"/{query.index}/_search"
        answer = _mapping(await self._request("POST", path, params, lookup_body(text)))
        shards = _mapping(answer.get("_shards"))
        whole = shards.get("successful", 0) == shards.get("total")
        if answer.get("timed_out") is not False or not whole:
            raise ValueError("not a whole answer")
        hits = _mapping(answer.get("hits", {})).get("hits", [])
        return Entry.model_validate(_mapping(hits[0]).get("_source")).row() if hits else None

    def bodies(self, item: ServedSide | None, keywords: Keywords, words: Words) -> Bodies:
        return bodies(keywords, words, served_fields(self._into, item))

    async def close(self) -> None:
        await self._client.close()

    async def _request(self, method: str, path: str, params: Mapping[str, str], body: Any) -> Any:
        more = {**params, "request_timeout": self._seconds}
        return await self._client.transport.perform_request(method, path, params=more, body=body)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("not an object")
    return value
