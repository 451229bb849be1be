"""Live scores against the mirror's: the same bits and the same order, on every version and number
of shards.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.errors import CheckFailedError
from cogr.matching.mirror import Mirror
from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Row
from cogr.store import Store
from indexers.backends.opensearch import search
from tests.indexers.backends.backend_worlds import random_queries, random_world, weighted
from tests.indexers.backends.opensearch_worlds import backend_of
from tests.shops import frozen

CLUSTERS = pytest.mark.parametrize(
    ("server", "shards", "items"),
    [
        ("opensearch", 3, 600),
        pytest.param("opensearch", 1, 3000, marks=pytest.mark.drill),
        pytest.param("opensearch_2", 1, 3000, marks=pytest.mark.drill),
    ],
)


@pytest.mark.server
@pytest.mark.slow
@CLUSTERS
def test_a_random_world_has_the_mirrors_bits(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, shards: int, items: int
) -> None:
    rows = random_world(items)
    snapshot = frozen(Store(tmp_path), "item", rows)
    queries = random_queries(rows, items // 15, 31)
    with backend_of(request.getfixturevalue(server), snapshot.store, shards) as backend:
        backend.push(snapshot)
        verified = backend.verify(snapshot, [*queries, *map(weighted, queries)])
        assert verified.queries == 2 * len(queries)
        assert verified.scores > items * items // 56


def test_paging_gives_what_one_page_gives(
    opensearch: OpenSearchSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_world(300)
    snapshot = frozen(Store(tmp_path), "item", rows)
    keywords = random_queries(rows, 1, 31)[0] + random_queries(rows, 1, 31, seed=2)[0]
    with backend_of(opensearch, snapshot.store, 3) as backend:
        backend.push(snapshot)
        whole = backend.retrieved(keywords, snapshot=snapshot.id)
        assert whole.total > 60
        for page in (1 + whole.total // 3, whole.total, 7):
            monkeypatch.setattr(search, "_PAGE", page)
            assert backend.retrieved(keywords, snapshot=snapshot.id) == whole


def test_verification_names_the_first_rank_that_differs(
    opensearch: OpenSearchSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_world(100)
    store = Store(tmp_path)
    snapshot = frozen(store, "item", rows)
    # One keyword more somewhere changes df and avgdl, and so every score, but not the documents
    # that are compared.
    other = frozen(store, "item", [Row("a", "a", (rows[0].keywords[0], "another keyword")), *rows])
    with backend_of(opensearch, store) as backend:
        backend.push(snapshot)
        monkeypatch.setattr(
            "indexers.backends.opensearch.backend.mirror_of", lambda *_: Mirror.build(other)
        )
        keywords = [rows[0].keywords[1]]
        with pytest.raises(CheckFailedError, match="rank 1 .* mirror"):
            backend.verify(snapshot, [keywords])
        keywords = [rows[0].keywords[0]]
        with pytest.raises(CheckFailedError, match="[0-9]+ for .* mirror [0-9]+"):
            backend.verify(snapshot, [keywords])
        assert not backend.list()[0].serving
        with pytest.raises(CheckFailedError, match="verification"):
            backend.publish({"item": snapshot.id})
