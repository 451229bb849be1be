"""The requests in docs/opensearch.md and docs/combining.md, as they are written, against a
live node.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cogr.settings.serving import OpenSearchSettings
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Version
from indexers.backends.opensearch.indexes import index_settings, mapping
from indexers.backends.opensearch.search import query_body
from tests.documents import examples
from tests.indexers.backends.backend_worlds import SHOP, SHOPPERS, frozen, priced, publish
from tests.indexers.backends.opensearch_worlds import backend_of

INDEX, SEARCH = map(json.loads, examples("opensearch.md", "json"))
*_, BY_TEMPLATE = map(json.loads, examples("combining.md", "json"))
PREFIX = f"docs{os.getpid()}"
"""In place of the page's `shop`."""
KEYWORDS = [clause["match"]["keywords"]["query"] for clause in SEARCH["query"]["bool"]["should"]]


@pytest.fixture(scope="module")
def shop(
    opensearch: OpenSearchSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenSearchBackend]:
    store = Store(str(tmp_path_factory.mktemp("store")))
    with backend_of(opensearch, store, prefix=PREFIX) as backend:
        publish(backend, frozen(store, "item", priced(SHOP)), frozen(store, "query", SHOPPERS))
        yield backend


def ask(shop: OpenSearchBackend, index: str, body: Any) -> list[Any]:
    path, exact = f"/{index}/_search", {"search_type": "dfs_query_then_fetch"}
    hits: list[Any] = shop.cluster.call("POST", path, body=body, params=exact, doing="asking")[
        "hits"
    ]["hits"]
    return hits


def serving(shop: OpenSearchBackend) -> str:
    return str(shop.serving()["item"])


def test_the_index_is_what_a_push_makes() -> None:
    made = {
        "settings": index_settings(1),
        "mappings": mapping("item", Version(3, 8, "3.8.0"), INDEX["mappings"]["_meta"]),
    }
    assert made == INDEX


def test_the_search(shop: OpenSearchBackend) -> None:
    found = shop.search(KEYWORDS, snapshot=serving(shop), size=SEARCH["size"])
    hits = ask(shop, f"{PREFIX}-items", SEARCH)
    assert SEARCH["query"] == query_body(KEYWORDS)
    assert (
        [(hit["sort"][1], hit["_source"]["text"]) for hit in hits]
        == [(hit.id, hit.text) for hit in found.hits]
        != []
    )
    bare = {name: value for name, value in SEARCH.items() if name != "_source"}
    ids = ask(
        shop, f"{PREFIX}-items", {**bare, "stored_fields": "_none_", "docvalue_fields": ["item_id"]}
    )
    assert [hit["fields"]["item_id"] for hit in ids] == [[hit.id] for hit in found.hits]


def test_the_search_by_template(shop: OpenSearchBackend) -> None:
    """The example's id is of another shop: with this one's in its place it finds the page after the
    named hit.
    """
    params = BY_TEMPLATE["params"]
    hits = shop.search(params["keywords"], snapshot=serving(shop)).hits
    best, *others = [
        hit for hit in hits if hit.fields["in_stock"] and float(str(hit.fields["price"])) < 900
    ]
    own = {"search_after": [best.score, best.id]}
    path, named = (
        f"/{PREFIX}-items/_search/template",
        {**BY_TEMPLATE, "id": BY_TEMPLATE["id"].replace("shop", PREFIX)},
    )
    body = {**named, "params": params | own}
    answer = shop.cluster.call("POST", path, body=body, doing="asking by template")
    assert 0 < len(others) < len(hits) - 1
    assert [hit["_source"]["item_id"] for hit in answer["hits"]["hits"]] == [
        hit.id for hit in others
    ]
    assert [hit["_source"]["price"] for hit in answer["hits"]["hits"]] == [
        hit.fields["price"] for hit in others
    ]
    brands = {
        bucket["key"]: bucket["doc_count"]
        for bucket in answer["aggregations"]["set"]["brands"]["buckets"]
    }
    assert brands == Counter(hit.fields["brand"] for hit in [best, *others])
    assert shop.cluster.call("POST", path, body=named, doing="asking as it is")
