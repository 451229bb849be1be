"""Same settings, same answer: `search`, the expander, the playground, shadow, `export run` and
`evaluate`, in memory, on an index of CoGR's own and in a team's index, on 40 queries (200 in the
drill). In memory there are five, since shadow compares two searches of a cluster.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cogr.records import Item, Query
from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import open_snapshot
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.search import TIER
from indexers.exports import run_of
from indexers.generators.statistical import fitting, new_items
from indexers.release import release
from indexers.search import Searcher, search
from indexers.workspace import Workspace
from ops.shadow import ExpanderClient, Search
from ops.shadow.bodies import SERVED
from tests.indexers.backends.opensearch_worlds import filled, overrides_of, prefix_of
from tests.ops.expander.expander_worlds import Running, running
from tests.shops import read_jsonl, rebuild_pair, write_jsonl, write_sample_part
from trainers.evaluation import served

pytestmark = pytest.mark.slow

SIZE = 20
RULES = """rule,query,item,keyword
pin,black shelf,ITEM-003,
synonym,settee,,sofa
add,guest bed,,sofa
forbid,,,drawer
"""


PLACES = pytest.mark.parametrize(
    "place",
    [
        "in_memory",
        pytest.param("own_index", marks=pytest.mark.server),
        pytest.param("team_index", marks=pytest.mark.server),
    ],
)


Answer = tuple[Any, str, list[str] | None, list[str] | None]
"""Keywords, source, ids of the set, the best ids; None where a way does not tell."""


def answer(keywords: Any, source: str, hits: Sequence[tuple[str, str]] | None) -> Answer:
    if hits is None:
        return keywords, source, None, None
    own = sorted(id_ for id_, tier in hits if tier == "set")
    return keywords, source, own, [id_ for id_, _ in hits]


@dataclass
class World:
    """A shop that serves, its expander with the playground, and its cluster, if it has one."""

    workspace: Workspace
    expander: Running
    cluster: Cluster | None = None
    own: bool = True
    """Whether the index is CoGR's own."""

    def __post_init__(self) -> None:
        self.searcher = Searcher(self.workspace)


def queries_of(workspace: Workspace, count: int) -> list[str]:
    """Nothing, 1,000 words, other scripts, codes and ids; known and unknown ones."""
    dataset = workspace.dataset
    known = [query.text for query in dataset.all_queries()]
    titles = [item.title for item in dataset.items]
    words = sorted({word for title in titles for word in title.split()})
    unknown = [f"{one} {other}" for one, other in zip(words, words[7:], strict=False)]
    odd = [
        *("", "?!", "沙发 灯", "диван", "سرير", "settee", "black settee", "drawer", "guest bed"),
        *("ITEM-003", "item-003", "Item-003 ", "AB-12/3", "ab 12 3", "4711", "c++", "50%"),
        " ".join(words * (1000 // len(words) + 1)),
    ]
    found = [*odd, *known, *(title.lower() for title in titles[:40]), *unknown]
    others = list(dict.fromkeys(found))[len(odd) : 200]
    return [*odd, *random.Random(0).sample(others, count - len(odd))]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of the sample shop, with ids in capitals, whose pair `statistical` wrote."""
    folder = tmp_path_factory.mktemp("shop")
    config = write_sample_part(folder)
    for name, key in (("items", "id"), ("labels", "item")):
        rows = read_jsonl(folder / f"data/{name}.jsonl")
        write_jsonl(folder / f"data/{name}.jsonl", [{**r, key: r[key].upper()} for r in rows])
    (folder / "rules.csv").write_text(RULES)
    ruled = opened(config, f"publish.rules={folder}/rules.csv")
    rebuild_pair(ruled)
    return config


def opened(shop: Path, *sets: str) -> Workspace:
    settings = ("generator.name=statistical", "publish.tolerance=1", "serving.deadline=60")
    return Workspace.open(shop, [*settings, *sets])


def served_ids(shop: Path) -> list[str]:
    return [id_ for id_ in opened(shop).backend.serving().values() if id_]


@pytest.fixture(scope="module")
def in_memory(shop: Path) -> Iterator[World]:
    workspace = opened(shop)
    with running(workspace, playground=True) as expander:
        yield World(workspace, expander)


@pytest.fixture(scope="module")
def own_index(shop: Path, opensearch: OpenSearchSettings) -> Iterator[World]:
    with prefix_of(opensearch) as cluster:
        workspace = opened(shop, *overrides_of(cluster.settings))
        release(workspace, served_ids(shop), gate=False)
        with running(workspace, playground=True) as expander:
            yield World(workspace, expander, cluster)


@pytest.fixture(scope="module")
def team_index(shop: Path, opensearch: OpenSearchSettings) -> Iterator[World]:
    """A strict index behind an alias, whose documents have other `_id`s than the items."""
    with prefix_of(opensearch) as cluster:
        catalog = f"{cluster.settings.prefix}-catalog"
        into = (f"serving.into.index={catalog}", "serving.into.id_field=sku")
        texts = 'serving.into.text_fields=["title^2", "body"]'
        workspace = opened(shop, *overrides_of(cluster.settings), *into, texts)
        fill(cluster, catalog, workspace.dataset.items)
        release(workspace, served_ids(shop), gate=False)
        with running(workspace, playground=True) as expander:
            yield World(workspace, expander, cluster, own=False)


def fill(cluster: Cluster, catalog: str, items: Sequence[Item]) -> None:
    text = {"type": "text", "analyzer": "english"}
    fields = {"title": text, "body": text, "sku": {"type": "keyword"}}
    mappings = {"dynamic": "strict", "properties": fields}
    # A merge drops the old versions of documents, by whose statistics scores are made too: between
    # two ways it would turn round what is almost a tie.
    merges = {"index.merge.policy": {"segments_per_tier": 100, "deletes_pct_allowed": 50}}
    documents = (
        (str(number), {"title": item.title, "body": item.text, "sku": item.id})
        for number, item in enumerate(items)
    )
    more = {"settings": merges, "aliases": {catalog: {}}}
    filled(cluster, f"{catalog}-v1", documents, mappings=mappings, **more)


def of_search(world: World, text: str) -> Answer:
    found = world.searcher.row_for(text)
    hits = [(hit.id, hit.tier) for hit in world.searcher.find(found, SIZE).hits]
    return answer(dict(found.keywords), found.source, hits)


def of_expander(world: World, text: str) -> Answer:
    said = world.expander.expand(text)
    keywords = dict(zip(said["keywords"], said["weights"], strict=True))
    hits = None
    if world.cluster:
        field = "item_id" if world.own else "sku"
        body = {"query": said["clause"], "size": SIZE, "fields": [field]}
        body["sort"] = [{"_score": "desc"}, {field: "asc"}]
        path, params = f"/{said['index']}/_search", {"search_type": "dfs_query_then_fetch"}
        found = world.cluster.call("POST", path, body=body, params=params, doing="searching")
        hits = [
            (hit["fields"][field][0], "set" if hit["sort"][0] >= TIER else "more")
            for hit in found["hits"]["hits"]
        ]
    return answer(keywords, said["source"], hits)


def of_playground(world: World, text: str) -> Answer:
    ids = world.expander.parts.follower.pair.ids.values()
    pair = dict(zip(("item", "query"), ids, strict=True))
    asked = {"query": text, "pairs": [pair], "size": SIZE}
    said = world.expander.client.post("/playground/api/search", json=asked).json()["pairs"][0]
    keywords = {one["text"]: one["weight"] for one in said["keywords"]}
    return answer(keywords, said["source"], [(hit["id"], hit["tier"]) for hit in said["hits"]])


def of_shadow(world: World, text: str) -> Answer:
    if not world.cluster:
        return None, "", None, None
    client = ExpanderClient(world.expander.url)
    found = Search(world.cluster, SERVED, None, SIZE, "sku", client).ask(text)
    return None, found.source, None, list(found.ids)


@PLACES
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.drill)])
def test_all_ways_give_one_answer(place: str, count: int, request: pytest.FixtureRequest) -> None:
    world: World = request.getfixturevalue(place)
    texts = queries_of(world.workspace, count)
    queries = [Query(f"n{at}", text) for at, text in enumerate(texts)]
    dataset = world.workspace.dataset
    asked = replace(dataset, queries={**dataset.queries, "test": queries}, relevant={})
    workspace = world.workspace.with_dataset(asked)
    run = run_of(Searcher(world.workspace), queries, SIZE)
    ids = world.workspace.backend.serving()
    items, rows = (open_snapshot(workspace.store, str(ids[side])) for side in ("item", "query"))
    whole = served(workspace, "test", items, rows)
    sources = Counter[str]()
    for query in queries:
        asks = (of_search, of_expander, of_playground, of_shadow)
        answers = {ask.__name__: ask(world, query.text) for ask in asks}
        keywords, source, own, best = answers["of_search"]
        sources[source] += 1
        exported = [(hit.id, hit.tier) for hit in run[query.id]]
        answers["export run"] = answer(None, "", exported)
        ranking = whole.rankings[query.id][:SIZE]
        tiers = [(id_, "set" if id_ in whole.runs[query.id] else "more") for id_ in ranking]
        answers["evaluate"] = answer(None, "", tiers)
        for way, (words, place_, set_, hits) in answers.items():
            told = (place, way, query.text[:60])
            assert words in (None, keywords), told
            assert place_ in ("", source) or (place_ == "cache" and source != "none"), told
            assert set_ in (None, own), told
            assert hits in (None, best), told
    assert min(sources[source] for source in ("index", "model", "none")) > 0
    assert len({*texts}) == len(texts)


def test_a_search_fits_nothing(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the data changed, and after the fit is gone."""
    text = "steel something unheard of"
    before = search(opened(shop), text)
    assert before.source == "model"
    for module, name in ((fitting, "fit"), (new_items, "fit_cold")):
        monkeypatch.setattr(module, name, pytest.fail)
    items = shop.parent / "data/items.jsonl"
    whole = items.read_text()
    try:
        items.write_text(f'{whole}{{"id": "NEW", "title": "Steel something", "text": ""}}\n')
        after = search(opened(shop), text)
        assert (after.keywords, after.source) == (before.keywords, "model")
        assert search(opened(shop, "serving.live=none"), text).source == "none"
    finally:
        items.write_text(whole)
    (shop.parent / "store/statistical").rename(shop.parent / "away")
    try:
        gone = search(opened(shop), text)
        assert gone.source == "none"
        assert "its fit is gone" in gone.note
    finally:
        (shop.parent / "away").rename(shop.parent / "store/statistical")
