"""The two clients, one blocking, one with `await`. They send the requests of `talks`."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from cogr_client.answers import Expansion, Found
from cogr_client.talks import Access, Answer, SearchOptions, T, Talk, Talks


class Client:
    """The blocking client. Use it in a `with` block or close it; one serves many threads.

    Args:
        expander: address of the expander.
        opensearch: address of OpenSearch; None for a client that only expands.
        verify: CA file for TLS, or False to accept any certificate.
        access: prefix, token, auth, patience, timeout, remember, as of `Access`.
    """

    def __init__(
        self,
        expander: str,
        opensearch: str | None = None,
        *,
        verify: bool | str = True,
        **access: Unpack[Access],
    ) -> None:
        self._talks = Talks(expander, opensearch, **access)
        self._http = httpx.Client(verify=verify)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def expand(self, query: str) -> Expansion:
        """Keywords of a query; the query alone when the expander can't be reached. Raises
        RefusedError.
        """
        return self._carry(self._talks.expand(query))

    def expand_many(self, queries: Sequence[str]) -> list[Expansion]:
        """The same for several, by one request."""
        return self._carry(self._talks.expand_many(queries))

    def search(self, query: str, **options: Unpack[SearchOptions]) -> Found:
        """Expand and search. Raises SearchError, and RefusedError as of `expand`."""
        return self._carry(self._talks.search(query, options))

    def _carry(self, talk: Talk[T]) -> T:
        try:
            request = next(talk)
            while True:
                request = talk.send(self._post(request))
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]

    def _post(self, request: dict[str, Any]) -> Answer:
        try:
            return self._http.post(**request)
        except httpx.RequestError as error:
            return error


class AsyncClient:
    """The client for asyncio. Use it in an `async with` block or close it.

    Arguments, methods and errors as of `Client`.
    """

    def __init__(
        self,
        expander: str,
        opensearch: str | None = None,
        *,
        verify: bool | str = True,
        **access: Unpack[Access],
    ) -> None:
        self._talks = Talks(expander, opensearch, **access)
        self._http = httpx.AsyncClient(verify=verify)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def expand(self, query: str) -> Expansion:
        """As `Client.expand`."""
        return await self._carry(self._talks.expand(query))

    async def expand_many(self, queries: Sequence[str]) -> list[Expansion]:
        """As `Client.expand_many`."""
        return await self._carry(self._talks.expand_many(queries))

    async def search(self, query: str, **options: Unpack[SearchOptions]) -> Found:
        """As `Client.search`."""
        return await self._carry(self._talks.search(query, options))

    async def _carry(self, talk: Talk[T]) -> T:
        try:
            request = next(talk)
            while True:
                request = talk.send(await self._post(request))
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]

    async def _post(self, request: dict[str, Any]) -> Answer:
        try:
            return await self._http.post(**request)
        except httpx.RequestError as error:
            return error
