"""Live scores against the mirror's: the same bits and the same order, on every version and number
of shards.
"""

from __future__ import annotations

import gzip
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cogr.errors import CheckFailedError
from cogr.keywords import normalise
from cogr.matching.mirror import Mirror
from cogr.settings import OpenSearchSettings
from cogr.snapshots import Row, Snapshot
from cogr.store import Store
from indexers.backends import boosts_of
from indexers.backends.opensearch import OpenSearchBackend, search, verify
from tests.indexers.backends.backend_worlds import (
    frozen,
    random_queries,
    random_world,
    weighted,
)

pytestmark = pytest.mark.server
CLUSTERS = pytest.mark.parametrize(
    ("server", "shards"), [("opensearch", 1), ("opensearch", 3), ("opensearch_2", 1)]
)


@contextmanager
def pushed(
    server: OpenSearchSettings, shards: int, snapshot: Snapshot
) -> Iterator[OpenSearchBackend]:
    """A backend that holds the snapshot, removed at the end."""
    settings = server.model_copy(
        update={"prefix": f"test-{uuid.uuid4().hex[:8]}", "shards": shards}
    )
    backend = OpenSearchBackend(settings, snapshot.store)
    try:
        backend.push(snapshot)
        yield backend
    finally:
        backend.cluster.call("DELETE", f"/{settings.prefix}-*", doing="cleaning up")
        backend.close()


def assert_parity(backend: OpenSearchBackend, snapshot: Snapshot, queries: list[list[str]]) -> int:
    """Every retrieved set, order and score equal, by plain and by weighted keywords; the number of
    scores.
    """
    mirror = Mirror.build(snapshot, backend.cluster.version.bm25)
    compared = 0
    for keywords in [*queries, *map(weighted, queries)]:
        expected = mirror.search(boosts_of(keywords), len(mirror))
        found = backend.retrieved(keywords, snapshot=snapshot.id)
        scores = np.array([hit.score for hit in found.hits], np.float32)
        assert [hit.id for hit in found.hits] == expected.ids
        assert scores.tobytes() == expected.scores.tobytes()
        compared += len(scores)
    return compared


@pytest.mark.slow
@CLUSTERS
def test_a_random_world_has_the_mirrors_bits(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, shards: int
) -> None:
    rows = random_world(3000)
    snapshot = frozen(Store(tmp_path), "item", rows)
    queries = random_queries(rows, 200, 31)
    with pushed(request.getfixturevalue(server), shards, snapshot) as backend:
        assert assert_parity(backend, snapshot, queries) > 160_000
        assert backend.verify(snapshot, queries[:10]).queries == 10


@pytest.mark.slow
@CLUSTERS
def test_nfcorpus_has_the_mirrors_bits(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, shards: int
) -> None:
    folder = Path(os.environ.get("COGR_DATA_DIR", "")) / "nfcorpus"
    if "COGR_DATA_DIR" not in os.environ or not folder.is_dir():
        pytest.skip("nfcorpus is read from $COGR_DATA_DIR, which is not set or does not have it")
    snapshot = frozen(Store(tmp_path), "item", _frequent_words(folder))
    lines = (folder / "test.titles.queries").read_text("utf-8").splitlines()
    queries = [
        [normalise(word) for word in line.split("\t")[1].split() if normalise(word)]
        for line in lines
    ]
    with pushed(request.getfixturevalue(server), shards, snapshot) as backend:
        assert assert_parity(backend, snapshot, queries) > 60_000


def _frequent_words(folder: Path) -> list[Row]:
    """Each document's fifteen most frequent words, which is enough of a keyword set for a
    comparison of scores.
    """
    texts: dict[str, str] = {}
    for name in ("dev.docs.gz", "test.docs.gz"):
        with gzip.open(folder / name, "rt", encoding="utf-8") as file:
            texts.update(line.rstrip("\n").split("\t", 1) for line in file)  # type: ignore[misc]
    rows = []
    for id_, text in texts.items():
        counted = Counter(word for word in map(normalise, text.split()) if word)
        rows.append(
            Row(
                id_, " ".join(text.split()[:10]), tuple(word for word, _ in counted.most_common(15))
            )
        )
    return rows


def test_paging_gives_what_one_page_gives(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_world(300)
    snapshot = frozen(Store(tmp_path), "item", rows)
    keywords = random_queries(rows, 1, 31)[0] + random_queries(rows, 1, 31, seed=2)[0]
    with pushed(request.getfixturevalue("opensearch"), 3, snapshot) as backend:
        whole = backend.retrieved(keywords, snapshot=snapshot.id)
        assert whole.total > 60
        for page in (1 + whole.total // 3, whole.total, 7):
            monkeypatch.setattr(search, "PAGE", page)
            assert backend.retrieved(keywords, snapshot=snapshot.id) == whole


def test_verification_names_the_first_rank_that_differs(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    rows = random_world(100)
    store = Store(tmp_path)
    snapshot = frozen(store, "item", rows)
    # One keyword more somewhere changes df and avgdl, and so every score, but not the documents
    # that are compared.
    other = frozen(store, "item", [Row("a", "a", (rows[0].keywords[0], "another keyword")), *rows])
    with pushed(request.getfixturevalue("opensearch"), 1, snapshot) as backend:
        keywords = [rows[0].keywords[1]]
        with pytest.raises(CheckFailedError, match=r"At rank 1 .* the mirror"):
            verify.verify(
                backend.cluster, backend.prefix, snapshot, Mirror.build(other), [keywords]
            )
        keywords = [rows[0].keywords[0]]
        with pytest.raises(CheckFailedError, match=r"retrieves [0-9]+ for .* the mirror [0-9]+"):
            verify.verify(
                backend.cluster, backend.prefix, snapshot, Mirror.build(other), [keywords]
            )
        assert not backend.list()[0].serving
        with pytest.raises(CheckFailedError, match="has not passed verification"):
            backend.publish({"item": snapshot.id})
