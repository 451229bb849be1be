"""Keywords in another team's index: its own updates are never overwritten, switches are atomic, old
fields can go.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cogr.errors import CheckFailedError, ServiceError, SnapshotError, UserError
from cogr.matching.mirror import Mirror
from cogr.settings import OpenSearchSettings, load_settings
from cogr.snapshots import Row, Snapshot
from cogr.store import Store
from indexers.backends.opensearch import foreign_field, moving, writer
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.foreign_field import field_of, open_target, snapshot_of
from indexers.backends.opensearch.indexes import merge, read_index
from indexers.backends.opensearch.moving import move_without
from indexers.release import external
from indexers.release.external import ForeignIndex
from indexers.workspace import Workspace
from tests.documents import examples
from tests.indexers.backends.backend_worlds import SHOP, frozen, random_queries, random_world
from tests.indexers.backends.opensearch_worlds import flags_of
from tests.indexers.conftest import Command


@dataclass
class Products:
    """A product index of another team, behind an alias, and its writer."""

    cluster: Cluster
    workspace: Workspace
    alias: str
    index: str

    def __post_init__(self) -> None:
        mapping = {
            "dynamic": "strict",
            "properties": {"title": {"type": "text"}, "price": {"type": "integer"}},
        }
        body = {"mappings": mapping, "aliases": {self.alias: {"is_write_index": True}}}
        self.cluster.call("PUT", f"/{self.index}", body=body, doing="making the product index")

    def add(self, ids: list[str]) -> None:
        for id_ in ids:
            self.set(id_, 0, whole=True)
        self.cluster.call("POST", f"/{self.alias}/_refresh", doing="refreshing")

    def set(self, id_: str, price: int, *, whole: bool = False) -> None:
        """What the product team does all day: set a price, or write the whole document anew."""
        if whole:
            call = ("PUT", "_doc", {"title": f"about {id_}", "price": price})
        else:
            call = ("POST", "_update", {"doc": {"price": price}})
        quoted = id_.replace("/", "%2F").replace("?", "%3F").replace("#", "%23")
        path = f"/{self.alias}/{call[1]}/{quoted}"
        # A partial update may meet ours, as it may meet any other writer's.
        again = {} if whole else {"retry_on_conflict": 10}
        self.cluster.call(call[0], path, body=call[2], params=again, doing="product team")

    def hits(self) -> list[dict[str, Any]]:
        self.cluster.call("POST", f"/{self.alias}/_refresh", doing="refreshing")
        answer = self.cluster.call(
            "POST", f"/{self.alias}/_search", body={"size": 1000}, doing="reading"
        )
        return list(answer["hits"]["hits"])

    def documents(self) -> dict[str, dict[str, Any]]:
        return {hit["_id"]: hit["_source"] for hit in self.hits()}

    def search(self, template: str, **params: Any) -> list[tuple[str, float]]:
        body = {"id": template, "params": params}
        answer = self.cluster.call(
            "POST", f"/{self.alias}/_search/template", body=body, doing="searching"
        )
        return [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]

    def place(self) -> ForeignIndex:
        return ForeignIndex(self.workspace, self.alias, "cogr_keywords")


@pytest.fixture
def products(opensearch: OpenSearchSettings, shop: Path) -> Iterator[Products]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    settings = opensearch.model_copy(update={"prefix": name})
    workspace = Workspace(
        load_settings(None).model_copy(update={"opensearch": settings, "backend": "opensearch"})
    )
    cluster = Cluster(settings)
    yield Products(cluster, workspace, f"{name}-products", f"{name}-products-1")
    cluster.call("DELETE", f"/{name}-*", doing="cleaning up")
    cluster.close()


def ids_of(snapshot: Snapshot) -> list[str]:
    return [row.id for row in snapshot.rows()]


def test_names_of_fields() -> None:
    assert field_of("cogr_keywords", "item-r003-0123456789ab") == "cogr_keywords_r003_0123456789ab"
    assert (
        snapshot_of("cogr_keywords", "cogr_keywords_r003_0123456789ab") == "item-r003-0123456789ab"
    )
    assert snapshot_of("cogr_keywords", "cogr_keywords_old") is None


@pytest.mark.server
def test_words_are_searched_in_the_teams_own_fields(products: Products) -> None:
    snapshot = frozen(products.workspace.store, "item", SHOP)
    products.add(ids_of(snapshot))
    merged = products.place().publish(snapshot.id, lambda _: None)
    found = products.search(merged.template, keywords=["oak"])
    assert [id_ for id_, _ in found] == ["a-2"]
    with pytest.raises(ServiceError, match="set publish.text_fields and publish again"):
        products.search(merged.template, keywords=["oak"], text="about")
    settings = products.workspace.settings
    fields = settings.publish.model_copy(update={"text_fields": ("title^2",)})
    products.workspace = Workspace(settings.model_copy(update={"publish": fields}))
    merged = products.place().publish(snapshot.id, lambda _: None)
    both = products.search(merged.template, keywords=["oak"], text="about", text_boost=0.001)
    assert both[0][0] == "a-2"
    assert {id_ for id_, _ in both} == set(ids_of(snapshot))


@pytest.mark.server
def test_nothing_that_the_team_writes_is_lost(
    products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = frozen(products.workspace.store, "item", random_world(150))
    ids = ids_of(snapshot)
    products.add([*ids[5:], *(f"unknown {n}" for n in range(3))])
    wrote: dict[str, int] = {}
    done = threading.Event()

    def writes_all_the_while() -> None:
        price = 0
        while not done.is_set():
            price += 1
            wrote[ids[20 + price % 10]] = price
            products.set(ids[20 + price % 10], price)

    real: Callable[..., Iterator[dict[str, Any]]] = foreign_field.scroll
    meddled: list[str] = []

    def changed_in_between(*given: Any) -> Iterator[dict[str, Any]]:
        """The team changes a document after it was read and before its keywords are written: a
        price, or everything.
        """
        for hit in real(*given):
            if hit["_id"] in ids[5:15] and hit["_id"] not in meddled:
                meddled.append(hit["_id"])
                wrote[hit["_id"]] = 1000 + len(meddled)
                products.set(hit["_id"], wrote[hit["_id"]], whole=len(meddled) % 2 == 0)
            yield hit

    monkeypatch.setattr(foreign_field, "scroll", changed_in_between)
    writer = threading.Thread(target=writes_all_the_while)
    writer.start()
    try:
        merged = products.place().publish(snapshot.id, lambda _: None)
    finally:
        done.set()
        writer.join()
    filled = merged.filled
    assert len(meddled) == 10
    assert filled.conflicts >= 10
    assert filled.sweeps >= 3
    assert (filled.unknown, filled.absent) == (3, 5)
    assert filled.first_absent == ids[:5]
    assert set(filled.first_unknown) == {"unknown 0", "unknown 1", "unknown 2"}
    documents, rows = products.documents(), {row.id: row for row in snapshot.rows()}
    assert {id_: documents[id_]["price"] for id_ in wrote} == wrote
    mirror = Mirror.build(snapshot)
    for id_, document in documents.items():
        assert document["title"] == f"about {id_}"
        assert document.get(merged.field, []) == (
            list(mirror.keywords_of(id_)) if id_ in rows else []
        )
    # Done is done: nothing is written twice.
    assert products.place().publish(snapshot.id, lambda _: None).filled.written == 0


@pytest.mark.server
def test_scores_are_the_mirrors_once_deleted_versions_are_merged_away(products: Products) -> None:
    rows = [*SHOP, *random_world(100)]
    snapshot = frozen(products.workspace.store, "item", rows)
    products.add([*ids_of(snapshot), "unknown"])
    template = products.place().publish(snapshot.id, lambda _: None).template
    merge(products.cluster, products.index, 1)
    mirror = Mirror.build(snapshot)
    for keywords in [*random_queries(rows, 8, 20), list(SHOP[4].keywords)]:
        distinct = list(dict.fromkeys(keywords))
        expected = mirror.search(distinct, 1000)
        found = dict(products.search(template, keywords=distinct, size=1000))
        scores = np.array([found[id_] for id_ in expected.ids], np.float32)
        assert (len(found), scores.tobytes()) == (expected.total, expected.scores.tobytes())
    assert (
        products.search(template, keywords=["sofa"], filters={"ids": {"values": ["a-1"]}})[0][0]
        == "a-1"
    )
    assert (
        len(products.search(template, keywords=["sofa"], filters={"ids": {"values": ["a-1"]}})) == 1
    )
    assert products.search(template, keywords=[]) == []


@pytest.mark.server
def test_the_template_takes_what_the_one_of_our_own_index_takes(products: Products) -> None:
    snapshot = frozen(products.workspace.store, "item", SHOP[:3])
    products.add(ids_of(snapshot))
    products.set("a-1", 300)
    products.set("a-2", 200)
    template = products.place().publish(snapshot.id, lambda _: None).template
    products.documents()
    both = {"keywords": ["sofa", "oak"]}
    assert [id_ for id_, _ in products.search(template, **both, sort=[{"price": "asc"}])] == [
        "a-2",
        "a-1",
    ]
    assert (
        products.search(template, **both, **{"from": 1})
        == products.search(template, **both)[1:]
        != []
    )
    (written,) = map(json.loads, examples("publishing.md", "json"))
    own = {**written, "id": template, "params": {**written["params"], "keywords": ["sofa", "oak"]}}
    answer = products.cluster.call(
        "POST", f"/{products.alias}/_search/template", body=own, doing="searching"
    )
    assert (answer["hits"]["total"]["value"], answer["aggregations"]["prices"]["max"]) == (2, 300)
    assert answer["hits"]["hits"][0]["_source"].keys() >= {"title", "price"}
    for wrong, right in (("filter", "filters"), ("aggregations", "aggs")):
        with pytest.raises(
            ServiceError, match=f"the parameter {wrong} is unknown: it is called {right}"
        ):
            products.search(template, **both, **{wrong: {"term": {"price": 300}}})


@pytest.mark.server
def test_a_fill_that_died_goes_on(products: Products, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = frozen(
        products.workspace.store, "item", [row for row in random_world(120) if row.keywords]
    )
    products.add(ids_of(snapshot))
    real = foreign_field.scroll

    def dies(*given: Any) -> Iterator[dict[str, Any]]:
        for number, hit in enumerate(real(*given)):
            if number == 50:
                raise ServiceError("The cluster went away.")
            yield hit

    place = ForeignIndex(products.workspace, products.alias, "cogr_keywords")
    monkeypatch.setattr(writer, "CHUNK_DOCUMENTS", 10)
    monkeypatch.setattr(foreign_field, "scroll", dies)
    with pytest.raises(ServiceError):
        place.publish(snapshot.id, lambda _: None)
    assert products.place().serving() == {"item": None}
    monkeypatch.undo()
    done = products.place().publish(snapshot.id, lambda _: None).filled
    assert 0 < done.written < snapshot.manifest.entities
    assert (done.unknown, done.absent) == (0, 0)


@pytest.mark.server
def test_the_gate_holds_for_an_index_of_another_team_and_writes_nothing_there(
    products: Products, cogr_index: Command
) -> None:
    good = frozen(products.workspace.store, "item", SHOP[:3])
    empty = frozen(products.workspace.store, "item", [replace(r, keywords=()) for r in SHOP[:3]])
    products.add(ids_of(good))
    settings = products.workspace.settings.opensearch
    flags = ["--set", f"opensearch.url={settings.url}", "--into", products.alias]
    flags += ["--set", f"opensearch.prefix={settings.prefix}"]
    assert cogr_index("publish", good.id, *flags).status == 0
    refused = cogr_index("publish", empty.id, *flags)
    assert refused.status == 1
    assert "empty keyword sets (item side) would go from" in refused.err
    assert products.place().serving() == {"item": good.id}
    fields = {name for document in products.documents().values() for name in document}
    assert field_of("cogr_keywords", empty.id) not in fields


@pytest.mark.server
def test_switching_rolling_back_and_leaving_old_fields_out(
    products: Products, cogr_index: Command
) -> None:
    store = products.workspace.store
    old = frozen(store, "item", SHOP[:3])
    new = frozen(store, "item", [replace(SHOP[0], keywords=("divan",)), *SHOP[1:3]], round_=1)
    newest = frozen(store, "item", [replace(SHOP[0], keywords=("settee",)), *SHOP[1:3]], round_=2)
    products.add(ids_of(old))
    settings = products.workspace.settings.opensearch
    flags = flags_of(settings)
    flags = ("--into", products.alias, *flags, "--json")

    def published(snapshot: Snapshot) -> dict[str, Any]:
        ended = cogr_index("publish", snapshot.id, "--no-gate", *flags)
        assert ended.status == 0, ended.err
        return dict(ended.json)

    first = published(old)
    template = first["template"]
    assert template == f"{settings.prefix}-{products.alias}-cogr_keywords"
    assert [id_ for id_, _ in products.search(template, keywords=["couch"])] == ["a-1"]
    assert published(new)["before"] == old.id
    assert products.search(template, keywords=["couch"]) == []
    assert [id_ for id_, _ in products.search(template, keywords=["divan"])] == ["a-1"]
    back = cogr_index("rollback", *flags)
    assert (back.json["serving"], back.json["written"]) == (old.id, 0)
    assert [id_ for id_, _ in products.search(template, keywords=["couch"])] == ["a-1"]
    published(newest)

    planned = cogr_index("prune", "--keep", "2", "--dry-run", *flags).json
    assert planned["fields"] == [field_of("cogr_keywords", new.id)]
    assert "give it a name with --to" in cogr_index("prune", "--keep", "2", *flags).err
    products.set("a-1", 7)
    moved = cogr_index("prune", "--keep", "2", "--to", f"{products.index}-clean", *flags)
    assert moved.status == 0, moved.err
    target = open_target(products.cluster, products.alias, "cogr_keywords")
    assert (target.index, target.fields) == (
        f"{products.index}-clean",
        sorted(field_of("cogr_keywords", one.id) for one in (old, newest)),
    )
    assert products.documents()["a-1"]["price"] == 7
    assert field_of("cogr_keywords", new.id) not in products.documents()["a-1"]
    # The team goes on writing through its alias, searches and rollbacks go on, and the old index
    # takes nothing any more.
    products.set("a-1", 8)
    assert [id_ for id_, _ in products.search(template, keywords=["settee"])] == ["a-1"]
    assert cogr_index("rollback", *flags).json["serving"] == old.id
    with pytest.raises(ServiceError, match="is blocked"):
        products.cluster.call(
            "PUT", f"/{products.index}/_doc/late", body={"price": 1}, doing="writing to the old one"
        )
    # A snapshot that a field is served from stays in the store.
    assert (
        cogr_index("prune", "--keep", "0", "--files", "--json")
        .json["in_use"][old.id]
        .startswith("what serves by into-")
    )


@pytest.mark.server
def test_an_index_takes_writes_while_it_is_copied_and_none_of_them_is_lost(
    products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = products.workspace.store
    old, new = (
        frozen(store, "item", [replace(row, keywords=(word,)) for row in SHOP[:3]]) for word in "xy"
    )
    products.add([*ids_of(old), "gone", "stays"])
    for snapshot in (old, new):
        products.place().publish(snapshot.id, lambda _: None)
    real, blocked = moving.copy_documents, []

    def written_meanwhile(cluster: Cluster, index: str, *given: Any) -> None:
        """After the copy and before the block, the team changes, adds and removes; a field comes
        that the copy lacks.
        """
        real(cluster, index, *given)
        blocked.append(open_target(cluster, products.alias, "cogr_keywords").state.write_blocked)
        if len(blocked) == 1:
            products.set("a-1", 77)
            products.set("late", 5, whole=True)
            cluster.call("DELETE", f"/{index}/_doc/gone", doing="product team")
            mapping = {"properties": {"colour": {"type": "keyword"}}}
            cluster.call("PUT", f"/{index}/_mapping", body=mapping, doing="product team")
            body = {"doc": {"colour": "red"}}
            cluster.call("POST", f"/{index}/_update/stays", body=body, doing="product team")

    monkeypatch.setattr(moving, "copy_documents", written_meanwhile)
    dropped = products.place().prune(1, f"{products.index}-clean", lambda _: None, dry_run=False)
    assert dropped == [field_of("cogr_keywords", old.id)]
    # The copy runs beside the team; only what it changed meanwhile is copied behind the block.
    assert blocked == [False, True]
    documents = products.documents()
    assert set(documents) == {*ids_of(old), "stays", "late"}
    assert (
        documents["a-1"]["price"],
        documents["late"]["price"],
        documents["stays"]["colour"],
    ) == (77, 5, "red")
    assert all(document.get(dropped[0]) is None for document in documents.values())
    target = open_target(products.cluster, products.alias, "cogr_keywords")
    assert (target.index, target.state.properties["colour"]) == (
        f"{products.index}-clean",
        {"type": "keyword"},
    )
    assert store.list("blocks") == []


PRUNE = """
import os, signal, sys
from indexers import cli
from indexers.backends.opensearch.client import Cluster
real, number = Cluster.call, getattr(signal, sys.argv[1])

def call(self, method, path, **given):
    if method == "POST" and path == "/_aliases":
        os.kill(os.getpid(), number)
    return real(self, method, path, **given)

Cluster.call = call
sys.argv = ["cogr-index", *sys.argv[2:]]
cli.main()
"""


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.server
@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_a_prune_that_is_killed_leaves_no_index_blocked(
    products: Products, cogr_index: Command, number: str
) -> None:
    store = products.workspace.store
    old, new = (
        frozen(store, "item", [replace(row, keywords=(word,)) for row in SHOP[:3]]) for word in "xy"
    )
    products.add(ids_of(old))
    for snapshot in (old, new):
        products.place().publish(snapshot.id, lambda _: None)
    settings = products.workspace.settings.opensearch
    flags = flags_of(settings)
    prune = [
        "prune",
        "--into",
        products.alias,
        "--keep",
        "1",
        "--to",
        f"{products.index}-clean",
        *flags,
    ]
    died = subprocess.run(
        [sys.executable, "-c", PRUNE, number, *prune], check=False, capture_output=True
    )
    assert died.returncode == (-signal.SIGKILL if number == "SIGKILL" else 128 + signal.SIGTERM), (
        died.stderr
    )

    def blocked() -> bool:
        return open_target(products.cluster, products.alias, "cogr_keywords").state.write_blocked

    assert blocked() == (number == "SIGKILL")
    # Any command that looks at the cluster takes the block back, and says so; another catalogue's
    # too.
    looked = cogr_index("list", *flags[:2], "--set", "opensearch.prefix=another")
    assert (f"{products.index} takes writes again" in looked.err) == (number == "SIGKILL")
    assert not blocked()
    assert store.list("blocks") == []
    products.set("a-1", 7)
    ended = cogr_index(*prune, "--json")
    assert (ended.status, ended.json["index"]) == (0, f"{products.index}-clean")
    assert products.documents()["a-1"]["price"] == 7
    # Nobody lifts the block of an index that its own team has blocked.
    cluster = products.cluster
    cluster.call("PUT", f"/{products.index}-clean/_block/write", doing="the team blocks it")
    assert cogr_index("list", *flags).err.count("takes writes again") == 0
    assert blocked()


@pytest.mark.server
def test_a_publish_finds_the_index_that_a_prune_has_put_in_place_meanwhile(
    products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = products.workspace.store
    first, second, third = (
        frozen(store, "item", [replace(SHOP[0], keywords=(word,))], 0) for word in "xyz"
    )
    products.add(ids_of(first))
    for snapshot in (first, second):
        products.place().publish(snapshot.id, lambda _: None)
    real = external.check_values

    def pruned_meanwhile(*given: Any) -> int:
        monkeypatch.undo()
        products.place().prune(1, f"{products.index}-clean", lambda _: None, dry_run=False)
        return real(*given)

    monkeypatch.setattr(external, "check_values", pruned_meanwhile)
    merged = products.place().publish(third.id, lambda _: None)
    assert merged.index == f"{products.index}-clean"
    assert [id_ for id_, _ in products.search(merged.template, keywords=["z"])] == ["a-1"]
    # Back one by one, as in an index of cogr's own; what was pruned has to be filled in again.
    assert products.place().roll_back([], lambda _: None).snapshot == second.id
    back = products.place().roll_back([], lambda _: None)
    assert (back.snapshot, back.before, back.filled.written) == (first.id, second.id, 1)
    with pytest.raises(SnapshotError, match="Nothing was published before"):
        products.place().roll_back([], lambda _: None)


@pytest.mark.server
def test_values_that_something_else_wrote_are_not_served(products: Products) -> None:
    snapshot = frozen(products.workspace.store, "item", SHOP[:3])
    products.add(ids_of(snapshot))
    template = products.place().publish(snapshot.id, lambda _: None).template
    field = field_of("cogr_keywords", snapshot.id)
    body = {"doc": {field: ["meddled"]}}
    products.cluster.call("POST", f"/{products.alias}/_update/a-1", body=body, doing="meddling")
    with pytest.raises(CheckFailedError, match="something else writes to it"):
        products.place().publish(snapshot.id, lambda _: None)
    assert products.search(template, keywords=["oak"])[0][0] == "a-2"


def facts(products: Products) -> dict[str, Any]:
    """What the team's searches see: hits by every field, sums, stored values, and the documents
    without keyword fields.
    """
    found: dict[str, Any] = {
        hit["_id"]: {
            name: value for name, value in hit.get("_source", {}).items() if "keywords" not in name
        }
        for hit in products.hits()
    }
    for field, value in (("title", "about"), ("hidden", "secret"), ("all", "about"), ("seen", 2)):
        body = {
            "query": {"match": {field: value}},
            "size": 100,
            "sort": ["price"],
            "stored_fields": ["sku"],
            "aggs": {"sum": {"sum": {"field": "price"}}, "seen": {"sum": {"field": "seen"}}},
        }
        answer = products.cluster.call(
            "POST", f"/{products.alias}/_search", body=body, doing="searching"
        )
        hits = [(hit["_id"], hit.get("fields")) for hit in answer["hits"]["hits"]]
        found[field] = (hits, answer["aggregations"])
    return found


RICH = {
    "title": {"type": "text", "copy_to": "all"},
    "all": {"type": "text"},
    "sku": {"type": "keyword", "store": True},
    "hidden": {"type": "text"},
    "price": {"type": "integer"},
    "seen": {"type": "integer"},
}


def refill(products: Products, ids: list[str], **index: Any) -> None:
    """The product index anew: with these mappings or settings, and a document for each id."""
    cluster = products.cluster
    cluster.call("DELETE", f"/{products.index}", doing="emptying")
    mappings = {"properties": RICH, **index.get("mappings", {})}
    body = {
        "settings": index.get("settings", {}),
        "mappings": mappings,
        "aliases": {products.alias: {}, **index.get("aliases", {})},
    }
    cluster.call("PUT", f"/{products.index}", body=body, doing="making the product index")
    for number, id_ in enumerate(ids):
        row = {"title": f"about {id_}", "sku": f"sku {id_}", "hidden": "secret", "price": number}
        cluster.call("PUT", f"/{products.index}/_doc/{id_}", body=row, doing="adding")


@pytest.mark.server
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("_source.excludes", {"mappings": {"_source": {"excludes": ["hidden", "price"]}}}),
        ("_source.includes", {"mappings": {"_source": {"includes": ["title", "seen"]}}}),
        ("_source.enabled", {"mappings": {"_source": {"enabled": False}}}),
        ("index.derived_source.enabled", {"settings": {"index.derived_source.enabled": True}}),
    ],
)
def test_an_index_that_does_not_keep_whole_documents_is_refused(
    products: Products, name: str, made: dict[str, Any]
) -> None:
    """A partial update would index them anew from what is kept."""
    snapshot = frozen(products.workspace.store, "item", SHOP[:3])
    if "settings" in made:
        made["mappings"] = {"properties": {"title": {"type": "keyword"}, "price": RICH["price"]}}
    refill(products, ids_of(snapshot), **made)
    before = facts(products)
    with pytest.raises(UserError, match=f"has {re.escape(name)}.*use an index that keeps whole"):
        products.place()
    assert facts(products) == before
    state = read_index(products.cluster, products.index)
    assert state is not None
    assert not [name for name in state.properties if "keywords" in name]


def counting_pipelines(products: Products) -> dict[str, str]:
    """Pipelines that count how often they see a document."""
    for field in ("default", "final"):
        script = "ctx.seen = (ctx.seen == null ? 0 : ctx.seen) + 1"
        body = {"processors": [{"script": {"source": script}}]}
        products.cluster.call(
            "PUT", f"/_ingest/pipeline/{products.alias}-{field}", body=body, doing="preparing"
        )
    return {f"index.{name}_pipeline": f"{products.alias}-{name}" for name in ("default", "final")}


@pytest.mark.server
def test_no_field_of_the_team_changes_by_a_publish_or_a_prune(products: Products) -> None:
    store = products.workspace.store
    first, second = (
        frozen(store, "item", [replace(row, keywords=(word,)) for row in SHOP[:3]]) for word in "xy"
    )
    pipelines = counting_pipelines(products)
    only = {"filter": {"range": {"price": {"lt": 1}}}}
    others = {
        f"{products.alias}-writes": {"is_write_index": True},
        f"{products.alias}-cheap": {**only, "index_routing": "1", "search_routing": "1,2"},
    }
    refill(products, ids_of(first), settings=pipelines, aliases=others)
    before = facts(products)
    assert before["seen"][1]["seen"]["value"] == 6, "each document is seen once by each pipeline"
    for snapshot in (first, second):
        products.place().publish(snapshot.id, lambda _: None)
        assert facts(products) == before
    products.place().prune(1, f"{products.index}-clean", lambda _: None, dry_run=False)
    assert facts(products) == before
    old, new = (
        read_index(products.cluster, name) for name in (products.index, f"{products.index}-clean")
    )
    assert old is not None
    assert new is not None
    assert not old.aliases
    assert dict(new.alias_options) == {products.alias: {}, **others}
    assert {
        f"index.{name}": new.settings.get(name) for name in ("default_pipeline", "final_pipeline")
    } == pipelines
    # The team's next write goes through its pipelines again, by its own alias.
    products.cluster.call(
        "PUT", f"/{products.alias}-writes/_doc/a-1", body={"title": "about a-1"}, doing="adding"
    )
    assert products.documents()["a-1"]["seen"] == 2


@pytest.mark.server
def test_what_can_not_be_a_target_is_refused(
    products: Products, opensearch: OpenSearchSettings
) -> None:
    cluster = products.cluster
    with pytest.raises(UserError, match="names nothing"):
        open_target(cluster, "no-such-index", "f")
    with pytest.raises(UserError, match="not a field name"):
        open_target(cluster, products.alias, "Fi.eld")
    ours = frozen(products.workspace.store, "item", [Row("a", "A", ())])
    index = products.workspace.backend.push(ours).index
    with pytest.raises(UserError, match="one of cogr's own"):
        open_target(cluster, index, "f")
    body = {"settings": {"index": {"similarity": {"default": {"type": "boolean"}}}}}
    cluster.call("PUT", f"/{products.index}-odd", body=body, doing="making another")
    with pytest.raises(UserError, match="a default similarity of its own"):
        open_target(cluster, f"{products.index}-odd", "f")
    with pytest.raises(UserError, match="names .*, .*; give --into one index"):
        open_target(cluster, f"{products.index}*", "f")
    plain = ForeignIndex(products.workspace, products.index, "cogr_keywords")
    with pytest.raises(UserError, match="let clients use an alias"):
        move_without(
            products.cluster, plain.target, [], "elsewhere", products.workspace.store, "into-x"
        )


def test_into_needs_opensearch(shop: Path, cogr_index: Command) -> None:
    made = cogr_index("rebuild", "--side", "item", "--json").json["snapshot"]
    ended = cogr_index("publish", made, "--into", "products")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "set opensearch.url" in ended.err
    assert Store(shop / ".cogr").list("snapshots") == [made]
