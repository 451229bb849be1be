"""The search that the page shows as a request to copy: for curl, for Python, and its JSON body.

Addresses of a cluster stay out of it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pprint import pformat

from indexers.backends.opensearch.search import search_body

_JSON_TYPE = "Content-Type: application/json"


def snippets(
    query: str, keywords: Sequence[str], index: str, expander: str, size: int
) -> dict[str, str]:
    """The request in each language.

    Args:
        query: as it was typed; the shell's and Python's quoting is done here.
        keywords: S_q ∪ {q}.
        index: the index or alias to search.
        expander: address of the expander, as the page's reader has it.
        size: most hits.
    """
    body = {**search_body("item", keywords, size), "_source": ["text"]}
    return {
        "curl": _curl(query, body, index, expander),
        "python": _python(body, index),
        "json": json.dumps(body, indent=2, ensure_ascii=False),
    }


def _curl(query: str, body: object, index: str, expander: str) -> str:
    ask = shlex.quote(json.dumps({"query": query}, ensure_ascii=False))
    search = shlex.quote(json.dumps(body, ensure_ascii=False))
    path = shlex.quote(f"/{index}/_search?search_type=dfs_query_then_fetch")
    return (
        f"# The query's keywords, and the clause that searches for them\n"
        f"curl -s {shlex.quote(expander + 'expand')} -H {shlex.quote(_JSON_TYPE)} -d {ask}\n\n"
        f"# The search\n"
        f'curl -s "$OPENSEARCH_URL"{path} -H {shlex.quote(_JSON_TYPE)} -d {search}\n'
    )


def _python(body: object, index: str) -> str:
    written = pformat(body, width=88, sort_dicts=False).replace("\n", "\n    ")
    return (
        "import os\n\n"
        "from opensearchpy import OpenSearch\n\n"
        'client = OpenSearch(os.environ["OPENSEARCH_URL"])\n'
        "found = client.search(\n"
        f"    index={index!r},\n"
        '    search_type="dfs_query_then_fetch",\n'
        f"    body={written},\n"
        ")\n"
        'for hit in found["hits"]["hits"]:\n'
        '    print(hit["sort"][0], hit["_source"]["text"])\n'
    )
