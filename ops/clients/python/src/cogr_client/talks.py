"""The requests to expander and OpenSearch, and the reading of their answers, shared by both
clients. Nothing here sends requests.

A talk is a generator: it yields requests, is sent the response or error of each, and returns the
result. A client only sends the requests, blocking or not.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, TypedDict, TypeVar

import httpx

from cogr_client.answers import Expansion, Found, Memory, RefusedError, SearchError

T = TypeVar("T")
Answer = httpx.Response | httpx.RequestError
Talk = Generator[dict[str, Any], Answer, T]
"""Yields arguments of httpx's `request`."""


class SearchOptions(TypedDict, total=False):
    """How to search; parameters of the stored search template.

    Attributes:
        text: the shopper's words, to be searched in titles, or a query clause that is your own text
            search for them. With it the expansion's `mode` decides whether to search by its
            keywords, both, or only the text; without it, by its keywords.
        size: results in a page (10).
        filters: query clauses that results must meet; they don't score.
        post_filter: a query clause for the hits but not for the aggregations.
        sort: sort keys before the score, such as [{"price": "asc"}].
        search_after: the `sort` of the last hit of the page before.
        aggs: aggregations, for facets.
        fields: fields of the document to return, besides `item_id` and `text`.
    """

    text: str | Mapping[str, Any]
    size: int
    filters: Sequence[Mapping[str, Any]]
    post_filter: Mapping[str, Any]
    sort: Sequence[Mapping[str, Any]]
    search_after: Sequence[Any]
    aggs: Mapping[str, Any]
    fields: Sequence[str]


class Access(TypedDict, total=False):
    """How to reach expander and OpenSearch.

    Attributes:
        prefix: `opensearch.prefix` of the configuration that publishes: names the alias and the
            search template (cogr).
        token: bearer token of the expander.
        auth: user and password of OpenSearch.
        patience: seconds to wait for the expander; beyond it the query alone is used (0.5).
        timeout: seconds to wait for OpenSearch (10).
        remember: seconds for which an expansion is cached; 0 for no cache (60).
    """

    prefix: str
    token: str | None
    auth: tuple[str, str] | None
    patience: float
    timeout: float
    remember: float


@dataclass(frozen=True)
class Talks:
    """The talks of a client.

    OpenSearch's address is None for one that only expands; the rest as of `Access`.
    """

    expander: str
    opensearch: str | None
    prefix: str = "cogr"
    token: str | None = None
    auth: tuple[str, str] | None = None
    patience: float = 0.5
    timeout: float = 10.0
    remember: float = 60.0

    @cached_property
    def _memory(self) -> Memory:
        return Memory(self.remember)

    def expand(self, query: str) -> Talk[Expansion]:
        """Keywords of a query. Raises RefusedError."""
        if (known := self._memory.get(query)) is not None:
            return known
        said = _said((yield self._ask({"query": query})))
        try:
            expansion = Expansion.read(said, said)
        except (KeyError, TypeError):
            return Expansion.fallback(query)
        self._memory.put(query, expansion)
        return expansion

    def expand_many(self, queries: Sequence[str]) -> Talk[list[Expansion]]:
        """Keywords of several, by one request, so that all are of one pair of snapshots.

        Raises RefusedError.
        """
        said = _said((yield self._ask({"queries": list(queries)})))
        try:
            expansions = [Expansion.read(one, said) for one in said["answers"]]
        except (KeyError, TypeError):
            return [Expansion.fallback(query) for query in queries]
        for query, expansion in zip(queries, expansions, strict=False):
            self._memory.put(query, expansion)
        return expansions

    def search(self, query: str, options: SearchOptions) -> Talk[Found]:
        """Expand and search.

        Raises RefusedError, SearchError, and TypeError for an option that there is not.
        """
        _check_options(options)
        if self.opensearch is None:
            raise SearchError("this client has no address of OpenSearch; give one to search")
        expansion = yield from self.expand(query)
        answer = yield self._search(self.opensearch, expansion, options)
        if isinstance(answer, httpx.Response) and answer.status_code == httpx.codes.NOT_FOUND:
            # The index was removed since the expander named it; cached expansions are as old.
            self._memory.forget()
            expansion = yield from self.expand(query)
            answer = yield self._search(self.opensearch, expansion, options)
        return _found(answer, expansion)

    def _search(
        self, opensearch: str, expansion: Expansion, options: SearchOptions
    ) -> dict[str, Any]:
        index = expansion.index or f"{self.prefix}-items"
        return {
            "url": f"{opensearch.rstrip('/')}/{index}/_search/template",
            "params": {"search_type": "dfs_query_then_fetch"},
            "json": {"id": f"{self.prefix}-search", "params": _parameters(expansion, options)},
            "auth": self.auth,
            "timeout": self.timeout,
        }

    def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        url = f"{self.expander.rstrip('/')}/expand"
        return {"url": url, "json": body, "headers": headers, "timeout": self.patience}


def _parameters(expansion: Expansion, options: SearchOptions) -> dict[str, Any]:
    """Parameters of the search template: the expansion's keywords, the caller's text query, or
    both.
    """
    mode = expansion.mode if "text" in options else "keywords"
    given: dict[str, Any] = {"explain": True, **options}
    text = given.pop("text", None)
    if mode != "keywords":
        asked = {"text": text} if isinstance(text, str) else {"text_query": [text]}
        given |= {**asked, "text_boost": expansion.text_boost}
    if mode == "text":
        return given
    words, weights = expansion.keywords, expansion.weights
    if all(weight == 1 for weight in weights):
        return {"keywords": list(words), **given}
    pairs = zip(words, weights, strict=True)
    return {"weighted": [{"keyword": word, "weight": weight} for word, weight in pairs], **given}


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse unknown options: the search template would ignore them, such as a
    misspelled filter.
    """
    known = sorted(SearchOptions.__annotations__)
    for name in options.keys() - set(known):
        near = get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]}? It" if near else "it"
        raise TypeError(f"search() has no option {name!r}; {meant} takes {', '.join(known)}")


def _said(answer: Answer) -> Any:
    """The expander's answer; None when it can't be reached, fails or is overloaded. Raises
    RefusedError.
    """
    if isinstance(answer, httpx.RequestError) or answer.status_code == 429:
        return None
    if answer.is_client_error:
        raise RefusedError(
            f"The expander refuses with status {answer.status_code}: {answer.text[:500]}"
        )
    return _json(answer) if answer.status_code == 200 else None


def _found(answer: Answer, expansion: Expansion) -> Found:
    if isinstance(answer, httpx.RequestError):
        raise SearchError(f"OpenSearch can't be reached: {answer}") from answer
    if answer.status_code != 200:
        raise SearchError(
            f"OpenSearch refuses with status {answer.status_code}: {answer.text[:500]}"
        )
    return Found.read(_json(answer), expansion)


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
