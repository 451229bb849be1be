"""Clusters that refuse, vanish or die: exit 3, one sentence, the alias untouched, and the same call
goes on afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from cogr.errors import DataError, ServiceError, SnapshotError, UserError
from cogr.settings.serving import IntoSettings, OpenSearchSettings
from cogr.snapshots import Row, Snapshot
from cogr.store import Store
from indexers.backends import ServedSide, Words
from indexers.backends.opensearch import OpenSearchBackend, client, push
from indexers.backends.opensearch.indexes import index_name, index_settings
from indexers.backends.opensearch.live import LiveCluster
from tests.indexers.backends.backend_worlds import SHOP, SHOPPERS, publish, random_world
from tests.indexers.backends.fault_proxy import Fault, Proxy, error_body, proxy_to
from tests.indexers.backends.opensearch_worlds import backend_of
from tests.shops import frozen
from tests.web_server import Answer, Request

OVERLOADED = error_body(429, "rejected_execution_exception", "queue is full")
UNAVAILABLE = error_body(503, "cluster_manager_not_discovered_exception", "no manager")
UNAUTHORISED = (401, b"Unauthorized")
FORBIDDEN = error_body(
    403, "security_exception", "no permissions for [indices:admin/create] and User [reader]"
)
FLOODED = error_body(
    429,
    "cluster_block_exception",
    "index [x] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark]",
)


@dataclass(frozen=True)
class Shop:
    """A served snapshot, and a newer one to push through the proxy.

    `direct` goes around the proxy.
    """

    backend: OpenSearchBackend
    direct: OpenSearchBackend
    proxy: Proxy
    old: Snapshot
    new: Snapshot

    def pushed(self, *snapshots: Snapshot) -> None:
        """Pushed and verified."""
        for snapshot in snapshots:
            self.backend.push(snapshot)
            self.backend.verify(snapshot, [])

    def meddle(self, method: str, path: str, body: object = None) -> None:
        """What somebody else does to the cluster."""
        self.direct.cluster.call(method, path, body=body, doing="meddling")

    def assert_untouched(self) -> None:
        assert self.direct.serving()["item"] == self.old.id
        assert self.direct.search(["sofa"], snapshot=self.old.id).total == 4

    def assert_goes_on(self) -> None:
        """The same calls, now without faults."""
        self.proxy.faults.clear()
        self.backend.push(self.new)
        verified = self.backend.verify(self.new, [["keyword 1", "keyword 2"]])
        assert verified.documents == self.new.manifest.entities
        assert self.backend.publish({"item": self.new.id}) == {"item": self.old.id}

    def index(self) -> str:
        return index_name(self.backend.prefix, self.new.id)


@pytest.fixture(scope="module")
def served(
    opensearch: OpenSearchSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[OpenSearchBackend, Snapshot, Snapshot]]:
    """A backend, the snapshot that serves, and one that was never pushed."""
    store = Store(tmp_path_factory.mktemp("store"))
    old, new = frozen(store, "item", SHOP), frozen(store, "item", random_world(60), round_=1)
    with backend_of(opensearch, store) as backend:
        publish(backend, old)
        yield backend, old, new


@pytest.fixture
def shop(
    served: tuple[OpenSearchBackend, Snapshot, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(push, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(push, "CHUNK_DOCUMENTS", 10)
    direct, old, new = served
    settings = direct.cluster.settings
    with proxy_to(settings.url or "") as proxy:
        backend = OpenSearchBackend(settings.model_copy(update={"url": proxy.url}), new.store)
        yield Shop(backend, direct, proxy, old, new)
        backend.close()
    monkeypatch.undo()
    for name in direct.cluster.call("GET", f"/{direct.prefix}-*", doing="looking"):
        if name != index_name(direct.prefix, old.id):
            direct.cluster.call("DELETE", f"/{name}", doing="cleaning up")
    direct.publish({"item": old.id})


REFUSALS = [
    ("GET", "-items-item-r001", UNAUTHORISED, "does not accept the credentials", 1),
    ("POST", "_bulk", FORBIDDEN, "does not allow this to the user: no permissions", None),
    ("PUT", "_block/write", None, "can't be reached", None),
    ("PUT", "_block/write", UNAVAILABLE, "not available", client.RETRIES + 1),
    ("PUT", "_block/write", FLOODED, "is blocked", 1),
]


@pytest.mark.parametrize(("method", "part", "answer", "says", "tries"), REFUSALS)
def test_a_push_that_is_refused_at_any_step_goes_on(
    shop: Shop, method: str, part: str, answer: Answer | None, says: str, tries: int | None
) -> None:
    shop.proxy.faults.append(Fault(method, part, answer, skip=2 if part == "_bulk" else 0))
    with pytest.raises(ServiceError, match=says) as error:
        shop.backend.push(shop.new)
    assert error.value.exit_status == 3
    assert shop.proxy.url in str(error.value)
    assert "\n" not in str(error.value)
    assert tries in (None, shop.proxy.count(method, part))
    shop.assert_untouched()
    shop.assert_goes_on()


STEPS = [
    ("PUT", "-items-item-r001"),
    ("POST", "_bulk"),
    ("POST", "_forcemerge"),
    ("PUT", "_block/write"),
    ("PUT", "_mapping"),
]


def test_what_passes_by_itself_is_waited_out(shop: Shop) -> None:
    answers = (OVERLOADED, (502, b"<html>Bad gateway"), None)
    for (method, part), answer in zip(STEPS, itertools.cycle(answers), strict=False):
        shop.proxy.faults.append(Fault(method, part, answer, times=3))
    pushed = shop.backend.push(shop.new)
    assert pushed.written == shop.new.manifest.entities
    shop.assert_goes_on()


def test_single_documents_that_are_rejected_are_sent_again(shop: Shop) -> None:
    """The node gets two thirds of every first bulk request; the rest is answered as an overloaded
    node does.
    """
    rounds = itertools.count()

    def reject_some(request: Request, forward: Callable[[Request], Answer]) -> Answer | None:
        if not request.is_for("POST", "_bulk") or next(rounds) % 2:
            return None
        lines = request.body.splitlines(keepends=True)
        entries = [b"".join(lines[at : at + 2]) for at in range(0, len(lines), 2)]
        kept = b"".join(entry for number, entry in enumerate(entries) if number % 3)
        status, answer = forward(Request(request.method, request.path, request.headers, kept))
        found = iter(json.loads(answer)["items"])
        error = {"type": "rejected_execution_exception", "reason": "queue is full"}
        busy = {"create": {"status": 429, "error": error}}
        items = [next(found) if number % 3 else busy for number in range(len(entries))]
        return status, json.dumps({"errors": True, "items": items}).encode()

    shop.proxy.rewrite = reject_some
    assert shop.backend.push(shop.new).written == shop.new.manifest.entities
    shop.assert_goes_on()


def test_a_merge_that_a_gateway_cuts_off_is_watched_to_its_end(shop: Shop) -> None:
    shop.proxy.faults.append(Fault("POST", "_forcemerge", (504, b""), times=2, forwarded=True))
    shop.backend.push(shop.new)
    assert shop.proxy.count("POST", "_forcemerge") == 3
    shop.assert_goes_on()


def test_replicas_are_waited_for_where_there_are_nodes_for_them(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node can't hold a replica; the answers are those of a cluster of two that copies for a
    while.
    """
    healths = itertools.chain(["yellow", "yellow"], itertools.repeat("green"))

    def two_nodes(request: Request, _: Callable[[Request], Answer]) -> Answer | None:
        if not request.is_for("GET", "_cluster/health"):
            return None
        return 200, json.dumps({"status": next(healths), "number_of_data_nodes": 2}).encode()

    settings = shop.backend.cluster.settings.model_copy(update={"replicas": 1})
    backend = OpenSearchBackend(settings, shop.new.store)
    backend.push(shop.new)
    state = push.read_index(shop.direct.cluster, shop.index())
    assert (state.replicas, state.complete) == (1, True)
    shop.backend.delete(shop.new.id)

    shop.proxy.rewrite = two_nodes
    shop.proxy.seen.clear()
    backend.push(shop.new)
    assert shop.proxy.count("GET", "_cluster/health") == 3
    shop.backend.delete(shop.new.id)

    healths = itertools.repeat("yellow")  # type: ignore[assignment]
    monkeypatch.setattr(push, "REPLICA_SECONDS", 0.0)
    with pytest.raises(ServiceError, match="replicas"):
        backend.push(shop.new)
    shop.proxy.rewrite = None
    shop.assert_goes_on()


def test_a_half_written_index_with_other_content_is_written_anew(shop: Shop) -> None:
    shop.proxy.faults.append(Fault("POST", "_bulk", UNAUTHORISED, skip=2))
    with pytest.raises(ServiceError):
        shop.backend.push(shop.new)
    shop.proxy.faults.clear()
    state = push.read_index(shop.direct.cluster, shop.index())
    meta = {"_meta": {**state.meta, "content_hash": "another"}}
    shop.meddle("PUT", f"/{shop.index()}/_mapping", meta)
    assert shop.backend.push(shop.new).written == shop.new.manifest.entities
    shop.assert_goes_on()


def test_a_foreign_index_of_that_name_is_left_alone(shop: Shop) -> None:
    shop.meddle("PUT", f"/{shop.index()}", {})
    with pytest.raises(ServiceError, match="written by cogr"):
        shop.backend.push(shop.new)
    assert push.read_index(shop.direct.cluster, shop.index()) is not None


def test_a_mapping_that_scores_or_keeps_otherwise_is_refused_with_the_reason(shop: Shop) -> None:
    shop.backend.push(shop.new)
    state = push.read_index(shop.direct.cluster, shop.index())
    settings = index_settings(1, state.meta["text_analyzer"])
    for spoilt, source in (
        ({"norms": False}, {}),
        ({"use_similarity": False}, {}),
        ({"index_options": "docs"}, {}),
        ({"similarity": "BM25"}, {}),
        ({}, {"_source": {"enabled": False}}),
        ({}, {"_source": {"excludes": ["text"]}}),
    ):
        fields = state.properties | {"keywords": {**state.properties["keywords"], **spoilt}}
        mappings = {"_meta": dict(state.meta), "properties": fields, **source}
        shop.direct.delete(shop.new.id)
        shop.meddle("PUT", f"/{shop.index()}", {"settings": settings, "mappings": mappings})
        for call in (shop.backend.push, partial(shop.backend.verify, queries=[])):
            with pytest.raises(ServiceError, match="_source" if source else "field keywords"):
                call(shop.new)


# Publishing


def test_a_switch_that_is_refused_leaves_the_alias(shop: Shop) -> None:
    query = frozen(shop.old.store, "query", SHOPPERS, round_=1)
    shop.pushed(shop.new, query)
    pair = {"item": shop.new.id, "query": query.id}
    for answer in (FORBIDDEN, None):
        shop.proxy.faults[:] = [Fault("POST", "_aliases", answer)]
        with pytest.raises(ServiceError):
            shop.backend.publish(pair)
        shop.assert_untouched()
    shop.proxy.faults.clear()
    shop.proxy.seen.clear()
    shop.backend.publish(pair)
    assert shop.direct.serving() == pair
    assert shop.proxy.count("POST", "_aliases") == 1, "both sides by one call"


def test_a_template_that_can_not_be_stored_is_a_warning(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.proxy.faults[:] = [Fault("PUT", "_scripts", FORBIDDEN)]
    assert shop.backend.publish({"item": shop.old.id}) == {"item": shop.old.id}
    assert "Continuing without the template" in caplog.text


def test_an_alias_whose_name_is_taken_is_left_alone(shop: Shop) -> None:
    query, name = frozen(shop.old.store, "query", SHOPPERS), f"{shop.backend.prefix}-queries"
    shop.pushed(query)
    foreign = f"{shop.backend.prefix}-products"
    for index, body in ((name, {}), (foreign, {"aliases": {name: {}}})):
        shop.meddle("PUT", f"/{index}", body)
        for call in (lambda: shop.backend.publish({"query": query.id}), shop.backend.serving):
            with pytest.raises(ServiceError, match=f"{name} .*index|{foreign}"):
                call()
        shop.meddle("DELETE", f"/{index}")
    assert shop.backend.publish({"query": query.id}) == {"query": None}


def test_an_alias_of_two_indexes_is_named_and_repaired_by_publishing(shop: Shop) -> None:
    shop.pushed(shop.new)
    action = {"add": {"index": shop.index(), "alias": f"{shop.backend.prefix}-items"}}
    shop.meddle("POST", "/_aliases", {"actions": [action]})
    assert shop.backend.serving()["item"] is None
    assert "at once" in shop.backend.pair().flaws[0]
    shop.backend.publish({"item": shop.old.id})
    shop.assert_untouched()


def test_a_half_written_index_is_not_published(shop: Shop) -> None:
    shop.proxy.faults.append(Fault("PUT", "_mapping", UNAUTHORISED))
    with pytest.raises(ServiceError):
        shop.backend.push(shop.new)
    for call in (
        lambda: shop.direct.publish({"item": shop.new.id}),
        lambda: shop.direct.verify(shop.new, []),
    ):
        with pytest.raises(SnapshotError, match="cogr-index publish"):
            call()
    assert [one.complete for one in shop.direct.list()] == [True, False]
    shop.assert_goes_on()


# Searching


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"timed_out": True}, "ran out of time"),
        ({"_shards": {"total": 3, "successful": 2, "failed": 1}}, "1 of 3 shards did not"),
        ({"hits": {"total": {"value": 10, "relation": "gte"}, "hits": []}}, "only a bound"),
    ],
)
def test_an_answer_that_is_not_whole_is_refused(
    shop: Shop, changes: dict[str, object], says: str
) -> None:
    def rewrite(request: Request, forward: Callable[[Request], Answer]) -> Answer | None:
        if not request.is_for("POST", "_search"):
            return None
        status, body = forward(request)
        return status, json.dumps({**json.loads(body), **changes}).encode()

    shop.proxy.rewrite = rewrite
    for call in (shop.backend.search, shop.backend.retrieved):
        with pytest.raises(ServiceError, match=says):
            call(["sofa"], snapshot=shop.old.id)


LOST = {"total": 2, "successful": 1, "failed": 0}


@pytest.mark.parametrize("changes", [{"timed_out": True}, {"_shards": LOST}, {"_shards": {}}])
def test_a_part_of_the_queries_does_not_say_that_one_is_unknown(
    shop: Shop, changes: dict[str, object]
) -> None:
    queries = frozen(shop.old.store, "query", SHOPPERS)
    shop.pushed(queries)
    side = ServedSide(queries.id, index_name(shop.backend.prefix, queries.id), 0, "")

    async def found() -> Row | None:
        live = LiveCluster(shop.backend.cluster.settings, IntoSettings(), 5.0)
        try:
            return await live.lookup(side, SHOPPERS[0].text)
        finally:
            await live.close()

    def rewrite(request: Request, forward: Callable[[Request], Answer]) -> Answer:
        status, body = forward(request)
        return status, json.dumps({**json.loads(body), **changes}).encode()

    row = asyncio.run(found())
    assert row is not None
    assert row.keywords == SHOPPERS[0].keywords
    shop.proxy.rewrite = rewrite
    with pytest.raises(ValueError, match="not a whole answer"):
        asyncio.run(found())


@pytest.mark.parametrize("part", [0, 1])
def test_hits_or_count_that_are_refused_are_asked_again(shop: Shop, part: int) -> None:
    search = partial(shop.backend.search, ["sofa"], snapshot=shop.old.id, words=Words("oak"))
    expected, changes = search(), dict[str, object]()
    assert 0 < expected.total <= len(expected.hits)

    def rewrite(request: Request, forward: Callable[[Request], Answer]) -> Answer | None:
        if not request.is_for("POST", "_msearch"):
            return None
        status, body = forward(request)
        said = json.loads(body)
        said["responses"][part] |= changes
        return status, json.dumps(said).encode()

    shop.proxy.rewrite = rewrite
    changes |= {"error": {"type": "rejected_execution_exception"}, "status": 429}
    assert search() == expected
    changes.clear()
    changes |= {"timed_out": True}
    with pytest.raises(ServiceError, match="ran out of time"):
        search()


def test_a_search_has_as_many_keywords_and_hits_as_a_cluster_takes(shop: Shop) -> None:
    search = partial(shop.backend.search, snapshot=shop.old.id)
    assert search(["sofa", *map(str, range(1023))]).total == 4
    with pytest.raises(UserError, match="1024 .*1025"):
        search(["sofa", *map(str, range(1024))])
    assert search(["sofa"], size=10_000).total == 4
    with pytest.raises(UserError, match="10000 .*10001"):
        search(["sofa"], size=10_001)


def test_an_id_that_is_too_long_is_named(shop: Shop) -> None:
    fits = frozen(shop.old.store, "item", [Row("ü" * 256, "fits", ("sofa",))], round_=2)
    assert shop.backend.push(fits).written == 1
    long = frozen(shop.old.store, "item", [Row("ü" * 257, "too long", ("sofa",))], round_=3)
    with pytest.raises(DataError, match="512 bytes"):
        shop.backend.push(long)
