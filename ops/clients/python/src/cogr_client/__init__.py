"""A client of the CoGR query expander and of the OpenSearch index behind it."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypedDict, Unpack

import httpx

__all__ = ["Client", "Expansion", "Found", "Hit", "RefusedError", "SearchError"]

_SEPARATORS = re.compile(r"[\s,;、،؛]+")


class SearchError(Exception):
    """OpenSearch can't be reached, refuses, or returns only a part of an answer."""


class RefusedError(ValueError):
    """The expander refuses the request: a wrong token, too long a query.

    There is no fallback, since the caller has to correct the request.
    """


@dataclass(frozen=True)
class Expansion:
    """A query's keywords.

    Attributes:
        keywords: the normalised query first, then its keywords.
        source: cache, index, model, or none; with none the query is the only keyword.
        reason: for the source none, why; "no expander" when the expander did not answer.
        clause: the OpenSearch query, for a body of your own: first the set, then what more the
            text finds. The fallback's has the query alone.
        set: the query of the set alone, as a filter for counts and facets.
        index: the index to search, so that keywords and items belong to one round; None to use the
            alias.
        snapshots: ids of the pair of snapshots.
        weights: boost of each keyword; () where all are 1.
        confidence: expected F1 of what the keywords retrieve, 0 to 1; None where it is unknown.
        text_boost: weight of the text's score beside the keywords'.
    """

    keywords: Sequence[str]
    source: str
    reason: str
    clause: Mapping[str, Any]
    set: Mapping[str, Any]
    index: str | None = None
    snapshots: Mapping[str, str | None] = field(default_factory=dict)
    weights: Sequence[float] = ()
    confidence: float | None = None
    text_boost: float = 1.0

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Expansion:
        """From the expander's answer."""
        named = {name: answer[name] for name in cls.__dataclass_fields__}
        named |= {name: tuple(named[name]) for name in ("keywords", "weights")}
        return cls(**named)

    @classmethod
    def fallback(cls, query: str) -> Expansion:
        """The expansion without an expander; for plain words it is close to the expander's
        normalisation.
        """
        text = _SEPARATORS.sub(" ", unicodedata.normalize("NFKC", query).casefold()).strip()
        if not text:
            return cls((), "none", "no expander", {"match_none": {}}, {"match_none": {}})
        clause = {"match": {"keywords": {"query": text}}}
        return cls((text,), "none", "no expander", clause, clause)


@dataclass(frozen=True)
class Hit:
    """One item. `tier` says whether it belongs to the set or is one "more" by its text; `matched`
    lists the keywords that it was found by; `sort` continues a search (`search_after`).
    """

    id: str
    tier: str
    score: float
    source: Mapping[str, Any]
    matched: Sequence[str]
    sort: Sequence[Any]


@dataclass(frozen=True)
class Found:
    """The answer to a search: the size of the set (what the keywords find, and items that have
    every word of the query in one field), how many more the text finds, the best hits, facets of
    the set, and the expansion it was made with.
    """

    total: int
    more: int
    hits: Sequence[Hit]
    aggregations: Mapping[str, Any]
    expansion: Expansion

    @classmethod
    def read(cls, answers: Any, expansion: Expansion) -> Found:
        """From OpenSearch's answers, hits and counts. Raises SearchError for a part of them."""
        try:
            for answer in answers["responses"]:
                if answer["status"] != httpx.codes.OK:
                    raise SearchError(f"OpenSearch refuses: {answer['error']}"[:500])
                if answer["timed_out"] or answer["_shards"]["failed"]:
                    raise SearchError("OpenSearch gave only a part of the answer; search again")
            first, counts = answers["responses"]
            hits = [_hit(hit["_source"], tuple(hit["sort"]), hit) for hit in first["hits"]["hits"]]
            facets, every = dict(counts["aggregations"]["set"]), first["hits"]["total"]["value"]
            count = counts["aggregations"]["total"]["doc_count"]
            del facets["doc_count"]
            return cls(count, every - count, hits, facets, expansion)
        except (KeyError, TypeError, IndexError) as error:
            raise SearchError(f"OpenSearch's answer can't be read: {error!r}") from error


def _hit(source: Mapping[str, Any], sort: Sequence[Any], hit: Mapping[str, Any]) -> Hit:
    # Every order ends with score and id.
    score, matched = sort[-2], tuple(hit.get("matched_queries", ()))
    if score >= TIER:
        return Hit(source["item_id"], "set", score - TIER, source, matched, sort)
    return Hit(source["item_id"], "more", score, source, matched, sort)


TIER = 1024
"""The score that the template adds to every item of the set."""
MAX_TEXT = 512
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


class Client:
    """The client. Use it in a `with` block or close it; one serves many threads. In asyncio, await
    its methods by `asyncio.to_thread`.

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
    """

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
    ) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        url = f"{expander.rstrip('/')}/expand"
        self._asking: dict[str, Any] = {"url": url, "headers": headers, "timeout": patience}
        self._searching: dict[str, Any] = {"auth": auth, "timeout": timeout}
        self._opensearch, self._prefix = opensearch, prefix
        self._http = httpx.Client(verify=verify)

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
        said = _said(self._post({**self._asking, "json": {"query": query}}))
        try:
            return Expansion.read(said)
        except (KeyError, TypeError):
            return Expansion.fallback(query)

    def search(self, query: str, **options: Unpack[SearchOptions]) -> Found:
        """Expand and search.

        Raises SearchError, RefusedError, and TypeError for an unknown option.
        """
        _check_options(options)
        if self._opensearch is None:
            raise SearchError("this client has no address of OpenSearch; give one to search")
        expansion = self.expand(query)
        index = expansion.index or f"{self._prefix}-items"
        given = _parameters(query, expansion, options)
        # Hits and counts at the same time: together they take longer.
        searches = ({**given, "hits_only": True}, {**given, "set_only": True, "size": 0})
        lines = ({"id": f"{self._prefix}-search", "params": params} for params in searches)
        answer = self._post(
            {
                **self._searching,
                "url": f"{self._opensearch.rstrip('/')}/{index}/_msearch/template",
                "params": {"search_type": "dfs_query_then_fetch"},
                "headers": {"content-type": "application/json"},
                "content": "".join(f"{{}}\n{json.dumps(line)}\n" for line in lines),
            }
        )
        if isinstance(answer, httpx.RequestError):
            raise SearchError(f"OpenSearch can't be reached: {answer}") from answer
        if answer.status_code != httpx.codes.OK:
            raise SearchError(f"OpenSearch refuses: {_refusal(answer)}")
        return Found.read(_json(answer), expansion)

    def _post(self, request: Mapping[str, Any]) -> httpx.Response | httpx.RequestError:
        try:
            return self._http.post(**request)
        except httpx.RequestError as error:
            return error


def _parameters(query: str, expansion: Expansion, options: SearchOptions) -> dict[str, Any]:
    given: dict[str, Any] = {"explain": True, "text": query[:MAX_TEXT], **options}
    if "text_query" in given:
        given["text_query"] = [given["text_query"]]
    given["text_boost"], words = expansion.text_boost, expansion.keywords
    pairs = list(zip(words, expansion.weights or [1.0] * len(words), strict=True))
    given["without"] = [word for word, weight in pairs if not weight]
    weighted = [{"keyword": word, "weight": weight} for word, weight in pairs if weight]
    return {"weighted": weighted, **given}


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options.keys() - SearchOptions.__annotations__.keys():
        known = ", ".join(sorted(SearchOptions.__annotations__))
        raise TypeError(f"search() has no option {name!r}; it takes {known}")


def _said(answer: httpx.Response | httpx.RequestError) -> Any:
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
