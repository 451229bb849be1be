"""Keywords in another team's index: its own updates are never overwritten, switches are atomic, old
fields can go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from pydantic import ValidationError

from cogr.errors import CheckFailedError, ServiceError, UserError
from cogr.matching.mirror import Mirror
from cogr.settings import load_settings
from cogr.settings.serving import IntoSettings
from cogr.snapshots import Row, Snapshot, open_snapshot
from cogr.store import Store
from indexers.backends.opensearch import foreign_field, push
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.foreign_field import Coverage, field_of, open_target
from indexers.backends.opensearch.indexes import merge
from indexers.backends.opensearch.search import query_body
from indexers.release import external
from indexers.release.external import ForeignIndex, Merged
from indexers.workspace import Workspace
from tests.commands import Command, Ended
from tests.indexers.backends.backend_worlds import SHOP, random_queries, random_world
from tests.indexers.backends.fault_proxy import Fault, proxy_to
from tests.indexers.backends.opensearch_worlds import filled, flags_of, half_there, move_alias
from tests.shops import frozen


@dataclass
class Products:
    """A product index of another team, behind an alias, and its writer."""

    cluster: Cluster
    workspace: Workspace
    alias: str
    index: str

    def __post_init__(self) -> None:
        fields = {"title": {"type": "text"}, "price": {"type": "integer"}}
        mappings = {"dynamic": "strict", "properties": fields}
        aliases = {self.alias: {"is_write_index": True}}
        filled(self.cluster, self.index, (), mappings=mappings, aliases=aliases)

    def add(self, ids: list[str]) -> None:
        for id_ in ids:
            self.set(id_, 0, whole=True)
        self.cluster.call("POST", f"/{self.alias}/_refresh", doing="refreshing")

    def set(self, id_: str, price: int, *, whole: bool = False) -> None:
        """What the product team does all day: set a price, or write the whole document anew."""
        path, again, body = "_doc", {}, dict[str, Any]({"title": f"about {id_}", "price": price})
        if not whole:
            # A partial update may meet ours, as it may meet any other writer's.
            path, again, body = "_update", {"retry_on_conflict": 10}, {"doc": {"price": price}}
        path = f"/{self.alias}/{path}/{quote(id_, safe='')}"
        self.cluster.call("POST", path, body=body, params=again, doing="product team")

    def hits(self, **body: Any) -> list[dict[str, Any]]:
        path, body = f"/{self.alias}/_search", {"size": 1000, **body}
        answer = self.cluster.call("POST", path, body=body, doing="searching")
        return list(answer["hits"]["hits"])

    def documents(self) -> dict[str, dict[str, Any]]:
        self.cluster.call("POST", f"/{self.alias}/_refresh", doing="refreshing")
        return {hit["_id"]: hit["_source"] for hit in self.hits()}

    def search(self, *keywords: str) -> dict[str, float]:
        """What clients find by the field alias, best first."""
        found = self.hits(query=query_body(keywords, "cogr_keywords"))
        return {hit["_id"]: hit["_score"] for hit in found}

    def holding(self, rows: Sequence[Row], *others: str) -> Snapshot:
        """A snapshot of items that have a document each, as have some others."""
        self.add([*(row.id for row in rows), *others])
        return frozen(self.workspace.store, "item", rows)

    def publish(self, *snapshots: Snapshot, gate: bool = True) -> Merged:
        return self.place().publish([one.id for one in snapshots], print, gate=gate)

    def place(self, name: str = "") -> ForeignIndex:
        return ForeignIndex(self.workspace.into(name or self.alias))


@pytest.fixture
def products(cluster: Cluster, shop: Path) -> Products:
    own = {"opensearch": cluster.settings, "backend": "opensearch"}
    alias = f"{cluster.settings.prefix}-products"
    return Products(
        cluster, Workspace(load_settings(None).model_copy(update=own)), alias, f"{alias}-1"
    )


def ids_of(snapshot: Snapshot) -> list[str]:
    return [row.id for row in snapshot.rows()]


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

    def changed_in_between(*given: Any, **wanted: Any) -> Iterator[dict[str, Any]]:
        """The team changes a document after it was read and before its keywords are written: a
        price, or everything.
        """
        for hit in real(*given, **wanted):
            if hit["_id"] in ids[5:15] and hit["_id"] not in meddled:
                meddled.append(hit["_id"])
                wrote[hit["_id"]] = 1000 + len(meddled)
                products.set(hit["_id"], wrote[hit["_id"]], whole=len(meddled) % 2 == 0)
            yield hit

    monkeypatch.setattr(foreign_field, "scroll", changed_in_between)
    writer = threading.Thread(target=writes_all_the_while)
    writer.start()
    try:
        merged = products.publish(snapshot)
    finally:
        done.set()
        writer.join()
    coverage = merged.coverage
    assert len(meddled) == 10
    assert (coverage.unknown, coverage.absent, coverage.lacking) == (3, 5, 0)
    assert coverage.first["absent"] == ids[:5]
    assert set(coverage.first["unknown"]) == {"unknown 0", "unknown 1", "unknown 2"}
    documents, rows = products.documents(), {row.id: row for row in snapshot.rows()}
    assert {id_: documents[id_]["price"] for id_ in wrote} == wrote
    mirror = Mirror.build(snapshot)
    for id_, document in documents.items():
        assert document["title"] == f"about {id_}"
        keywords = [*mirror.keywords_of(id_)] if id_ in rows else []
        assert document.get(merged.field, []) == keywords
    # Done is done: nothing is written twice.
    assert products.publish(snapshot).written == 0


@pytest.mark.parametrize("replaced", [1, 20])
def test_a_team_that_replaces_documents_all_the_time_stops_a_publish_only_where_they_are_many(
    products: Products, monkeypatch: pytest.MonkeyPatch, replaced: int
) -> None:
    ids = [f"i{n}" for n in range(40)]
    snapshot = products.holding([Row(id_, id_, ("oak",)) for id_ in ids])
    real: Callable[..., int] = foreign_field.merge_into_documents

    def and_they_replace(*given: Any) -> int:
        written = real(*given)
        products.add(ids[:replaced])
        return written

    monkeypatch.setattr(foreign_field, "merge_into_documents", and_they_replace)
    if replaced > 1:
        with pytest.raises(CheckFailedError, match="20 documents .* still lacked the field"):
            products.publish(snapshot)
        return
    coverage = products.publish(snapshot).coverage
    assert (coverage.covered, coverage.lacking) == (39, 1)
    assert set(products.search("oak")) == {*ids[1:]}


def test_scores_are_the_mirrors_once_deleted_versions_are_merged_away(products: Products) -> None:
    rows = [*SHOP, *random_world(100)]
    snapshot = products.holding(rows, "unknown")
    products.publish(snapshot)
    merge(products.cluster, products.index)
    mirror = Mirror.build(snapshot)
    for keywords in [*random_queries(rows, 8, 20), list(SHOP[4].keywords)]:
        distinct = list(dict.fromkeys(keywords))
        expected = mirror.search(distinct, 1000)
        found = products.search(*distinct)
        scores = np.array([found[id_] for id_ in expected.ids], np.float32)
        assert (len(found), scores.tobytes()) == (expected.total, expected.scores.tobytes())


def test_a_fill_that_died_goes_on(products: Products, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = products.holding([row for row in random_world(120) if row.keywords])
    real = foreign_field.scroll

    def dies(*given: Any, **wanted: Any) -> Iterator[dict[str, Any]]:
        for number, hit in enumerate(real(*given, **wanted)):
            if number == 50:
                raise ServiceError("The cluster went away.")
            yield hit

    place = products.place()
    monkeypatch.setattr(push, "CHUNK_DOCUMENTS", 10)
    monkeypatch.setattr(foreign_field, "scroll", dies)
    with pytest.raises(ServiceError):
        place.publish([snapshot.id], lambda _: None)
    assert products.place().target.serving is None
    monkeypatch.undo()
    done = products.publish(snapshot).as_dict()
    assert 0 < done["written"] < snapshot.manifest.entities
    assert (done["unknown"], done["absent"]) == (0, 0)


def test_switching_rolling_back_and_leaving_old_fields_out(
    products: Products, cogr_index: Command
) -> None:
    store = products.workspace.store
    old = products.holding(SHOP[:3])
    new = frozen(store, "item", [replace(SHOP[0], keywords=("divan",)), *SHOP[1:3]], round_=1)
    newest = frozen(store, "item", [replace(SHOP[0], keywords=("settee",)), *SHOP[1:3]], round_=2)
    flags = ("--into", products.alias, *flags_of(products.cluster.settings), "--json")

    def published(snapshot: Snapshot) -> dict[str, Any]:
        ended = cogr_index("publish", snapshot.id, "--no-gate", *flags)
        assert ended.status == 0, ended.err
        return dict(ended.json)

    published(old)
    assert [*products.search("couch")] == ["a-1"]
    assert published(new)["before"] == old.id
    assert products.search("couch") == {}
    assert [*products.search("divan")] == ["a-1"]
    back = cogr_index("rollback", *flags)
    assert (back.json["serving"], back.json["written"]) == (old.id, 0)
    assert [*products.search("couch")] == ["a-1"]
    published(newest)

    # Documents have the field that serves and the one before, and nothing else has changed.
    kept = {field_of("cogr_keywords", one.id) for one in (old, newest)}
    document = products.documents()["a-1"]
    assert document == {"title": "about a-1", "price": 0, **{one: document[one] for one in kept}}
    assert [*products.search("settee")] == ["a-1"]
    # Back one by one, as in an index of cogr's own; what was removed is filled in again.
    assert cogr_index("rollback", *flags).json["written"] == 0
    assert [*products.search("couch")] == ["a-1"]
    assert "Nothing was published before" in cogr_index("rollback", *flags).err
    assert cogr_index("rollback", "--to", new.id, *flags).json["written"] == 2
    # A snapshot that a field is served from stays in the store.
    pruned = cogr_index("prune", "--keep", "0", "--files", "--json").json
    assert pruned["in_use"][new.id].endswith(f"serves in {products.alias}/cogr_keywords")


def items_and_queries(products: Products) -> list[str]:
    """What serves."""
    place = products.place()
    return [str(id_) for id_ in place.pair(place.look()[1]).values()]


def test_queries_and_field_have_one_history_and_one_file_of_rules(
    products: Products, cogr_index: Command, tmp_path: Path
) -> None:
    store, own = products.workspace.store, flags_of(products.cluster.settings)
    items = products.holding(SHOP[:3])
    queries = frozen(store, "query", [Row("q", "a seat", ("couch",))])
    file, into = tmp_path / "rules.csv", ("--into", products.alias)

    def ruled(*rows: str) -> None:
        file.write_text("\n".join(("rule,query,item,keyword", *rows)) + "\n")

    def run(*given: str, status: int = 0, rules: bool = True) -> Ended:
        flags = ("--set", f"publish.rules={file}") if rules else ()
        ended = cogr_index(*given, *own, *flags)
        assert ended.status == status, ended.err
        return ended

    def serves() -> tuple[set[str], set[str]]:
        """The rules' words that searches find: of the field's items, of the queries."""
        _, state = products.place().look()
        rows = [open_snapshot(store, str(state["query"])).rows()]
        found = {word for some in rows for row in some for word in row.keywords}
        return {w for w in ("one", "two", "three") if products.search(w)}, found - {"couch"}

    ruled("add,,a-1,one", "add,a seat,,one")
    run("publish", items.id, queries.id, "--no-gate", *into)
    assert serves() == ({"one"}, {"one"})
    ruled("add,,a-1,two", "add,a seat,,two")
    # A switch of the queries alone would leave the field with other rules.
    assert "was made with other rules than the field" in run("publish", status=2).err
    assert serves() == ({"one"}, {"one"})
    run("publish", *into)
    assert serves() == ({"two"}, {"two"})
    # Back together; a second step is not forward again.
    assert f"run cogr-index rollback --into {products.alias}" in run("rollback", status=2).err
    run("rollback", *into)
    assert serves() == ({"one"}, {"one"})
    for more in ((), into):
        assert "Nothing was published before" in run("rollback", *more, status=2).err
        assert serves() == ({"one"}, {"one"})
    # What was rolled back is not applied again, until it is another file.
    for _ in range(2):
        assert "were rolled back, so they are not applied" in run("publish", *into).err
        assert serves() == ({"one"}, {"one"})
    ruled("add,,a-1,three", "add,a seat,,three")
    run("publish", *into)
    assert serves() == ({"three"}, {"three"})
    # By the name of the index too, as before an alias moves to it: one place by two names, which
    # keeps neither new rules nor the way back.
    by_index = ("--into", products.index)
    run("publish", *items_and_queries(products), "--no-gate", *by_index, rules=False)
    ruled("add,,a-1,one", "add,a seat,,one")
    run("publish", *into)
    assert serves() == ({"one"}, {"one"})
    run("rollback", *into)
    assert serves() == ({"three"}, {"three"})


def test_a_snapshot_of_an_index_that_is_gone_is_pruned(
    products: Products, cogr_index: Command
) -> None:
    store, flags = products.workspace.store, flags_of(products.cluster.settings)
    tonight, last_night = (
        frozen(store, "item", [replace(row, keywords=(f"n{n}",)) for row in SHOP[:3]])
        for n in range(2)
    )
    cluster = products.cluster
    old = filled(cluster, f"{products.index}-old", [("a-1", {"title": "about a-1"})])
    products.add(ids_of(tonight))
    for snapshot, name in ((last_night, old), (tonight, products.alias)):
        ended = cogr_index("publish", snapshot.id, "--no-gate", "--into", name, *flags)
        assert ended.status == 0, ended.err
    again, into = frozen(store, "item", SHOP[:3]), ("--into", products.alias)
    assert cogr_index("publish", again.id, "--no-gate", *into, *flags).status == 0
    prune = ("prune", "--keep", "0", "--files", "--json", *flags)
    assert last_night.id in cogr_index(*prune).json["in_use"]
    cluster.call("DELETE", f"/{old}", doing="tidying up")
    pruned = cogr_index(*prune).json
    assert pruned["from_store"] == [last_night.id]
    assert {*pruned["in_use"]} == {tonight.id, again.id}


def test_half_an_index_is_not_taken_for_the_whole(
    products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, index = [f"i{n}" for n in range(20)], f"{products.alias}-half"
    there = half_there(products.cluster, index, {id_: {"title": id_} for id_ in ids})
    assert 0 < len(there) < len(ids)
    snapshot = frozen(products.workspace.store, "item", [Row(one, one, ("oak",)) for one in ids])
    place = products.place(index)
    # It takes a cluster a minute to give up the shard that is not there.
    monkeypatch.setattr(external, "refresh", lambda *_: None)
    with pytest.raises(ServiceError, match=f"{index} .* 1 of 2 shards did not answer"):
        place.publish([snapshot.id], print)
    with pytest.raises(ServiceError, match="1 of 2 shards"):
        foreign_field.holders(products.cluster, place.target, ["title"])
    assert products.place(index).target.fields == []


def test_two_that_fill_one_index_wait_for_one_another(
    products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they name the alias or the index."""
    one, other = (
        frozen(products.workspace.store, "item", [replace(SHOP[0], keywords=(word,))])
        for word in ("one", "other")
    )
    products.add(["a-1"])
    real, begun, filled = external.compare_field, threading.Event(), list[str]()

    def slow(*given: Any) -> Coverage:
        filled.append(given[2])
        begun.set()
        sleep(0.5)
        return real(*given)

    monkeypatch.setattr(external, "compare_field", slow)
    said: list[str] = []
    thread = threading.Thread(target=products.place().publish, args=([one.id], print))
    thread.start()
    begun.wait(10)
    products.place(products.index).publish([other.id], said.append, gate=False)
    thread.join()
    assert any(line.startswith("Waiting: ") and "filling" in line for line in said), said
    found = products.place().verify()
    assert (found.coverage.lacking, found.coverage.different) == (0, 0)
    assert [*products.search("one"), *products.search("other")] == ["a-1"]
    assert filled[-1] == field_of("cogr_keywords", other.id)


def test_a_publish_is_refused_where_the_alias_moves_meanwhile(
    products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = products.holding(SHOP[:3])
    real, new = external.compare_field, f"{products.index}-new"

    def moved_meanwhile(*given: Any) -> Coverage:
        monkeypatch.undo()
        filled(products.cluster, new, [("a-2", {"title": "about a-2"})])
        move_alias(products.cluster, products.alias, new, products.index)
        return real(*given)

    monkeypatch.setattr(external, "compare_field", moved_meanwhile)
    with pytest.raises(UserError, match=new):
        products.publish(snapshot)
    assert products.publish(snapshot).index == new
    assert [*products.search("oak")] == ["a-2"]


def test_a_refused_publish_changes_nothing_and_values_of_others_are_mended(
    products: Products,
) -> None:
    snapshot = products.holding(SHOP[:3], "nobody's")
    products.publish(snapshot)
    field, said = field_of("cogr_keywords", snapshot.id), list[str]()
    for id_ in ("a-1", quote("nobody's")):
        path, body = f"/{products.alias}/_update/{id_}", {"doc": {field: ["meddled"]}}
        products.cluster.call("POST", path, body=body, doing="meddling")
    assert products.place().verify().coverage.different == 2
    assert products.place().publish([snapshot.id], said.append).coverage.different == 0
    assert any("2 documents" in one and "had other keywords" in one for one in said)
    assert products.search("meddled") == {}
    assert [*products.search("couch")] == ["a-1"]
    other = frozen(products.workspace.store, "item", SHOP[1:3], round_=1)
    with pytest.raises(CheckFailedError, match="gate"):
        products.publish(other)
    settings = products.workspace.settings
    with proxy_to(products.cluster.url) as proxy:
        proxy.faults.append(Fault("PUT", "_mapping", (403, b"{}")))
        there = settings.opensearch.model_copy(update={"url": proxy.url})
        products.workspace = Workspace(settings.model_copy(update={"opensearch": there}))
        with pytest.raises(ServiceError):
            products.publish(other, gate=False)
    assert [*products.search("oak")] == ["a-2"]


def test_a_document_that_becomes_another_products_gets_its_keywords(
    products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two exchange their numbers, one is replaced, one gets a number that no item has: between the
    look at a document and the write, and after it. One of several products has no keywords.
    """
    cluster, name = products.cluster, f"{products.index}-sku"
    fields = {"sku": {"type": "keyword"}, "price": {"type": "integer"}}
    filled(cluster, name, (), mappings={"dynamic": "strict", "properties": fields})
    snapshot = frozen(
        products.workspace.store, "item", [Row(f"i{n}", f"I {n}", (f"k{n}",)) for n in range(8)]
    )

    def has(id_: str, sku: str | list[str]) -> None:
        path = f"/{name}/_doc/{id_}?refresh=true"
        cluster.call("PUT", path, body={"sku": sku, "price": 1}, doing="product team")

    for n in range(8):
        has(f"d{n}", f"i{n}")
    has("d8", ["i7", "i2"])
    real: Callable[..., Iterator[dict[str, Any]]] = foreign_field.scroll

    def exchanged(*given: Any, **wanted: Any) -> Iterator[dict[str, Any]]:
        hits = [*real(*given, **wanted)]
        if given[2] == {"match_all": {}}:
            yield from hits
            return
        monkeypatch.undo()
        has("d0", "i1")
        has("d1", "i0")
        has("d2", "i7")
        has("d3", "none")
        yield from hits

    monkeypatch.setattr(foreign_field, "scroll", exchanged)
    settings = products.workspace.settings.model_copy(deep=True)
    settings.serving.into.index, settings.serving.into.id_field = name, "sku"
    products.workspace = Workspace(settings)

    def keywords() -> dict[str, Any]:
        path, doing = f"/{name}/_search", "looking"
        hits = cluster.call("POST", path, body={"size": 100}, doing=doing)["hits"]["hits"]
        found = {hit["_id"]: {*hit["_source"]} - {"sku", "price"} for hit in hits}
        return {hit["_id"]: [hit["_source"][field] for field in found[hit["_id"]]] for hit in hits}

    ForeignIndex(products.workspace).publish([snapshot.id], lambda _: None)
    wanted = {f"d{n}": [[f"k{n}", f"i {n}"]] for n in range(8)}
    wanted |= {"d0": wanted["d1"], "d1": wanted["d0"], "d2": wanted["d7"], "d3": [], "d8": []}
    assert keywords() == wanted
    # Afterwards, by updates that leave the field where it is.
    for id_, sku in (("d4", "i5"), ("d5", "i4"), ("d6", "none")):
        path, doing = f"/{name}/_update/{id_}?refresh=true", "product team"
        cluster.call("POST", path, body={"doc": {"sku": sku}}, doing=doing)
    found = ForeignIndex(products.workspace).verify().coverage
    assert (found.different, found.first["different"]) == (3, ["d4", "d5", "d6"])
    assert ForeignIndex(products.workspace).publish([], lambda _: None).coverage.different == 0
    wanted |= {"d4": wanted["d5"], "d5": wanted["d4"], "d6": []}
    assert keywords() == wanted


TEXTS = {"title": {"type": "keyword"}, "price": {"type": "integer"}}
GUESSED = {"properties": {"f": {"type": "text"}}}
"""What OpenSearch makes of a copy of documents that have the field."""
THEIRS = {"properties": {**TEXTS, "f": {"type": "alias", "path": "title"}}}
"""A name that searches of the team's own use."""


@pytest.mark.parametrize(
    ("mappings", "settings", "says"),
    [
        # A partial update would index them anew from what is kept.
        ({"_source": {"excludes": ["price"]}}, {}, "whole documents"),
        ({"_source": {"enabled": False}}, {}, "whole documents"),
        ({"properties": TEXTS}, {"index.derived_source.enabled": True}, "whole documents"),
        ({"_meta": {"snapshot": "item-r000-0123456789ab"}}, {}, "one of cogr's own"),
        ({}, {"index": {"similarity": {"default": {"type": "boolean"}}}}, "BM25"),
        (GUESSED, {}, "type text"),
        (THEIRS, {}, "alias of title"),
    ],
)
def test_an_index_that_can_not_hold_keywords_is_refused(
    cluster: Cluster, mappings: Any, settings: Any, says: str
) -> None:
    name = f"{cluster.settings.prefix}-odd"
    filled(cluster, name, (), settings=settings, mappings=mappings)
    with pytest.raises(UserError, match=says):
        open_target(cluster, name, "f")
    with pytest.raises(UserError, match="nothing"):
        open_target(cluster, "no-such", "f")
    with pytest.raises(ValidationError, match="pattern"):
        IntoSettings(field="Fi.eld")


def test_into_needs_opensearch(shop: Path, cogr_index: Command) -> None:
    made = cogr_index("rebuild", "--side", "item", "--json").json["snapshot"]
    ended = cogr_index("publish", made, "--into", "products")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "set opensearch.url" in ended.err
    assert Store(shop / ".cogr").list("snapshots") == [made]
