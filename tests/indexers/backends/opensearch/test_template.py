"""The stored search template on a live node: same results as the backend, and no text that breaks
out of its place. The requests in docs/opensearch.md and docs/combining.md, as they are written.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Snapshot
from cogr.store import Store
from indexers.backends import MAX_TEXT, Words
from indexers.backends.opensearch import OpenSearchBackend, search
from indexers.backends.opensearch.client import Version
from indexers.backends.opensearch.indexes import index_settings, mapping
from indexers.backends.opensearch.search import float32s, query_body
from tests.documents import DOCS, examples
from tests.indexers.backends.backend_worlds import (
    SHOP,
    SHOPPERS,
    priced,
    publish,
    random_queries,
    random_world,
    weighted,
)
from tests.indexers.backends.opensearch_worlds import backend_of
from tests.indexers.hostile_texts import hostile
from tests.shops import frozen

FILTERED = {"ids": {"values": ["a-1", "c"]}}


class World:
    """A published snapshot and its template."""

    def __init__(self, backend: OpenSearchBackend, snapshot: Snapshot, *others: Snapshot) -> None:
        self.cluster = backend.cluster
        self.found = partial(backend.search, snapshot=snapshot.id)
        self.whole = partial(backend.retrieved, snapshot=snapshot.id)
        publish(backend, snapshot, *others)
        self.name, self.alias = f"{backend.prefix}-search", f"{backend.prefix}-items"

    def search(self, **params: Any) -> Any:
        return self.call(f"/{self.alias}/_search/template", {"id": self.name, "params": params})

    def render(self, **params: Any) -> Any:
        body = {"id": self.name, "params": params}
        return self.call("/_render/template", body)["template_output"]

    def call(self, path: str, body: Any) -> Any:
        return self.cluster.call("POST", path, body=body, doing="asking")


@pytest.fixture(scope="module")
def shop(
    opensearch: OpenSearchSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    store = Store(str(tmp_path_factory.mktemp("store")))
    with backend_of(opensearch, store) as backend:
        yield World(backend, frozen(store, "item", priced(SHOP)), frozen(store, "query", SHOPPERS))


def ids(answer: Any) -> list[str]:
    return [hit["_source"]["item_id"] for hit in answer["hits"]["hits"]]


def ranked(answer: Any) -> list[tuple[str, float]]:
    """Ids with Lucene's scores."""
    sorts = [hit["sort"] for hit in answer["hits"]["hits"]]
    scores = float32s([score for score, _ in sorts])
    return [(id_, score) for (_, id_), score in zip(sorts, scores, strict=True)]


def test_results_are_those_of_the_backend_bit_for_bit(
    opensearch: OpenSearchSettings, tmp_path: Path
) -> None:
    store = Store(str(tmp_path))
    rows = random_world(400)
    with backend_of(opensearch, store) as backend:
        world = World(backend, frozen(store, "item", rows))
        for number, keywords in enumerate(random_queries(rows, 15, 31)):
            boosts = weighted(keywords)
            given = [{"keyword": word, "weight": weight} for word, weight in boosts.items()]
            plain = {word: 1.0 for word in keywords if boosts[word] == 1}
            mixed = {"keywords": [*plain], "weighted": [w for w in given if w["weight"] != 1]}
            asked, params = (
                (boosts, {"weighted": given}),
                (boosts, mixed),
                (keywords, {"keywords": list(dict.fromkeys(keywords))}),
                (keywords, {"weighted": [{"keyword": word} for word in boosts]}),
            )[number % 4]
            answer, expected = world.search(**params, size=50), world.found(asked, size=50)
            assert answer["hits"]["total"] == {"value": expected.total, "relation": "eq"}
            assert ranked(answer) == [(hit.id, hit.score) for hit in expected.hits]


def test_words_beside_keywords_score_as_the_backends(shop: World) -> None:
    weights = {"couch": 2.5, "oak": 1.0}
    given = [{"keyword": word, "weight": weight} for word, weight in weights.items()]
    for text, boost in product(("velvet sofa?", "sofa velvet oak"), (0.05, 0.4, 3)):
        words = Words(text, boost)
        expected = shop.found(weights, words=words)
        answer = shop.search(weighted=given, text=text, text_boost=boost)
        assert answer["aggregations"]["total"]["doc_count"] == expected.total
        assert answer["hits"]["total"]["value"] == expected.total + expected.more
        assert ranked(answer) == [
            (hit.id, hit.score + search.TIER * (hit.tier == "set")) for hit in expected.hits
        ]
        alone = shop.search(weighted=given, text=text, text_boost=boost, set_only=True)
        assert ids(alone) == [hit.id for hit in shop.whole(weights, words=words).hits]
        assert alone["hits"]["total"]["value"] == expected.total
    buried = shop.search(weighted=given, text="velvet sofa", without=["mid-century"])
    expected = shop.found(weights | {"mid-century": 0.0}, words=Words("velvet sofa"))
    assert ids(buried) == [hit.id for hit in expected.hits]
    assert buried["aggregations"]["total"]["doc_count"] == expected.total
    assert ids(buried)[expected.total :] == ["a-1"]
    alone = shop.search(text="velvet sofa?", explain=True)
    expected = shop.found([], words=Words("velvet sofa?"))
    assert ids(alone) == [hit.id for hit in expected.hits] == ["a-1", "f"]
    assert shop.search(text="")["hits"]["total"]["value"] == 0
    for text in hostile(2, 40):
        found = shop.search(text=text[:MAX_TEXT], text_boost=2)["hits"]["total"]["value"]
        expected = shop.found([], words=Words(text))
        assert found == expected.total + expected.more


BOTH = {"keywords": ["sofa", "couch"]}


def test_pages_filters_facets_and_fields(shop: World) -> None:
    whole = shop.search(**BOTH)
    assert len(ids(whole)) == 4
    first = shop.search(**BOTH, size=2)
    second = shop.search(**BOTH, size=2, search_after=first["hits"]["hits"][-1]["sort"])
    assert ids(first) + ids(second) == ids(whole)
    assert ids(shop.search(**BOTH, **{"from": 1, "size": 2})) == ids(whole)[1:3]
    turned = shop.search(**BOTH, sort=[{"item_id": "desc"}])
    assert ids(turned) == sorted(ids(whole), reverse=True)
    filtered = shop.search(**BOTH, filters=[FILTERED])
    assert set(ids(filtered)) == {"a-1", "c"}
    scores = {hit["_id"]: hit["sort"][-2] for hit in whole["hits"]["hits"]}
    for answer in (turned, filtered):
        assert all(hit["sort"][-2] == scores[hit["_id"]] for hit in answer["hits"]["hits"])
    counts = {"n": {"value_count": {"field": "item_id"}}}
    faceted = shop.search(keywords=["sofa"], post_filter=FILTERED, aggs=counts)
    assert faceted["aggregations"]["set"]["n"]["value"] > faceted["hits"]["total"]["value"] == 2
    assert faceted["aggregations"]["total"]["doc_count"] == 2
    tiers = shop.search(keywords=["oak"], text="velvet sofa", aggs=counts)
    inside = tiers["aggregations"]["set"]["n"]["value"]
    assert inside == tiers["aggregations"]["total"]["doc_count"] == 2
    assert ids(tiers)[inside:] == ["f"]
    (shown, *_) = shop.search(keywords=["sofa"], fields=["keywords"])["hits"]["hits"]
    assert "keywords" in shown["_source"]
    assert shop.search(keywords=[], size=0)["hits"]["total"]["value"] == 0


def test_every_parameter_that_is_documented_is_asked_for() -> None:
    page, parts = (DOCS / "combining.md").read_text("utf-8"), {"keyword", "weight", "toJson"}
    named = re.findall(r"{{[#^]?([a-zA-Z_]+)|}}([a-zA-Z_]+){{", search.template_source())
    assert {*map("".join, named)} - parts == {*re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)}


def test_matched_keywords_are_named_and_marked(shop: World) -> None:
    answer = shop.search(keywords=["couch", "velvet sofa"], explain=True, highlight=True)
    best = answer["hits"]["hits"][0]
    assert set(best["matched_queries"]) == {"couch", "velvet sofa"}
    marked = [text for text in best["highlight"]["keywords"] if "<em>" in text]
    assert set(marked) == {"<em>couch</em>", "<em>velvet sofa</em>"}
    plain = shop.search(keywords=["couch", "velvet sofa"])["hits"]["hits"]
    assert [hit["sort"] for hit in plain] == [hit["sort"] for hit in answer["hits"]["hits"]]
    assert "matched_queries" not in plain[0]


def test_a_text_search_finds_beside_the_keywords_or_alone(shop: World) -> None:
    """Its score counts as often as `text_boost` says."""
    text = [{"constant_score": {"filter": {"term": {"item_id": "a-2"}}}}]
    keywords = [{"keyword": "sofa", "weight": 2.5}]
    alone = shop.search(text_query=text)
    weighed = shop.search(text_query=text, text_boost=2.5)
    assert (ids(alone), ids(weighed)) == (["a-2"], ["a-2"])
    assert alone["aggregations"]["total"]["doc_count"] == 0
    assert [answer["hits"]["hits"][0]["sort"][0] for answer in (alone, weighed)] == [1.0, 2.5]
    found = set(ids(shop.search(weighted=keywords)))
    assert "a-2" not in found
    both = shop.search(weighted=keywords, text_query=text, text_boost=2.5, explain=True)
    assert set(ids(both)) == {*found, "a-2"}
    named = {hit["_id"]: hit.get("matched_queries") for hit in both["hits"]["hits"]}
    assert (named.pop("a-2"), set(map(str, named.values()))) == (None, {"['sofa']"})


@pytest.mark.slow
def test_texts_stay_texts(shop: World) -> None:
    """Whatever a keyword is, the request holds it as it is, and nothing else changes."""
    empty = shop.render(keywords=[])
    inner = empty["query"]["bool"]["should"][0]["bool"]
    assert inner["should"] == empty["query"]["bool"]["should"][1:] == [{"match_none": {}}]
    for text in hostile(0, 60):
        for explain in (False, True):
            rendered = shop.render(
                keywords=[text, "sofa"],
                weighted=[{"keyword": text, "weight": 2.5}, {"keyword": "sofa", "weight": text}],
                explain=explain,
                filters=[{"term": {"item_id": text}}],
            )
            clauses = [
                one["match"]["keywords"]
                for one in rendered["query"]["bool"]["should"][0]["bool"]["should"][:4]
            ]
            named = {"_name": text} if explain else {}
            assert clauses[0] == {"query": text, **named}
            assert clauses[2] == {"query": text, "boost": "2.5", **named}
            assert clauses[3]["boost"] == (text or "1")
            assert rendered["query"]["bool"]["filter"][0] == {"term": {"item_id": text}}
            (found,) = rendered["aggs"]["set"]["filter"]["bool"]["should"]
            assert found == {"terms": {"keywords": [text, "sofa", text, "sofa", ""]}}
            same = [{**one, "query": 0, "aggs": 0} for one in (rendered, empty)]
            assert same[0] == same[1]


INDEX, SEARCH = map(json.loads, examples("opensearch.md", "json"))
*_, BY_TEMPLATE = map(json.loads, examples("combining.md", "json"))
KEYWORDS = [clause["match"]["keywords"]["query"] for clause in SEARCH["query"]["bool"]["should"]]


def test_the_documented_index_is_what_a_push_makes() -> None:
    made = mapping("item", Version(3, 8, "3.8.0"), INDEX["mappings"]["_meta"])
    assert {"settings": index_settings(1), "mappings": made} == INDEX


def test_the_documented_search(shop: World) -> None:
    found, path = shop.found(KEYWORDS, size=SEARCH["size"]).hits, f"/{shop.alias}/_search"
    path += "?search_type=dfs_query_then_fetch"
    hits = shop.call(path, SEARCH)["hits"]["hits"]
    assert SEARCH["query"] == query_body(KEYWORDS)
    shown = [(hit["sort"][1], hit["_source"]["text"]) for hit in hits]
    assert shown == [(hit.id, hit.text) for hit in found] != []
    bare = {name: value for name, value in SEARCH.items() if name != "_source"}
    bare |= {"stored_fields": "_none_", "docvalue_fields": ["item_id"]}
    only_ids = shop.call(path, bare)["hits"]["hits"]
    assert [hit["fields"]["item_id"] for hit in only_ids] == [[hit.id] for hit in found]


def test_the_documented_search_by_template(shop: World) -> None:
    """The example's id is of another shop: with this one's in its place it finds the page after the
    named hit.
    """
    params = BY_TEMPLATE["params"]
    hits = shop.found(params["keywords"]).hits
    best, *others = [
        hit for hit in hits if hit.fields["in_stock"] and float(str(hit.fields["price"])) < 900
    ]
    answer = shop.search(**params | {"search_after": [best.score, best.id]})
    assert 0 < len(others) < len(hits) - 1
    assert ids(answer) == [hit.id for hit in others]
    prices = [hit["_source"]["price"] for hit in answer["hits"]["hits"]]
    assert prices == [hit.fields["price"] for hit in others]
    buckets = answer["aggregations"]["set"]["brands"]["buckets"]
    brands = {bucket["key"]: bucket["doc_count"] for bucket in buckets}
    assert brands == Counter(hit.fields["brand"] for hit in [best, *others])
    assert shop.search(**params)
    assert BY_TEMPLATE["id"] == "shop-search"
