"""Stored search templates: keywords in, results out, for clients that can't or won't build a query
body.

`<prefix>-search` searches our own indexes; a field in another team's index has one of its own
(into/template.py), with the same parameters. Clauses and order are those of `search`. Keywords,
numbers and field names are escaped as JSON strings; filters, aggregations, sort and search_after
are structures that the caller's program makes (texts inside of them are escaped, too). See
docs/search-template.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.errors import ForbiddenError, service_error
from indexers.backends.opensearch.mapping import WORDS
from indexers.backends.opensearch.search import KEYWORDS, clause, text_clause

log = logging.getLogger(__name__)

PARAMETERS = (
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
"""What parameters are called elsewhere: mustache passes over a name that the template does not ask
for.
"""
_SIZE = 10
_WEIGHT = "{{weight}}{{^weight}}1{{/weight}}"
"""Quoted, as all numbers here: OpenSearch reads it as a number or refuses it."""
_TEXT_BOOST = "{{text_boost}}{{^text_boost}}1{{/text_boost}}"
_TEXT_QUERY = f'{{"bool": {{"must": [{{{{#toJson}}}}.{{{{/toJson}}}}], "boost": "{_TEXT_BOOST}"}}}}'
"""A query of the caller's own text search, which weighs what the caller says."""
_NO_TEXT = (
    '{{#text}}, "the parameter text has no fields to search: set publish.text_fields and publish '
    'again": true{{/text}}'
)
_NO_MUSTACHE = ("script_lang not supported", "unsupported lang [mustache]")
"""How versions say it."""


def template_name(prefix: str) -> str:
    """The id to call it by."""
    return f"{prefix}-search"


def source(
    field: str = KEYWORDS,
    id_field: str | None = "item_id",
    shown: Sequence[str] = ("item_id", "text"),
    text_fields: Sequence[str] = (WORDS,),
) -> str:
    """The mustache source; it takes PARAMETERS, of which keywords, weighted or text is required.

    A parameter by a name of `MISNAMED` makes a body that OpenSearch refuses with that name:
    nothing is passed over in silence.

    Args:
        field: that holds the keywords.
        id_field: the last tie-break of the order; None where the index has none that could be one.
        shown: fields that are always given back; none gives whole documents unless `fields` names
            some.
        text_fields: that a text is searched in; without any, a text is refused.
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
    # The name that ends the list is of no field.
    return (
        f'"_source": {{{{#fields.0}}}}[{names} '
        f'"_"]{{{{/fields.0}}}}{{{{^fields.0}}}}true{{{{/fields.0}}}}'
    )


def _refusals() -> str:
    """Parts that are in the body only when a misnamed parameter is given; their keys are sentences,
    which OpenSearch repeats.
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
        "weighted": ("{{keyword}}", _WEIGHT),
    }
    return "".join(
        _each(name, json.dumps(clause(text, field, boost, **({"_name": text} if named else {}))))
        for name, (text, boost) in given.items()
    )


def _each(name: str, element: str) -> str:
    return f"{{{{#{name}}}}}{element},{{{{/{name}}}}}"


def _structure(name: str, default: str = "") -> str:
    """A list or an object of the caller's, as it is. toJson writes a text unquoted: it must
    never be one.
    """
    given = f"{{{{#toJson}}}}{name}{{{{/toJson}}}}"
    return f"{given}{{{{^{name}}}}}{default}{{{{/{name}}}}}" if default else given


def install(cluster: Cluster, prefix: str) -> bool:
    """Store the template unless it is there as it is; whether the cluster has it now.

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
    wanted = {"lang": "mustache", "source": source()}
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
