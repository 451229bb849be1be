"""Search: query bodies, paging, checks of every answer, and stored search templates.

The score is read from the sort values, which have Lucene's own float32. The caller names the index.

The stored template `<prefix>-search` takes keywords, for clients that can't or won't build a query
body. It has the same clauses and order as `search_body`. Keywords, numbers and field names are
escaped as JSON strings; filters, aggregations, sort and search_after are JSON structures of the
caller (texts inside are escaped, too). See docs/combining.md.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np

from cogr.errors import CogrError, ServiceError, UserError
from cogr.keywords import query_key, self_keyword
from cogr.records import SIDES, Side
from cogr.snapshots import Row
from indexers.backends import (
    MAX_CLAUSES,
    NAMED_BOOST,
    Bodies,
    Entry,
    Hit,
    Keywords,
    SearchResult,
    Words,
    boosts_of,
)
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import CODES, LITERAL, WORDS
from indexers.text import asked_code

log = logging.getLogger(__name__)

KEYWORDS = "keywords"
"""The field of our own indexes that holds keywords."""
_PAGE = 10_000
"""The default of `index.max_result_window`."""
_UNSHOWN = [
    "item_id",
    "query_id",
    "keywords",
    "query_key",
    "self",
    "generated",
    "weights",
    "confidence",
]
"""Fields that a hit leaves out: the others are its text and an item's extra fields."""
# Statistics are summed over all shards; for a single shard it acts like query_then_fetch.
_EXACT = {"search_type": "dfs_query_then_fetch"}
_WEIGHT = re.compile(r"weight\(([^:]+):(.*) in \d+\) \[.*", re.DOTALL)


TIER = 1024.0
"""Score that the set has above what only the text finds: more than keywords and text add up to. A
power of two, so that taking it off again rounds nothing.
"""


def query_body(keywords: Keywords, field: str = KEYWORDS) -> dict[str, Any]:
    """The query: entities with at least one of the keywords, scored by the weighted sum over them,
    and without those that have a keyword of weight 0. One clause a distinct keyword.

    `match` on a keyword field is one term, and unlike `term` it is never rewritten into an unscored
    `terms` query. Raises UserError for more keywords than a cluster allows clauses.
    """
    boosts = boosts_of(keywords)
    without = [keyword for keyword, boost in boosts.items() if boost == 0]
    if len(boosts) > MAX_CLAUSES:
        raise UserError(
            f"A search takes at most {MAX_CLAUSES} distinct keywords, but there are "
            f"{len(boosts)}; give fewer."
        )
    if len(boosts) == len(without):
        return {"match_none": {}}
    return {
        "bool": {
            "should": [
                {"match": {field: {"query": keyword, **_boosted(boost)}}}
                for keyword, boost in boosts.items()
                if boost
            ],
            "minimum_should_match": 1,
            **({"must_not": [{"terms": {field: without}}]} if without else {}),
        }
    }


def _boosted(boost: float) -> dict[str, float]:
    return {} if boost == 1 else {"boost": boost}


@dataclass(frozen=True)
class Fields:
    """The fields of an index: of keywords, of texts that are ranked by, of texts in one of which a
    literal match has every word, of ids, which may be numbers, and of part numbers; `_id` is the
    document's own.
    """

    keywords: str = KEYWORDS
    texts: Sequence[str] = (WORDS,)
    literal: Sequence[str] = (f"{LITERAL}.*",)
    id: str = "item_id"
    numbers: bool = False
    codes: str = CODES

    def of_id(self, text: str) -> dict[str, Any]:
        """The query for the item whose id is this text, whatever its case; for `_id` and numbers in
        its own case, or all small or all capital.
        """
        if self.keywords == KEYWORDS:
            return {"match": {f"{LITERAL}.item_id": text}}
        if self.id == "_id":
            return {"ids": {"values": list(dict.fromkeys((text, text.upper(), text.lower())))}}
        if self.numbers:
            return {"match": {self.id: {"query": text, "lenient": True}}}
        return {"term": {self.id: {"value": text, "case_insensitive": True}}}


OWN: Mapping[Side, Fields] = {side: Fields(id=f"{side}_id") for side in SIDES}
"""The fields of our own indexes."""


def set_body(keywords: Keywords, words: Words, fields: Fields = OWN["item"]) -> dict[str, Any]:
    """The query that finds the set: what has one of the keywords, and literal matches, but nothing
    with a keyword of weight 0. As a filter it gives counts and facets.
    """
    texts, own = words.texts, fields.keywords == KEYWORDS
    every = [
        {"multi_match": {"query": text, "fields": list(fields.literal), "operator": "and"}}
        for text in texts
        if fields.literal
    ]
    begun = [{"match_bool_prefix": {fields.codes: text}} for text in texts if asked_code(text)]
    boosts = boosts_of(keywords)
    having: dict[str, Any] = {
        "terms": {fields.keywords: [word for word, boost in boosts.items() if boost]}
    }
    buried = [word for word, boost in boosts.items() if not boost]
    without = {"must_not": [{"terms": {fields.keywords: buried}}]} if buried else {}
    # In CoGR's own index a literal match of the whole id is one.
    named = [] if own else [fields.of_id(texts[0])]
    return {"bool": {"should": [having, *every, *begun, *named], **without}}


def bodies(keywords: Keywords, words: Words, fields: Fields = OWN["item"]) -> Bodies:
    """The query of both tiers, and that of the set alone. The set comes first, then what else the
    text finds; in each tier by the sum of the scores of keywords and text, what the text names
    first.
    """
    shared = {"fields": list(fields.texts)} | _boosted(words.boost)
    texts: list[dict[str, Any]] = [
        {"multi_match": {"query": text, **shared}} for text in words.texts if fields.texts
    ]
    first = set_body(keywords, words, fields)
    own = words.texts[0]
    coded = [{"match": {fields.codes: own}}] if asked_code(own) else []
    named = {"bool": {"should": [fields.of_id(own), *coded]}} if coded else fields.of_id(own)
    should = [
        query_body(keywords, fields.keywords),
        *(texts if len(texts) < 2 else [{"dis_max": {"queries": texts}}]),
        {"constant_score": {"filter": named, "boost": NAMED_BOOST}},
        {"constant_score": {"filter": first, "boost": TIER}},
    ]
    return {"bool": {"should": should}}, first


def search_body(
    keywords: Keywords,
    size: int,
    words: Words | None = None,
    fields: Fields = OWN["item"],
    *,
    set_only: bool = False,
) -> dict[str, Any]:
    """The whole request body: exact total, of both tiers, score descending, then id ascending."""
    query = query_body(keywords, fields.keywords)
    if words:
        query, first = bodies(keywords, words, fields)
        query["bool"] |= {"filter": [first]} if set_only else {}
    return {
        "query": query,
        "size": size,
        "track_total_hits": True,
        "sort": [{"_score": "desc"}, {fields.id: "asc"}],
    }


def count_body(keywords: Keywords, words: Words, fields: Fields = OWN["item"]) -> dict[str, Any]:
    """The request that counts the set: a third of what an aggregation beside the hits costs, which
    looks at each item that the text finds.
    """
    counted = set_body(keywords, words, fields)
    return {"query": counted, "size": 0, "track_total_hits": True}


def top(
    cluster: Cluster,
    index: str,
    keywords: Keywords,
    size: int,
    explain: bool,
    words: Words | None = None,
    fields: Fields = OWN["item"],
) -> SearchResult:
    """The best `size` hits with their texts, and with `explain` each keyword's part of the score.
    The set is counted at the same time.

    Raises UserError for more hits than a cluster returns in one answer, and as `query_body` and
    `ask`.
    """
    if size > _PAGE:
        raise UserError(
            f"A search returns at most {_PAGE} hits, but {size} were asked for; give a smaller "
            "size."
        )
    body = {
        **search_body(keywords, size, words, fields),
        "_source": {"excludes": _UNSHOWN} if fields.keywords == KEYWORDS else False,
        "explain": explain,
    }
    if words:
        both = [body, count_body(keywords, words, fields)]
        answer, counted = ask_together(cluster, index, both)
    else:
        answer = counted = ask(cluster, index, body)
    every, total = (one["hits"]["total"]["value"] for one in (answer, counted))
    hits = [_hit(hit, keywords, fields, tiered=words is not None) for hit in answer["hits"]["hits"]]
    return SearchResult(total, hits, more=every - total)


def everything(
    cluster: Cluster,
    index: str,
    keywords: Keywords,
    words: Words | None = None,
    fields: Fields = OWN["item"],
) -> SearchResult:
    """The whole retrieved set, ids and scores only."""
    body = {**search_body(keywords, _PAGE, words, fields, set_only=True), "_source": False}
    pages = list(_pages(cluster, index, body))
    above = TIER if words else 0.0
    scores = [score - above for score in float32s([hit["sort"][0] for hit in pages])]
    hits = [Hit(str(hit["sort"][1]), score) for hit, score in zip(pages, scores, strict=True)]
    return SearchResult(len(hits), hits)


def ask_together(
    cluster: Cluster, index: str, bodies: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """The whole answers of searches that run at the same time, by one request: from two threads
    they take twice as long. Raises as `ask`.
    """
    lines = "".join(f"{{}}\n{json.dumps(body)}\n" for body in bodies).encode()
    path, doing = f"/{index}/_msearch", f"searching {index}"
    said = cluster.call("POST", path, body=lines, params=_EXACT, doing=doing)["responses"]
    # What is refused is asked again by itself, and then retried or refused with its reason.
    return [
        ask(cluster, index, body) if "error" in answer else whole(cluster, index, answer)
        for body, answer in zip(bodies, said, strict=True)
    ]


def ask(cluster: Cluster, index: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The whole answer of a search, with statistics of all shards. Raises ServiceError where only a
    part came.
    """
    path, doing = f"/{index}/_search", f"searching {index}"
    return whole(cluster, index, cluster.call("POST", path, body=body, params=_EXACT, doing=doing))


def whole(cluster: Cluster, index: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer of a search with an exact total. Raises ServiceError where it is only a part."""
    lost, shards = lost_shards(answer), answer["_shards"]["total"]
    flaws = {
        "it ran out of time": answer["timed_out"],
        f"{lost} of {shards} shards did not answer": lost > 0,
        "the total is only a bound": answer["hits"]["total"]["relation"] != "eq",
    }
    for flaw in (flaw for flaw, holds in flaws.items() if holds):
        raise ServiceError(
            f"The answer from {index} at {cluster.url} is incomplete: {flaw}; see the cluster's "
            "health and try again."
        )
    return answer


def lost_shards(answer: Mapping[str, Any]) -> int:
    """How many shards did not answer: those that failed, and those that no node has, which the
    cluster counts as neither failed nor successful.
    """
    shards = answer["_shards"]
    return int(shards["total"] - shards["successful"])


def lookup(cluster: Cluster, index: str, text: str) -> Row | None:
    """The stored row of a query (`lookup_body`); None when the index has none."""
    hits = ask(cluster, index, lookup_body(text))["hits"]["hits"]
    if not hits:
        return None
    source = hits[0]["_source"]
    return replace(Entry.model_validate(source).row(), id=source["query_id"], text=source["text"])


def lookup_body(text: str) -> dict[str, Any]:
    """The request for the row of a query with this text, else with its own keyword; of several the
    first by id.
    """
    wanted = (("query_key", query_key(text), 2), ("self", self_keyword(text), 1))
    clauses = [
        {"constant_score": {"filter": {"term": {name: value}}, "boost": boost}}
        for name, value, boost in wanted
        if value
    ]
    return {
        "size": 1,
        "query": {"dis_max": {"queries": clauses}} if clauses else {"match_none": {}},
        "sort": ["_score", {"query_id": "asc"}],
        "_source": ["query_id", "text", "generated", "weights", "confidence"],
    }


def _pages(cluster: Cluster, index: str, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every hit of a search in an index that takes no writes, page by page in the body's order,
    which is total.
    """
    request = dict(body)
    while True:
        hits = ask(cluster, index, request)["hits"]["hits"]
        yield from hits
        if len(hits) < body["size"]:
            return
        request["search_after"] = hits[-1]["sort"]


def _hit(hit: Mapping[str, Any], keywords: Iterable[str], of: Fields, *, tiered: bool) -> Hit:
    explained = list(_parts(hit["_explanation"])) if "_explanation" in hit else []
    parts = {word: part for field, word, part in explained if field == of.keywords}
    words = math.fsum(part for field, _, part in explained if field != of.keywords)
    matched = [keyword for keyword in dict.fromkeys(keywords) if keyword in parts]
    score, *matched_parts = float32s([hit["sort"][0], *(parts[keyword] for keyword in matched)])
    fields, above = dict(hit.get("_source", {})), tiered and score >= TIER
    return Hit(
        str(hit["sort"][1]),
        score - TIER if above else score,
        fields.pop("text", ""),
        dict(zip(matched, matched_parts, strict=True)),
        fields,
        words,
        "set" if above or not tiered else "more",
    )


def float32s(printed: Sequence[float]) -> list[float]:
    """The float32 values behind their shortest decimal forms, which is how a cluster
    prints them.
    """
    values: list[float] = np.array(printed, np.float32).tolist()
    return values


def _parts(explanation: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    details = explanation["details"]
    if match := _WEIGHT.fullmatch(explanation["description"]):
        yield match[1], match[2], explanation["value"]
    elif explanation["description"] == "max of:":
        yield from _parts(max(details, key=lambda one: one["value"]))
    else:
        for detail in details:
            yield from _parts(detail)


_BURIED = '{"terms": {"keywords": [{{#without}}"{{.}}",{{/without}}""]}}'
_OF_ID = '{"match": {"literal.item_id": "{{text}}"}}'
_SET = (
    '{"bool": {"should": [{{#text}}{"multi_match": {"query": "{{text}}", "fields": ["literal.*"], '
    '"operator": "and"}}, {"match_bool_prefix": {"part_numbers": "{{text}}"}}, {{/text}} '
    '{"terms": {"keywords": [{{#keywords}}"{{.}}",{{/keywords}}'
    '{{#weighted}}"{{keyword}}",{{/weighted}}""]}}], "must_not": [BURIED]}}'
)
"""No keyword is empty: the last one ends the list."""


def template_source() -> str:
    """The mustache source; docs/combining.md lists its parameters."""
    source = files(__package__).joinpath("search.mustache").read_text("utf-8")
    parts = {"SET": _SET, "OF_ID": _OF_ID, "BURIED": _BURIED}
    for name, part in {**parts, "TIER": str(TIER), "NAMED_BOOST": str(NAMED_BOOST)}.items():
        source = source.replace(name, part)
    return source


def install_template(cluster: Cluster, prefix: str) -> None:
    """Store the template as `<prefix>-search`. A cluster without the module lang-mustache has no
    templates, and a user may lack the right to store them: then it is a warning.
    """
    body = {"script": {"lang": "mustache", "source": template_source()}}
    try:
        cluster.call(
            "PUT", f"/_scripts/{prefix}-search", body=body, doing="storing the search template"
        )
    except CogrError as error:
        log.warning("%s Continuing without the template.", error)
