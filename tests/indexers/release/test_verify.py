"""Verification, document by document and score by score: every difference ends it, and nothing
switches then.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cogr.errors import CheckFailedError
from cogr.matching.mirror import Mirror
from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Row
from cogr.store import Store
from indexers.backends.opensearch import search
from tests.commands import Command, rebuilt_pair
from tests.indexers.backends.backend_worlds import SHOP, random_queries, random_world
from tests.indexers.backends.opensearch_worlds import backend_of
from tests.shops import frozen


def test_the_command_compares_all_and_ends_with_1_at_a_difference(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cogr_index("rebuild", "--side", "item", "--json").json["snapshot"]
    equal = cogr_index("verify", "--json").json["verified"][made]
    assert (equal["documents"], equal["sampled"]) == (4, 4)
    monkeypatch.setattr("indexers.backends.SAMPLE", 2)
    quick = cogr_index("verify", "--quick", "--json").json["verified"][made]
    assert (quick["documents"], quick["sampled"]) == (4, 2)
    empty = frozen(Store(shop / ".cogr"), "item", [])
    monkeypatch.setattr("indexers.backends.memory.mirror_of", lambda *_: Mirror.build(empty))
    ended = cogr_index("verify", made)
    assert (ended.status, "has 0 entities, the snapshot 4" in ended.sentence) == (1, True)
    # Nothing switches to it before it has passed again.
    assert cogr_index("publish", made, "--no-gate").status == 1
    monkeypatch.undo()
    monkeypatch.chdir(shop)
    assert cogr_index("rollback", "--to", made).sentence.endswith(f"cogr-index verify {made}.")
    assert cogr_index("publish", made, "--no-gate").status == 0


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("DELETE", "_doc/c", None), "157 documents and . deleted ones, the snapshot 158"),
        (("POST", "_update/e", {"doc": {"text": "other"}}), "158 documents and 1 deleted ones"),
    ],
)
def test_every_write_of_somebody_else_is_found(
    opensearch: OpenSearchSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[str, str, object],
    found: str,
) -> None:
    monkeypatch.setattr("indexers.backends.opensearch.backend._BATCH", 7)
    store, rows = Store(tmp_path), [*SHOP, *random_world(150)]
    snapshot = frozen(store, "item", rows)
    with backend_of(opensearch, store, 3) as backend:
        index = backend.push(snapshot).index
        assert backend.verify(snapshot, [], every=True).sampled == len(rows)

        def meddle(method: str, path: str, body: object = None) -> None:
            backend.cluster.call(method, f"/{index}/{path}", body=body, doing="meddling")

        meddle("PUT", "_settings", {"index": {"blocks.write": None}})
        meddle(*change)
        meddle("POST", "_refresh")
        with pytest.raises(CheckFailedError, match=found):
            backend.verify(snapshot, [], every=True)
        with pytest.raises(CheckFailedError, match="verification"):
            backend.publish({"item": snapshot.id})


def test_a_side_that_is_gone_is_red_and_the_printed_command_brings_it_back(
    shop: Path, cogr_index: Command
) -> None:
    rebuilt_pair(cogr_index, "--generator", "extractive")
    store = Store(shop / ".cogr")
    whole = json.loads(store.read("memory/serving.json"))
    listed = cogr_index("list", "--json").json
    assert listed["serving"]["problems"] == []
    # Both name the pair by the time of its publish.
    pair = listed["serving"]["pair"]
    assert all(pair in row["pairs"] for row in listed["snapshots"])
    for side in ("item", "query"):
        store.write_json("memory/serving.json", {**whole, side: None})
        red = cogr_index("verify")
        command = f"cogr-index publish {whole['item']} {whole['query']}"
        said = f"No {side} snapshot serves. Run {command}."
        assert (red.status, said in red.sentence) == (1, True), red.err
        assert said.split(". ")[0] in " ".join(cogr_index("list").out.split())
        assert command in cogr_index("search", "sofa").err
        assert cogr_index(*command.split()[1:]).status == 0
        assert json.loads(store.read("memory/serving.json")) == whole
        assert cogr_index("verify").status == 0


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
