"""The two clients, one blocking, one with `await`, and what they share: the requests to expander
and OpenSearch, and the reading of the answers.

What is shared are coroutines. Those of the blocking client never wait for one another, so that a
single step runs each to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Self, TypedDict, TypeVar, Unpack

import httpx

from cogr_client.answers import Expansion, Found, Memory, RefusedError, SearchError

T = TypeVar("T")
_Answer = httpx.Response | httpx.RequestError
MOST_TEXT = 512
"""Most characters of a text that are searched."""


class SearchOptions(TypedDict, total=False):
    """How to search; parameters of the stored search template.

    Attributes:
        text_query: your own text search for the query, in place of the one in titles.
        set_only: leave out what only the text finds.
        size: results in a page (10).
        filters: query clauses that results must meet; they don't score.
        post_filter: a query clause for the hits but not for the aggregations.
        sort: sort keys before the score, such as [{"price": "asc"}].
        search_after: the `sort` of the last hit of the page before.
        aggs: aggregations, for facets of the set.
        fields: fields of the document to return, besides `item_id` and `text`.
    """

    text_query: Mapping[str, Any]
    set_only: bool
    size: int
    filters: Sequence[Mapping[str, Any]]
    post_filter: Mapping[str, Any]
    sort: Sequence[Mapping[str, Any]]
    search_after: Sequence[Any]
    aggs: Mapping[str, Any]
    fields: Sequence[str]


class _Requests:
    _http: Any
    _connect: Callable[..., Any]

    async def _post(self, request: Mapping[str, Any]) -> _Answer:
        raise NotImplementedError

    def __init__(
        self,
        expander: str,
        opensearch: str | None = None,
        *,
        prefix: str = "cogr",
        token: str | None = None,
        auth: tuple[str, str] | None = None,
        verify: bool | str = True,
        patience: float = 0.5,
        timeout: float = 10.0,
        remember: float = 60.0,
    ) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        url = f"{expander.rstrip('/')}/expand"
        self._asking: dict[str, Any] = {"url": url, "headers": headers, "timeout": patience}
        self._searching: dict[str, Any] = {"auth": auth, "timeout": timeout}
        self._opensearch, self._prefix = opensearch, prefix
        self._http = type(self)._connect(verify=verify)
        self._memory = Memory(remember)

    async def _expanding(self, query: str) -> Expansion:
        if (known := self._memory.get(query)) is not None:
            return known
        said = _said(await self._post({**self._asking, "json": {"query": query}}))
        return self._read([query], [said])[0]

    async def _expanding_many(self, queries: Sequence[str]) -> list[Expansion]:
        said = _said(await self._post({**self._asking, "json": {"queries": list(queries)}}))
        return self._read(queries, said.get("answers") if isinstance(said, dict) else None)

    def _read(self, queries: Sequence[str], answers: Any) -> list[Expansion]:
        try:
            found = [Expansion.read(one) for one in answers]
        except (KeyError, TypeError):
            return [Expansion.fallback(query) for query in queries]
        for query, expansion in zip(queries, found, strict=False):
            self._memory.put(query, expansion)
        return found

    async def _finding(self, query: str, options: SearchOptions) -> Found:
        _check_options(options)
        if self._opensearch is None:
            raise SearchError("this client has no address of OpenSearch; give one to search")
        expansion = await self._expanding(query)
        search = partial(self._search, self._opensearch, query, options)
        answer = await self._post(search(expansion))
        if isinstance(answer, httpx.Response) and answer.status_code == httpx.codes.NOT_FOUND:
            # The index was removed since the expander named it; cached expansions are as old.
            self._memory.forget()
            expansion = await self._expanding(query)
            answer = await self._post(search(expansion))
        if isinstance(answer, httpx.RequestError):
            raise SearchError(f"OpenSearch can't be reached: {answer}") from answer
        if answer.status_code != httpx.codes.OK:
            raise SearchError(f"OpenSearch refuses: {_refusal(answer)}")
        return Found.read(_json(answer), expansion)

    def _search(
        self, opensearch: str, query: str, options: SearchOptions, expansion: Expansion
    ) -> dict[str, Any]:
        index = expansion.index or f"{self._prefix}-items"
        return {
            **self._searching,
            "url": f"{opensearch.rstrip('/')}/{index}/_search/template",
            "params": {"search_type": "dfs_query_then_fetch"},
            "json": {
                "id": f"{self._prefix}-search",
                "params": _parameters(query, expansion, options),
            },
        }


class Client(_Requests):
    """The blocking client. Use it in a `with` block or close it; one serves many threads.

    Args:
        expander: address of the expander.
        opensearch: address of OpenSearch; None for a client that only expands.
        prefix: `opensearch.prefix` of the configuration that publishes: names the alias and the
            search template.
        token: bearer token of the expander.
        auth: user and password of OpenSearch.
        verify: CA file for TLS, or False to accept any certificate.
        patience: seconds to wait for the expander; beyond it the query alone is used.
        timeout: seconds to wait for OpenSearch.
        remember: seconds for which an expansion is cached; 0 for no cache.
    """

    _http: httpx.Client
    _connect = httpx.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def expand(self, query: str) -> Expansion:
        """Keywords of a query; the query alone when the expander can't be reached. Raises
        RefusedError.
        """
        return _run(self._expanding(query))

    def expand_many(self, queries: Sequence[str]) -> list[Expansion]:
        """The same for several, by one request, so that all are of one pair of snapshots."""
        return _run(self._expanding_many(queries))

    def search(self, query: str, **options: Unpack[SearchOptions]) -> Found:
        """Expand and search.

        Raises SearchError, RefusedError, and TypeError for an unknown option.
        """
        return _run(self._finding(query, options))

    async def _post(self, request: Mapping[str, Any]) -> _Answer:
        try:
            return self._http.post(**request)
        except httpx.RequestError as error:
            return error


class AsyncClient(_Requests):
    """The client for asyncio. Use it in an `async with` block or close it.

    Arguments, methods and errors as of `Client`.
    """

    _http: httpx.AsyncClient
    _connect = httpx.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def expand(self, query: str) -> Expansion:
        """As `Client.expand`."""
        return await self._expanding(query)

    async def expand_many(self, queries: Sequence[str]) -> list[Expansion]:
        """As `Client.expand_many`."""
        return await self._expanding_many(queries)

    async def search(self, query: str, **options: Unpack[SearchOptions]) -> Found:
        """As `Client.search`."""
        return await self._finding(query, options)

    async def _post(self, request: Mapping[str, Any]) -> _Answer:
        try:
            return await self._http.post(**request)
        except httpx.RequestError as error:
            return error


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise RuntimeError("the blocking client waits for nothing")


def _parameters(query: str, expansion: Expansion, options: SearchOptions) -> dict[str, Any]:
    given: dict[str, Any] = {"explain": True, "text": query[:MOST_TEXT], **options}
    if "text_query" in given:
        given["text_query"] = [given["text_query"]]
    given["text_boost"], words = expansion.text_boost, expansion.keywords
    pairs = list(zip(words, expansion.weights or [1.0] * len(words), strict=True))
    given["without"] = [word for word, weight in pairs if not weight]
    weighted = [{"keyword": word, "weight": weight} for word, weight in pairs if weight]
    return {"weighted": weighted, **given}


def _check_options(options: Mapping[str, Any]) -> None:
    known = sorted(SearchOptions.__annotations__)
    for name in options.keys() - set(known):
        near = get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]}? It" if near else "it"
        raise TypeError(f"search() has no option {name!r}; {meant} takes {', '.join(known)}")


def _said(answer: _Answer) -> Any:
    if isinstance(answer, httpx.RequestError) or answer.status_code == 429:
        return None
    if answer.is_client_error:
        raise RefusedError(f"The expander refuses: {_refusal(answer)}")
    return _json(answer) if answer.status_code == httpx.codes.OK else None


def _refusal(answer: httpx.Response) -> str:
    return f"status {answer.status_code}, {answer.text[:500]}"


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
