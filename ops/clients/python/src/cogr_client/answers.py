"""What requests look like and what answers mean. Pure data: nothing here sends anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_INDEX = "cogr-items"


class SearchError(Exception):
    """OpenSearch can't be reached, refuses, or gives only a part of an answer."""


@dataclass(frozen=True)
class Expansion:
    """A query's keywords.

    Attributes:
        keywords: the normalised query first, then its keywords.
        source: cache, index, model, or none: then the query is its own only keyword.
        reason: why there is none; "no expander" when the expander did not answer.
        clause: the OpenSearch query; None without an answer of the expander.
        index: the index to search, so that keywords and items are of one round; None to use the alias.
        snapshots: ids of the pair of snapshots.
    """

    keywords: Sequence[str]
    source: str
    reason: str = ""
    clause: Mapping[str, Any] | None = None
    index: str | None = None
    snapshots: Mapping[str, str | None] | None = None

    @classmethod
    def read(cls, answer: Mapping[str, Any], shared: Mapping[str, Any]) -> Expansion:
        """From the expander's words; `shared` holds what is said once for several queries."""
        return cls(
            tuple(answer["keywords"]),
            answer["source"],
            answer["reason"],
            answer["clause"],
            shared["index"],
            shared["snapshots"],
        )

    @classmethod
    def bare(cls, query: str) -> Expansion:
        """Without an expander: near enough to its normalisation for plain words."""
        text = " ".join(query.casefold().split())
        return cls((text,) if text else (), "none", "no expander")


@dataclass(frozen=True)
class Hit:
    """One item. `matched` lists the keywords that it was found by; `sort` continues a search (`search_after`)."""

    id: str
    score: float
    source: Mapping[str, Any]
    matched: Sequence[str]
    sort: Sequence[Any]


@dataclass(frozen=True)
class Found:
    """The answer to a search: how many items match in all, the best of them, facets, and the expansion it was made with."""

    total: int
    hits: Sequence[Hit]
    aggregations: Mapping[str, Any]
    expansion: Expansion


def search_body(
    expansion: Expansion,
    size: int,
    filters: Sequence[Mapping[str, Any]],
    search_after: Sequence[Any] | None,
    aggs: Mapping[str, Any] | None,
    fields: Sequence[str],
) -> dict[str, Any]:
    """The request body, with the clauses named after their keywords."""
    should = [{"match": {"keywords": {"query": word, "_name": word}}} for word in expansion.keywords]
    matches: dict[str, Any] = {"bool": {"should": should, "minimum_should_match": 1}} if should else {"match_none": {}}
    body: dict[str, Any] = {
        "query": {"bool": {"must": [matches], "filter": list(filters)}} if filters else matches,
        "size": size,
        "track_total_hits": True,
        "sort": [{"_score": "desc"}, {"item_id": "asc"}],
        "_source": ["item_id", "text", *fields],
    }
    if search_after is not None:
        body["search_after"] = list(search_after)
    return body | ({"aggs": dict(aggs)} if aggs else {})


def read_found(answer: Any, expansion: Expansion) -> Found:
    """From OpenSearch's words. Raises SearchError when they are not a whole answer."""
    try:
        if answer["timed_out"] or answer["_shards"]["failed"]:
            raise SearchError("OpenSearch gave only a part of the answer; search again")
        hits = [
            Hit(
                hit["_source"].get("item_id", hit["_id"]),
                hit["sort"][0],
                hit["_source"],
                tuple(hit.get("matched_queries", ())),
                tuple(hit["sort"]),
            )
            for hit in answer["hits"]["hits"]
        ]
        return Found(answer["hits"]["total"]["value"], hits, answer.get("aggregations", {}), expansion)
    except (KeyError, TypeError, IndexError) as error:
        raise SearchError(f"OpenSearch's answer is none: {error!r}") from error
