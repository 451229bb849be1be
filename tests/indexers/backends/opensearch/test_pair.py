"""Both sides of a round are switched at once, so that readers never see two rounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Row, Snapshot
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Cluster
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


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every request that is sent from now on."""
    sent: list[str] = []
    real = Cluster.try_once

    def noted(self: Cluster, method: str, path: str, *more: Any) -> Any:
        sent.append(f"{method} {path}")
        return real(self, method, path, *more)

    monkeypatch.setattr(Cluster, "try_once", noted)
    return sent


def test_a_pair_is_published_and_rolled_back_by_one_call(
    backend: OpenSearchBackend, shop: Path, requests: list[str], cogr_index: Command
) -> None:
    flags = flags_of(backend.cluster.settings)
    store = Store(shop / ".cogr")
    old, new = (pair_of(backend, store, round_) for round_ in (1, 2))
    for command, pair in (("publish", old), ("publish", new), ("rollback", old)):
        requests.clear()
        ids = [one.id for one in pair]
        ended = cogr_index(command, *(ids if command == "publish" else ()), *flags)
        assert ended.status == 0, ended.err
        assert backend.serving() == {"item": ids[0], "query": ids[1]}
        assert requests.count("POST /_aliases") == 1
