"""The stored search template `<prefix>-search`: keywords in, results out, for clients that can't or won't build a query body.

Its clauses and its order are those of `search`. Keywords, the size and field names are escaped as JSON strings; filters, aggregations and
search_after are structures that the caller's program makes (texts inside of them are escaped, too). See docs/search-template.md.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.errors import service_error
from indexers.backends.opensearch.search import clause, search_body

log = logging.getLogger(__name__)

_SIZE = 10
_NO_MUSTACHE = ("script_lang not supported", "unsupported lang [mustache]")
"""How versions say it."""


def template_name(prefix: str) -> str:
    """The id to call it by."""
    return f"{prefix}-search"


def source() -> str:
    """The mustache source.

    Parameters: keywords (required), size, search_after, filters, post_filter, aggs, fields, highlight, explain.
    """
    # A match_none ends the list, so that every clause before it may end with a comma; it scores nothing.
    plain, named = json.dumps(clause("{{.}}")), json.dumps(clause("{{.}}", _name="{{.}}"))
    clauses = f"{{{{^explain}}}}{_each('keywords', plain)}{{{{/explain}}}}{{{{#explain}}}}{_each('keywords', named)}{{{{/explain}}}}"
    query = f'{{"minimum_should_match": 1, "should": [{clauses} {{"match_none": {{}}}}], "filter": {_structure("filters", "[]")}}}'
    parts = {
        "query": f'{{"bool": {query}}}',
        "size": f'"{{{{size}}}}{{{{^size}}}}{_SIZE}{{{{/size}}}}"',
        "track_total_hits": "true",
        "sort": json.dumps(search_body("item", (), 0)["sort"]),
        "_source": f'[{_each("fields", json.dumps("{{.}}"))} "item_id", "text"]',
        "post_filter": _structure("post_filter", '{"match_all": {}}'),
        "aggs": _structure("aggs", "{}"),
    }
    body = ", ".join(f'"{name}": {value}' for name, value in parts.items())
    after = "{{#search_after.0}}, " + f'"search_after": {_structure("search_after")}' + "{{/search_after.0}}"
    marked = "{{#highlight}}, " + f'"highlight": {json.dumps(_HIGHLIGHT)}' + "{{/highlight}}"
    return f"{{{body}{after}{marked}}}"


# A keyword is marked as a whole: no fragments.
_HIGHLIGHT = {"encoder": "html", "fields": {"keywords": {"type": "plain", "number_of_fragments": 0}}}


def _each(name: str, element: str) -> str:
    return f"{{{{#{name}}}}}{element},{{{{/{name}}}}}"


def _structure(name: str, default: str = "") -> str:
    """A list or an object of the caller's, as it is. toJson writes a bare text unquoted: it must never be one."""
    given = f"{{{{#toJson}}}}{name}{{{{/toJson}}}}"
    return f"{given}{{{{^{name}}}}}{default}{{{{/{name}}}}}" if default else given


def install(cluster: Cluster, prefix: str) -> bool:
    """Store the template unless it is there as it is; whether the cluster has it now.

    A cluster without the module lang-mustache has no templates at all: that is no error.

    Raises:
        ServiceError: the cluster can't be reached or refuses.
    """
    name = template_name(prefix)
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
