"""The two clients. They differ in `await` alone; what is sent and what answers mean is in `answers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any

import httpx

from cogr_client.answers import DEFAULT_INDEX, Expansion, Found, SearchError, read_found, search_body

_EXACT = {"search_type": "dfs_query_then_fetch"}
_Auth = tuple[str, str]


class _Requests:
    """What both clients send, and how they read it.

    Args:
        expander: address of the expander.
        opensearch: address of OpenSearch; None for a client that only expands.
        index: alias of the items, for searches without an answer of the expander.
        token: bearer token of the expander.
        auth: user and password of OpenSearch.
        patience: seconds to wait for the expander; beyond it the bare query is used.
        timeout: seconds to wait for OpenSearch.
        verify: CA file for TLS, or False to trust anybody.
    """

    def __init__(
        self,
        expander: str,
        opensearch: str | None = None,
        *,
        index: str = DEFAULT_INDEX,
        token: str | None = None,
        auth: _Auth | None = None,
        patience: float = 0.5,
        timeout: float = 10.0,
        verify: bool | str = True,
    ) -> None:
        self._index = index
        self._expander: dict[str, Any] = {"base_url": expander, "timeout": patience, "verify": verify}
        if token is not None:
            self._expander["headers"] = {"authorization": f"Bearer {token}"}
        self._opensearch: dict[str, Any] = {"base_url": opensearch or "", "timeout": timeout, "verify": verify}
        if auth is not None:
            self._opensearch["auth"] = auth
        self._can_search = opensearch is not None

    def _path(self, expansion: Expansion) -> str:
        if not self._can_search:
            raise SearchError("this client has no address of OpenSearch; give one to search")
        return f"/{expansion.index or self._index}/_search"

    @staticmethod
    def _read_one(answer: httpx.Response, query: str) -> Expansion:
        said = _checked(answer)
        return Expansion.bare(query) if said is None else Expansion.read(said, said)

    @staticmethod
    def _read_many(answer: httpx.Response, queries: Sequence[str]) -> list[Expansion]:
        said = _checked(answer)
        if said is None:
            return [Expansion.bare(query) for query in queries]
        return [Expansion.read(one, said) for one in said["answers"]]

    @staticmethod
    def _read_found(answer: httpx.Response, expansion: Expansion) -> Found:
        if answer.is_error:
            raise SearchError(f"OpenSearch refuses with status {answer.status_code}: {answer.text[:500]}")
        try:
            return read_found(answer.json(), expansion)
        except ValueError as error:
            raise SearchError("OpenSearch's answer is no JSON; check its address") from error


def _checked(answer: httpx.Response) -> Any:
    """The expander's words; None when it is ill or busy.

    Raises:
        ValueError: it refuses the request: a wrong token, too long a query.
    """
    if answer.status_code == 429 or answer.is_server_error:
        return None
    if answer.is_error:
        raise ValueError(f"The expander refuses with status {answer.status_code}: {answer.text[:500]}")
    return answer.json()


class Client(_Requests):
    """The blocking client. Use it in a `with` block or close it; one serves many threads. Arguments as of its base."""

    @cached_property
    def _asks(self) -> httpx.Client:
        return httpx.Client(**self._expander)

    @cached_property
    def _searches(self) -> httpx.Client:
        return httpx.Client(**self._opensearch)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._asks.close()
        self._searches.close()

    def expand(self, query: str) -> Expansion:
        """Keywords of a query; the bare query when the expander is away. Raises ValueError when it refuses."""
        try:
            answer = self._asks.post("/expand", json={"query": query})
        except httpx.TransportError:
            return Expansion.bare(query)
        return self._read_one(answer, query)

    def expand_many(self, queries: Sequence[str]) -> list[Expansion]:
        """The same for several, by one request."""
        try:
            answer = self._asks.post("/expand", json={"queries": list(queries)})
        except httpx.TransportError:
            return [Expansion.bare(query) for query in queries]
        return self._read_many(answer, queries)

    def search(
        self,
        query: str,
        *,
        size: int = 10,
        filters: Sequence[Mapping[str, Any]] = (),
        search_after: Sequence[Any] | None = None,
        aggs: Mapping[str, Any] | None = None,
        fields: Sequence[str] = (),
    ) -> Found:
        """Expand and search. Raises SearchError, and ValueError as of `expand`."""
        expansion = self.expand(query)
        path, body = self._path(expansion), search_body(expansion, size, filters, search_after, aggs, fields)
        try:
            answer = self._searches.post(path, params=_EXACT, json=body)
        except httpx.TransportError as error:
            raise SearchError(f"OpenSearch can't be reached: {error}") from error
        return self._read_found(answer, expansion)


class AsyncClient(_Requests):
    """The client for asyncio. Use it in an `async with` block or close it. Arguments as of its base."""

    @cached_property
    def _asks(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(**self._expander)

    @cached_property
    def _searches(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(**self._opensearch)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._asks.aclose()
        await self._searches.aclose()

    async def expand(self, query: str) -> Expansion:
        """Keywords of a query; the bare query when the expander is away. Raises ValueError when it refuses."""
        try:
            answer = await self._asks.post("/expand", json={"query": query})
        except httpx.TransportError:
            return Expansion.bare(query)
        return self._read_one(answer, query)

    async def expand_many(self, queries: Sequence[str]) -> list[Expansion]:
        """The same for several, by one request."""
        try:
            answer = await self._asks.post("/expand", json={"queries": list(queries)})
        except httpx.TransportError:
            return [Expansion.bare(query) for query in queries]
        return self._read_many(answer, queries)

    async def search(
        self,
        query: str,
        *,
        size: int = 10,
        filters: Sequence[Mapping[str, Any]] = (),
        search_after: Sequence[Any] | None = None,
        aggs: Mapping[str, Any] | None = None,
        fields: Sequence[str] = (),
    ) -> Found:
        """Expand and search. Raises SearchError, and ValueError as of `expand`."""
        expansion = await self.expand(query)
        path, body = self._path(expansion), search_body(expansion, size, filters, search_after, aggs, fields)
        try:
            answer = await self._searches.post(path, params=_EXACT, json=body)
        except httpx.TransportError as error:
            raise SearchError(f"OpenSearch can't be reached: {error}") from error
        return self._read_found(answer, expansion)
