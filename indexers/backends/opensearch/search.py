"""Search: query bodies, paging, checks of every answer, and stored search templates.

The score is read from the sort values, which have Lucene's own float32. The caller names the index.

A stored template takes keywords, for clients that can't or won't build a query body.
`<prefix>-search` searches our own indexes; a field in another team's index has one of its own
(`field`), with the same parameters. It has the same clauses and order as `search_body`. Keywords,
numbers and field names are escaped as JSON strings; filters, aggregations, sort and search_after
are JSON structures of the caller (texts inside are escaped, too). See docs/combining.md.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cogr.errors import ServiceError, UserError
from cogr.records import Side
from cogr.snapshots import Row
from indexers.backends import MOST_TEXT, Hit, Keywords, Words, boosts_of
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.errors import ForbiddenError, service_error
from indexers.backends.opensearch.mapping import WORDS, id_field

log = logging.getLogger(__name__)

KEYWORDS = "keywords"
"""The field of our own indexes that holds keywords."""
MAX_CLAUSES = 1024
"""The default of `indices.query.bool.max_clause_count`."""
PAGE = 10_000
"""The default of `index.max_result_window`."""
_UNSHOWN = ["item_id", "query_id", "keywords", "self", "generated", "weights", "confidence"]
"""Fields that a hit leaves out: the others are its text and an item's extra fields."""
_KEEP_ALIVE = "2m"
# Statistics are summed over all shards; for a single shard it acts like query_then_fetch.
_EXACT = {"search_type": "dfs_query_then_fetch"}
_WEIGHT = re.compile(r"weight\((keywords|text\.words):(.*) in \d+\) \[.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """The size of the whole retrieved set, and hits of it in order."""

    total: int
    hits: Sequence[Hit]


def query_body(keywords: Keywords, field: str = KEYWORDS) -> dict[str, Any]:
    """The query: entities with at least one of the keywords, scored by the weighted sum over them.
    One clause a distinct keyword.

    `match` on a keyword field is one term, and unlike `term` it is never rewritten into an unscored
    `terms` query.

    Args:
        field: the field of keywords, which has another name in another team's index.

    Raises:
        UserError: more keywords than a cluster allows clauses.
    """
    boosts = boosts_of(keywords)
    if len(boosts) > MAX_CLAUSES:
        raise UserError(
            f"A search takes at most {MAX_CLAUSES} distinct keywords, but there are "
            f"{len(boosts)}; give fewer."
        )
    if not boosts:
        return {"match_none": {}}
    return {
        "bool": {
            "should": [clause(keyword, field, boost) for keyword, boost in boosts.items()],
            "minimum_should_match": 1,
        }
    }


def clause(
    keyword: str, field: str = KEYWORDS, boost: float | str = 1.0, **more: str
) -> dict[str, Any]:
    """The clause of one keyword, which says its boost unless that is 1, with `more` options of a
    match query.
    """
    boosted = {} if boost == 1 else {"boost": boost}
    return {"match": {field: {"query": keyword, **boosted, **more}}}


def text_clause(text: str, fields: Sequence[str], boost: float | str = 1.0) -> dict[str, Any]:
    """The clause of a text search over some fields, each with its own boost, as `title^2`."""
    boosted = {} if boost == 1 else {"boost": boost}
    return {"multi_match": {"query": text, "fields": list(fields), **boosted}}


def blended_body(keywords: Keywords, words: Words) -> dict[str, Any]:
    """The query: entities that the keywords find, or the words in their texts; the sum of both
    scores.
    """
    text = words.text[:MOST_TEXT]
    if words.alone or not keywords:
        return text_clause(text, [WORDS])
    query = query_body(keywords)
    query["bool"]["should"].append(text_clause(text, [WORDS], words.boost))
    return query


def search_body(
    side: Side, keywords: Keywords, size: int, words: Words | None = None
) -> dict[str, Any]:
    """The whole request body: exact total, score descending, then id ascending."""
    return {
        "query": blended_body(keywords, words) if words else query_body(keywords),
        "size": size,
        "track_total_hits": True,
        "sort": [{"_score": "desc"}, {id_field(side): "asc"}],
    }


def top(
    cluster: Cluster,
    index: str,
    side: Side,
    keywords: Keywords,
    size: int,
    explain: bool,
    words: Words | None = None,
) -> Found:
    """The best `size` hits with their texts, and with `explain` each keyword's part of the score.

    Args:
        words: a text search in the items' texts, which the index must have analysed.

    Raises:
        UserError: more hits than a cluster returns in one answer, or more keywords than it allows
            clauses.
        ServiceError: the cluster can't be reached, refuses, or gives only part of an answer.
    """
    if size > PAGE:
        raise UserError(
            f"A search gives at most {PAGE} hits, but {size} were asked for; give a smaller size."
        )
    if not keywords and not words:
        return Found(0, ())
    body = {
        **search_body(side, keywords, size, words),
        "_source": {"excludes": _UNSHOWN},
        "explain": explain,
    }
    doing = f"searching {index}"
    answer = checked(
        cluster.call("POST", f"/{index}/_search", body=body, params=_EXACT, doing=doing),
        cluster.url,
        index,
    )
    return Found(
        answer["hits"]["total"]["value"], [_hit(hit, keywords) for hit in answer["hits"]["hits"]]
    )


def everything(cluster: Cluster, index: str, side: Side, keywords: Keywords) -> Found:
    """The whole retrieved set, ids and scores only, paged over one point in time."""
    if not keywords:
        return Found(0, ())
    body = {**search_body(side, keywords, PAGE), "_source": False}
    doing = f"searching {index}"
    first = checked(
        cluster.call("POST", f"/{index}/_search", body=body, params=_EXACT, doing=doing),
        cluster.url,
        index,
    )
    total, hits = first["hits"]["total"]["value"], first["hits"]["hits"]
    if total > len(hits):
        hits = [hit for page in _pages(cluster, index, body) for hit in page]
    if len(hits) != total:
        raise ServiceError(
            f"{index} at {cluster.url} gave {len(hits)} hits of {total}; it changed meanwhile, "
            "search again."
        )
    scores = float32s([hit["sort"][0] for hit in hits])
    return Found(
        total, [Hit(hit["sort"][1], score) for hit, score in zip(hits, scores, strict=True)]
    )


def lookup(cluster: Cluster, index: str, own: str) -> Row | None:
    """The stored row of a query whose text is this keyword; None when the index has none."""
    if not own:
        return None
    body = lookup_body(own)
    doing = f"looking up a query in {index}"
    answer = checked(
        cluster.call("POST", f"/{index}/_search", body=body, doing=doing), cluster.url, index
    )
    hits = answer["hits"]["hits"]
    return _stored_row(hits[0]["_source"], own) if hits else None


def _stored_row(source: Mapping[str, Any], own: str) -> Row:
    return Row(
        source["query_id"],
        source["text"],
        tuple(source["generated"]),
        weights=tuple(source.get("weights") or ()),
        confidence=source.get("confidence"),
        own=own,
    )


def lookup_body(own: str) -> dict[str, Any]:
    """The request for the row of a query whose text is the keyword `own`; of several the
    first by id.
    """
    return {
        "size": 1,
        "query": {"term": {"self": own}},
        "sort": [{"query_id": "asc"}],
        "_source": ["query_id", "text", "generated", "weights", "confidence"],
    }


def checked(answer: Mapping[str, Any], url: str, index: str) -> Mapping[str, Any]:
    """The answer, unless it is only part of one.

    Raises:
        ServiceError: it timed out, a shard failed, or the total is only a lower bound.
    """
    flaws = {
        "it ran out of time": answer["timed_out"],
        f"{answer['_shards']['failed']} shards failed": answer["_shards"]["failed"] > 0,
        "the total is only a bound": answer["hits"]["total"]["relation"] != "eq",
    }
    for flaw, holds in flaws.items():
        if holds:
            raise ServiceError(
                f"The answer of {index} at {url} is not whole: {flaw}; see the cluster's health "
                "and search again."
            )
    return answer


def _pages(cluster: Cluster, index: str, body: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    doing = f"paging through {index}"
    pit = cluster.call(
        "POST", f"/{index}/_search/point_in_time", params={"keep_alive": _KEEP_ALIVE}, doing=doing
    )["pit_id"]
    try:
        after: dict[str, Any] = {}
        while True:
            request = {**body, **after, "pit": {"id": pit, "keep_alive": _KEEP_ALIVE}}
            answer = checked(
                cluster.call("POST", "/_search", body=request, params=_EXACT, doing=doing),
                cluster.url,
                index,
            )
            hits = answer["hits"]["hits"]
            yield hits
            if len(hits) < PAGE:
                return
            after = {"search_after": hits[-1]["sort"]}
    finally:
        cluster.call(
            "DELETE", "/_search/point_in_time", body={"pit_id": [pit]}, doing=doing, missing_ok=True
        )


def _hit(hit: Mapping[str, Any], keywords: Iterable[str]) -> Hit:
    explained = list(_parts(hit["_explanation"])) if "_explanation" in hit else []
    parts = {word: part for field, word, part in explained if field == KEYWORDS}
    words = math.fsum(part for field, _, part in explained if field == WORDS)
    matched = [keyword for keyword in dict.fromkeys(keywords) if keyword in parts]
    score, *matched_parts = float32s([hit["sort"][0], *(parts[keyword] for keyword in matched)])
    fields = dict(hit["_source"])
    return Hit(
        hit["sort"][1],
        score,
        fields.pop("text"),
        dict(zip(matched, matched_parts, strict=True)),
        fields,
        words,
    )


def float32s(printed: Sequence[float]) -> list[float]:
    """The float32 values behind their shortest decimal forms, which is how a cluster
    prints them.
    """
    values: list[float] = np.array(printed, np.float32).tolist()
    return values


def _parts(explanation: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(field, keyword or word, its part of the score) of Lucene's explanation: the nodes
    `weight(FIELD:KEYWORD in DOC) [...]`.
    """
    if found := _WEIGHT.fullmatch(explanation["description"]):
        yield found[1], found[2], explanation["value"]
    else:
        for detail in explanation["details"]:
            yield from _parts(detail)


TEMPLATE_PARAMETERS = (
    *(
        "keywords",
        "weighted",
        "text",
        "text_query",
        "text_boost",
        "size",
        "from",
        "search_after",
        "filters",
        "post_filter",
        "sort",
        "aggs",
        "fields",
    ),
    *("highlight", "explain"),
)
"""Names of the parameters."""
MISNAMED = {
    "filter": "filters",
    "query": "keywords",
    "keyword": "keywords",
    "words": "text",
    "weights": "weighted",
    "boosts": "weighted",
    "aggregations": "aggs",
    "facets": "aggs",
    "limit": "size",
    "offset": "from",
    "order": "sort",
    "after": "search_after",
    "source": "fields",
    "_source": "fields",
}
"""Wrong names for parameters, from other APIs. Mustache ignores unknown names, so the template
refuses these.
"""
_SIZE = 10
_WEIGHT_OR_ONE = "{{weight}}{{^weight}}1{{/weight}}"
"""Quoted, as all numbers here: OpenSearch reads it as a number or refuses it."""
_TEXT_BOOST = "{{text_boost}}{{^text_boost}}1{{/text_boost}}"
_TEXT_QUERY = f'{{"bool": {{"must": [{{{{#toJson}}}}.{{{{/toJson}}}}], "boost": "{_TEXT_BOOST}"}}}}'
"""The query of the caller's own text search, with the caller's boost."""
_NO_TEXT = (
    '{{#text}}, "the parameter text has no fields to search: set publish.text_fields and publish '
    'again": true{{/text}}'
)
_NO_MUSTACHE = ("script_lang not supported", "unsupported lang [mustache]")
"""Messages of several versions."""


def template_name(prefix: str) -> str:
    """The id to call it by."""
    return f"{prefix}-search"


def template_source(
    field: str = KEYWORDS,
    id_field: str | None = "item_id",
    shown: Sequence[str] = ("item_id", "text"),
    text_fields: Sequence[str] = (WORDS,),
) -> str:
    """The mustache source; it takes TEMPLATE_PARAMETERS, and must have one of
    keywords, weighted and text.

    A parameter by a name of `MISNAMED` makes a body that OpenSearch refuses with that name:
    no parameter is ignored silently.

    Args:
        field: that holds the keywords.
        id_field: the last tie-break of the order; None where the index has none that could be one.
        shown: fields that are always returned; empty: whole documents, unless `fields` names some.
        text_fields: the fields for a text search; empty: a text is refused.
    """
    # A match_none ends the list, so that every clause before it may end with a comma; it scores
    # nothing.
    plain, named = (_clauses(field, named=named) for named in (False, True))
    clauses = f"{{{{^explain}}}}{plain}{{{{/explain}}}}{{{{#explain}}}}{named}{{{{/explain}}}}"
    clauses += _each("text_query", _TEXT_QUERY)
    if text_fields:
        words = json.dumps(text_clause("{{text}}", text_fields, _TEXT_BOOST))
        clauses += f"{{{{#text}}}}{words},{{{{/text}}}}"
    query = (
        f'{{"minimum_should_match": 1, "should": [{clauses} {{"match_none": {{}}}}], "filter": '
        f"{_structure('filters', '[]')}}}"
    )
    last = [{"_score": "desc"}, *([{id_field: "asc"}] if id_field else [])]
    parts = {
        "query": f'{{"bool": {query}}}',
        "size": f'"{{{{size}}}}{{{{^size}}}}{_SIZE}{{{{/size}}}}"',
        "from": '"{{from}}{{^from}}0{{/from}}"',
        "track_total_hits": "true",
        "sort": f"[{_each('sort', '{{#toJson}}.{{/toJson}}')} {json.dumps(last)[1:]}",
        "post_filter": _structure("post_filter", '{"match_all": {}}'),
        "aggs": _structure("aggs", "{}"),
    }
    body = ", ".join(f'"{name}": {value}' for name, value in parts.items())
    after = (
        "{{#search_after.0}}, "
        + f'"search_after": {_structure("search_after")}'
        + "{{/search_after.0}}"
    )
    highlight = {"encoder": "html", "fields": {field: {"type": "plain", "number_of_fragments": 0}}}
    marked = "{{#highlight}}, " + f'"highlight": {json.dumps(highlight)}' + "{{/highlight}}"
    refused = _refusals() if text_fields else _refusals() + _NO_TEXT
    return f"{{{body}, {_given_back(shown)}{after}{marked}{refused}}}"


def _given_back(shown: Sequence[str]) -> str:
    names = _each("fields", json.dumps("{{.}}"))
    if shown:
        return f'"_source": [{names} {json.dumps(shown)[1:]}'
    # The last name of the list is no field.
    return (
        f'"_source": {{{{#fields.0}}}}[{names} '
        f'"_"]{{{{/fields.0}}}}{{{{^fields.0}}}}true{{{{/fields.0}}}}'
    )


def _refusals() -> str:
    """Parts of the body for misnamed parameters. Their keys are sentences, which OpenSearch repeats
    in its error.
    """
    return "".join(
        f'{{{{#{wrong}}}}}, "the parameter {wrong} is unknown: it is called {right}": '
        f"true{{{{/{wrong}}}}}"
        for wrong, right in MISNAMED.items()
    )


def _clauses(field: str, *, named: bool) -> str:
    """The clauses of keywords and of weighted ones; with names, a hit says which matched."""
    given: dict[str, tuple[str, float | str]] = {
        "keywords": ("{{.}}", 1.0),
        "weighted": ("{{keyword}}", _WEIGHT_OR_ONE),
    }
    return "".join(
        _each(name, json.dumps(clause(text, field, boost, **({"_name": text} if named else {}))))
        for name, (text, boost) in given.items()
    )


def _each(name: str, element: str) -> str:
    return f"{{{{#{name}}}}}{element},{{{{/{name}}}}}"


def _structure(name: str, default: str = "") -> str:
    """A list or an object of the caller, inserted unchanged. It must not be a text, which toJson
    writes unquoted.
    """
    given = f"{{{{#toJson}}}}{name}{{{{/toJson}}}}"
    return f"{given}{{{{^{name}}}}}{default}{{{{/{name}}}}}" if default else given


def install_template(cluster: Cluster, prefix: str) -> bool:
    """Store the template unless the cluster has it unchanged. Returns whether the cluster has it
    now.

    A cluster without the module lang-mustache has no templates at all, and a user may lack the
    right to store them: each is a warning.

    Raises:
        ServiceError: the cluster can't be reached or refuses.
    """
    try:
        return _stored(cluster, template_name(prefix))
    except ForbiddenError as error:
        log.warning("%s It goes on without the template.", error)
        return False


def _stored(cluster: Cluster, name: str) -> bool:
    doing = f"storing the search template {name}"
    path = f"/_scripts/{name}"
    there = cluster.call("GET", path, doing=doing, missing_ok=True)
    wanted = {"lang": "mustache", "source": template_source()}
    if there and _has(there, wanted):
        return True
    answer, refusal = cluster.try_once("PUT", path, {"script": wanted})
    if refusal is not None and any(words in refusal.reason for words in _NO_MUSTACHE):
        log.warning("%s has no mustache templates; %s is not stored.", cluster.url, name)
        return False
    if refusal is not None:
        raise service_error(refusal, cluster.url, doing)
    return bool(answer)


def _has(answer: Any, wanted: dict[str, str]) -> bool:
    stored = answer.get("script", {})
    return all(stored.get(key) == value for key, value in wanted.items())
