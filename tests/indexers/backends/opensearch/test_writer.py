"""The writer's chunks, without a node: limits by count and by bytes, and how little is held at
once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cogr.errors import UserError
from cogr.settings.serving import OpenSearchSettings
from indexers.backends.opensearch import push
from indexers.backends.opensearch.client import Cluster
from tests.web_server import Answer, Request, serve

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(
    documents=st.lists(st.tuples(TEXT.filter(bool), TEXT), max_size=40),
    most=st.integers(1, 7),
    limit=st.integers(50, 400),
)
def test_chunks_keep_every_document_in_order_and_their_limits(
    documents: list[tuple[str, str]], most: int, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(push, "CHUNK_BYTES", limit)
        entries = [push.entry("create", id_, {"text": text}) for id_, text in documents]
        chunks = list(push.chunks(entries, most))
    sent = b"".join(entry for chunk in chunks for entry in chunk)
    lines = [json.loads(line) for line in sent.split(b"\n") if line]
    assert [line["create"]["_id"] for line in lines[::2]] == [id_ for id_, _ in documents]
    assert [line["text"] for line in lines[1::2]] == [text for _, text in documents]
    for chunk in chunks:
        assert 0 < len(chunk) <= most
        assert len(chunk) == 1 or sum(map(len, chunk)) <= limit


def test_a_slow_cluster_slows_the_reader_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing piles up: at any moment at most a few chunks have been read that were not written."""
    read = written = most_ahead = 0
    lock = threading.Lock()

    def documents() -> Iterator[tuple[str, dict[str, Any]]]:
        nonlocal read, most_ahead
        for number in range(400):
            with lock:
                read += 1
                most_ahead = max(most_ahead, read - written)
            yield str(number), {"text": "x"}

    def slow(request: Request) -> Answer:
        nonlocal written
        time.sleep(0.005)
        with lock:
            written += request.body.count(b'"create"')
        return 200, b'{"errors": false}'

    with serve(slow) as url:
        monkeypatch.setattr(push, "CHUNK_DOCUMENTS", 10)
        settings = OpenSearchSettings(url=url)
        assert push.write_documents(Cluster(settings), "x", documents()) == 400
    assert written == 400
    # Two chunks on their way, one waiting for a thread, one being filled, one handed over.
    assert most_ahead <= 10 * (2 + 3)


def test_one_refused_document_ends_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    error = {"type": "strict_dynamic_mapping_exception", "reason": "mapping set to strict"}
    items = {
        "errors": True,
        "items": [{"create": {"status": 201}}, {"create": {"status": 400, "error": error}}],
    }
    with serve(lambda _: (200, json.dumps(items).encode())) as url:
        monkeypatch.setattr(push, "CHUNK_DOCUMENTS", 2)
        cluster = Cluster(OpenSearchSettings(url=url))
        documents = ((str(number), {"text": "x"}) for number in range(100))
        with pytest.raises(UserError, match="strict_dynamic_mapping_exception"):
            push.write_documents(cluster, "x", documents)
