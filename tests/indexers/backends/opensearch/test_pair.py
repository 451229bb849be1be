"""Both sides of a round are switched at once: readers never see two rounds, and nothing is switched
before it is warm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import ServiceError
from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Row, Snapshot
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Cluster
from indexers.release.order import warm_up
from tests.indexers.backends.backend_worlds import frozen
from tests.indexers.backends.opensearch_worlds import backend_of, flags_of
from tests.indexers.conftest import Command


@pytest.fixture
def backend(opensearch: OpenSearchSettings, tmp_path: Path) -> Iterator[OpenSearchBackend]:
    with backend_of(opensearch, Store(tmp_path / ".cogr")) as made:
        yield made


def pair_of(backend: OpenSearchBackend, store: Store, round_: int) -> tuple[Snapshot, Snapshot]:
    """Both sides of a round, pushed and verified; every keyword names the round."""
    items = [Row(f"i{n}", f"item {n}", (f"word {n} of round {round_}",)) for n in range(4)]
    queries = [Row(f"q{n}", f"query {n}", (f"word {n} of round {round_}",)) for n in range(4)]
    pair = frozen(store, "item", items, round_), frozen(store, "query", queries, round_)
    for snapshot in pair:
        backend.push(snapshot)
        backend.verify(snapshot, [])
    return pair


def words(hit: dict[str, Any]) -> list[str]:
    return [keyword for keyword in hit["_source"]["keywords"] if "of round" in keyword]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Every request that is sent from now on."""
    sent: list[tuple[str, str, str]] = []
    real = Cluster.try_once

    def noted(self: Cluster, method: str, path: str, body: Any, *more: Any, **others: Any) -> Any:
        sent.append((method, path, json.dumps(body) if isinstance(body, dict) else ""))
        return real(self, method, path, body, *more, **others)

    monkeypatch.setattr(Cluster, "try_once", noted)
    return sent


def two_pairs(backend: OpenSearchBackend, store: Store) -> list[tuple[Snapshot, Snapshot]]:
    """Of rounds 1 and 2; the first serves."""
    pairs = [pair_of(backend, store, round_) for round_ in (1, 2)]
    backend.publish({one.side: one.id for one in pairs[0]})
    return pairs


def test_both_indexes_are_asked_what_readers_ask_before_the_switch(
    backend: OpenSearchBackend,
    shop: Path,
    requests: list[tuple[str, str, str]],
    cogr_index: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = [*flags_of(backend.cluster.settings), "--no-gate"]
    old, new = two_pairs(backend, Store(shop / ".cogr"))
    requests.clear()
    monkeypatch.setattr("indexers.release.order.WARM_UP_QUERIES", 3)
    ended = cogr_index("publish", *(one.id for one in new), *flags)
    assert ended.status == 0
    (switch,) = [
        number
        for number, (method, path, _) in enumerate(requests)
        if (method, path) == ("POST", "/_aliases")
    ]
    for snapshot, field in zip(new, ("keywords", "self"), strict=True):
        asked = [
            (number, body)
            for number, (_, path, body) in enumerate(requests)
            if path.endswith(f"{snapshot.id}/_search") and field in body
        ]
        assert len(asked) == 3
        assert all(number < switch for number, _ in asked)
        # Items are asked for the keywords of the round's own queries, not of those that serve yet.
        assert all("of round 2" in body for _, body in asked if field == "keywords")
        assert all("of round 1" not in body for _, body in asked)

    # A pair is rolled back as a pair, by one call too.
    requests.clear()
    assert cogr_index("rollback", *flags[:4]).status == 2
    assert cogr_index("publish", *(one.id for one in old), *flags).status == 0
    requests.clear()
    assert cogr_index("rollback", *flags[:4]).status == 0
    assert backend.serving() == {"item": new[0].id, "query": new[1].id}
    assert [path for method, path, _ in requests if (method, path) == ("POST", "/_aliases")] == [
        "/_aliases"
    ]


def test_a_warm_up_that_fails_stops_the_switch(
    backend: OpenSearchBackend,
    shop: Path,
    requests: list[tuple[str, str, str]],
    cogr_index: Command,
) -> None:
    flags = [*flags_of(backend.cluster.settings), "--no-gate"]
    store = Store(shop / ".cogr")
    old, new = two_pairs(backend, store)
    index = f"{backend.cluster.settings.prefix}-queries-{new[1].id}"
    # It is there, complete and verified, but it can't be searched.
    backend.cluster.call("POST", f"/{index}/_close", doing="closing it")
    requests.clear()
    ended = cogr_index("publish", *(one.id for one in new), *flags)
    assert (ended.status, index in ended.sentence) == (3, True)
    assert not [path for _, path, _ in requests if path == "/_aliases"]
    assert backend.serving() == {"item": old[0].id, "query": old[1].id}
    with pytest.raises(ServiceError):
        warm_up(backend, store, [new[1].id], 1)
    warm_up(backend, store, [new[1].id], 0)
