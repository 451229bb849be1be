"""One suite for every backend: memory, OpenSearch 3.x and 2.x.

What it asks is what the protocol promises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from cogr.errors import CheckFailedError, SnapshotError
from cogr.matching.bm25 import BM25, DEFAULT
from cogr.matching.mirror import Mirror
from cogr.snapshots import Row, Snapshot
from cogr.store import Store
from indexers.backends import Backend, Keywords, Listed, SearchResult, Words
from indexers.backends.memory import MemoryBackend
from tests.indexers.backends.backend_worlds import (
    SHOP,
    SHOPPERS,
    publish,
    random_queries,
    random_world,
    weighted,
)
from tests.indexers.backends.opensearch_worlds import backend_of
from tests.shops import frozen


@dataclass(frozen=True)
class Place:
    """A backend, the store behind it, and how it scores."""

    backend: Backend
    store: Store
    bm25: BM25

    def served(self, snapshot: Snapshot) -> None:
        publish(self.backend, snapshot, probes=[["sofa"]])

    def _asked(self, how: dict[str, Any]) -> dict[str, Any]:
        return {"snapshot": str(self.backend.serving()["item"]), **how}

    def search(self, keywords: Keywords, **how: Any) -> SearchResult:
        return self.backend.search(keywords, **self._asked(how))

    def retrieved(self, keywords: Keywords, **how: Any) -> SearchResult:
        return self.backend.retrieved(keywords, **self._asked(how))

    def lookup(self, text: str) -> Row | None:
        return self.backend.lookup(text, snapshot=str(self.backend.serving()["query"]))

    def mirror(self, snapshot: Snapshot) -> Mirror:
        return Mirror.build(snapshot).scored_by(self.bm25)


@pytest.fixture(
    params=[
        "memory",
        pytest.param("opensearch", marks=pytest.mark.server),
        pytest.param("opensearch_2", marks=[pytest.mark.server, pytest.mark.drill]),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    store = Store(tmp_path)
    if request.param == "memory":
        yield Place(MemoryBackend(store), store, DEFAULT)
        return
    with backend_of(request.getfixturevalue(request.param), store) as backend:
        yield Place(backend, store, backend.cluster.version.bm25)


def test_a_snapshot_pair_is_pushed_verified_published_and_searched(place: Place) -> None:
    items, queries = frozen(place.store, "item", SHOP), frozen(place.store, "query", SHOPPERS)
    pushed = place.backend.push(items)
    assert (pushed.documents, pushed.written) == (len(SHOP), len(SHOP))
    assert place.backend.push(items).written == 0
    assert place.backend.serving() == {"query": None, "item": None}
    verified = place.backend.verify(items, [["sofa", "couch"], ["nothing such"], []])
    found = (verified.documents, verified.sampled, verified.queries, verified.scores)
    assert found == (len(SHOP), len(SHOP), 3, 4)
    place.backend.push(queries)
    place.backend.verify(queries, [])
    pair = {"item": items.id, "query": queries.id}
    assert place.backend.publish(pair) == {"item": None, "query": None}
    assert place.backend.serving() == pair

    result = place.search(["sofa", "velvet sofa", "sofa"], size=2, explain=True)
    assert result.total == 4
    assert [hit.id for hit in result.hits] == ["a-1", "e"]
    assert [hit.text for hit in result.hits] == ["Velvet Sofa", ""]
    assert list(result.hits[0].matched) == ["sofa", "velvet sofa"]
    assert list(result.hits[1].matched) == ["sofa"]


def test_scores_orders_and_parts_are_the_mirrors(place: Place) -> None:
    rows = [*SHOP, *random_world(200)]
    snapshot = frozen(place.store, "item", rows)
    place.served(snapshot)
    mirror = place.mirror(snapshot)
    lists = [*random_queries(rows, 12, 31), list(SHOP[4].keywords), ["ışık"], ["quo"]]
    for keywords in [*lists, *map(weighted, lists)]:
        distinct = keywords if isinstance(keywords, dict) else list(dict.fromkeys(keywords))
        expected = mirror.search(distinct, len(mirror))
        found = place.retrieved(keywords)
        assert (found.total, [hit.id for hit in found.hits]) == (expected.total, expected.ids)
        scores = np.array([hit.score for hit in found.hits], np.float32)
        assert scores.tobytes() == expected.scores.tobytes()
        for hit in place.search(keywords, size=5, explain=True).hits:
            assert hit.matched == mirror.explain(distinct, hit.id)


def test_words_are_searched_beside_keywords(place: Place) -> None:
    items = frozen(place.store, "item", SHOP)
    place.served(items)
    keywords = {"couch": 2.0, "oak": 1.0}
    by_words = place.search([], words=Words("velvet sofa?"), explain=True)
    assert [(hit.id, hit.tier) for hit in by_words.hits] == [("a-1", "set"), ("f", "more")]
    assert (by_words.total, by_words.more) == (1, 1)
    assert all(hit.matched == {} and hit.words > 0 for hit in by_words.hits)
    parts = {hit.id: hit.score for hit in by_words.hits}
    by_keywords = {hit.id: hit.score for hit in place.search(keywords).hits}
    assert set(by_keywords) == {"a-1", "a-2", "e", "f"}
    found = place.search(keywords, words=Words("velvet sofa?", 3.0), explain=True)
    assert found.total == 4
    for hit in found.hits:
        expected = by_keywords[hit.id] + 3 * parts.get(hit.id, 0.0)
        # Above the tier's 1,024 a float32 has steps of 0.0001.
        assert hit.score == pytest.approx(expected, abs=5e-4)
        assert hit.words == pytest.approx(3 * parts.get(hit.id, 0.0), abs=5e-4)
        assert sum(hit.matched.values()) == pytest.approx(by_keywords[hit.id], rel=1e-5)
        assert hit.tier == "set"
    assert [hit.score for hit in found.hits] == sorted((h.score for h in found.hits), reverse=True)
    assert place.search([], words=Words("velvet")).total == 1
    assert place.search(keywords, words=Words("??")).total == 4
    assert place.search([], words=Words("word " * 3000)).total == 0
    assert len(place.search(keywords, size=1, words=Words("sofa")).hits) == 1


NAMED: dict[str, tuple[set[str], set[str]]] = {
    "Brüggmann": ({"t-2", "t-3"}, set()),
    "the brüggmann lamp": ({"t-2", "t-3"}, set()),
    "C-101588": ({"c-101588"}, set()),
    "villeroy boch": ({"t-4"}, set()),
    "boch lamp": (set(), {"t-2", "t-3"}),
}
"""Literal matches of a text, and what else it finds."""


def test_what_a_text_names_is_in_the_set_whatever_the_keywords_find(place: Place) -> None:
    """Every word of it in one field, or its id; keywords add and order, they remove nothing."""
    rows = [
        Row("c-101588", "Oak shelf", ("shelf",)),
        Row("t-1", "Brüggmann sofa", ("sofa",)),
        Row("t-2", "Lamp by Brüggmann", ("light",)),
        Row("t-3", "Brüggmann lamp, large", ()),
        Row("t-4", "Mirror", ("glass",), '{"brand": "Villeroy & Boch"}'),
    ]
    place.served(frozen(place.store, "item", rows))
    for text, (literal, more) in NAMED.items():
        if place.bm25 != DEFAULT:  # The server of 2.x has no analyser with stop words.
            text = text.removeprefix("the ")
        words, keywords = Words(text, 0.2), {"sofa": 5.0}
        found = place.search(keywords, words=words)
        sets = [{hit.id for hit in found.hits if hit.tier == tier} for tier in ("set", "more")]
        assert sets == [{"t-1"} | literal, more], text
        assert (found.total, found.more) == (len(sets[0]), len(sets[1]))
        assert {hit.id for hit in found.hits[: found.total]} == sets[0]
        whole = place.retrieved(keywords, words=words)
        assert [(hit.id, hit.score) for hit in whole.hits] == [
            (hit.id, hit.score) for hit in found.hits[: found.total]
        ]
        # A merchant's rule buries an item even where the text names it.
        buried = place.search({**keywords, "light": 0.0}, words=words)
        set_ = {hit.id for hit in buried.hits if hit.tier == "set"}
        assert set_ == {"t-1"} | literal - {"t-2"}, text


def test_the_query_side_is_searched_and_looked_up(place: Place) -> None:
    queries = frozen(place.store, "query", SHOPPERS)
    place.served(queries)
    assert place.lookup(" mid-CENTURY  Sofa ") == SHOPPERS[0]
    assert place.lookup("Lamp") == SHOPPERS[1]
    assert place.lookup("an unseen query") is None
    assert place.lookup("??") is None
    assert [hit.id for hit in place.search(["lamp"], snapshot=queries.id).hits] == ["q2"]
    found = place.retrieved(["mid-century sofa"], snapshot=queries.id)
    assert {hit.id for hit in found.hits} == {"q1", "q3"}


def test_queries_that_differ_in_what_a_keyword_lacks_are_looked_up_each(place: Place) -> None:
    texts = [".jar", "jar", "jar, red", "jar red", "2. Liga", "3. Liga", "???", f"{'x ' * 200}y"]
    rows = [Row(f"q{at}", text, (f"k{at}",)) for at, text in enumerate(texts)]
    place.served(frozen(place.store, "query", rows))
    for row in rows:
        assert place.lookup(f" {row.text.upper()} ") == row
    # No other query than the known one, but for its punctuation.
    assert place.lookup("(Jar!)") == rows[1]
    for unknown in ("1. Liga", "Liga", "?", f"{'x ' * 200}z", ""):
        assert place.lookup(unknown) is None


def test_nothing_asked_and_an_empty_snapshot_find_nothing(place: Place) -> None:
    place.served(frozen(place.store, "item", SHOP[:3]))
    for result in (place.search([]), place.retrieved([]), place.search(["in no item"])):
        assert (result.total, list(result.hits)) == (0, [])
    place.served(frozen(place.store, "item", []))
    assert place.search(["sofa"]).total == 0


def test_an_older_one_serves_again_and_one_that_does_not_serve_goes(place: Place) -> None:
    old, new = frozen(place.store, "item", SHOP), frozen(place.store, "item", SHOP[:3], round_=1)
    place.served(old)
    place.served(new)
    assert place.backend.serving()["item"] == new.id
    assert place.search(["sofa"], snapshot=old.id).total == 4
    assert place.backend.publish({"item": old.id}) == {"item": new.id}
    assert place.backend.serving()["item"] == old.id
    assert place.backend.publish({"item": new.id}) == {"item": old.id}
    assert place.backend.list() == [
        Listed(old.id, len(SHOP), serving=False, complete=True),
        Listed(new.id, 3, serving=True, complete=True),
    ]
    with pytest.raises(SnapshotError, match="serves"):
        place.backend.delete(new.id)
    place.backend.delete(old.id)
    assert [one.snapshot for one in place.backend.list()] == [new.id]
    with pytest.raises(SnapshotError, match="cogr-index publish"):
        place.backend.delete(old.id)
    assert place.backend.push(old).written == len(SHOP)


def test_what_is_not_there_is_named(place: Place) -> None:
    item = frozen(place.store, "item", SHOP)
    for call in (
        lambda: place.search(["sofa"], snapshot=item.id),
        lambda: place.backend.publish({"item": item.id}),
        lambda: place.backend.verify(item, []),
    ):
        with pytest.raises(SnapshotError, match="cogr-index publish"):
            call()
    with pytest.raises(SnapshotError, match="side query"):
        place.backend.publish({"query": item.id})


def test_verification_refuses_a_snapshot_whose_content_was_not_pushed(place: Place) -> None:
    """The same id with other rows: what a damaged store or index looks like."""
    snapshot = frozen(place.store, "item", SHOP)
    place.backend.push(snapshot)
    place.backend.verify(snapshot, [])
    swapped = [Row("a-1", "Velvet Sofa", ("swapped",)), *SHOP[1:]]
    other = frozen(Store(place.store.local("other")), "item", swapped)
    damaged = Snapshot(snapshot.manifest, _Redirected(other, snapshot))
    with pytest.raises(CheckFailedError, match="a-1"):
        place.backend.verify(damaged, [])
    with pytest.raises(CheckFailedError, match="cogr-index verify"):
        place.backend.publish({"item": snapshot.id})
    place.backend.verify(snapshot, [])
    place.backend.publish({"item": snapshot.id})


class _Redirected(Store):
    """A store that gives another snapshot's rows for this one's."""

    def __init__(self, other: Snapshot, snapshot: Snapshot) -> None:
        super().__init__(snapshot.store.url)
        self._other, self._path = other, snapshot.path

    def open(self, path: str) -> IO[bytes]:
        swapped = path == self._path
        return self._other.store.open(self._other.path) if swapped else super().open(path)
