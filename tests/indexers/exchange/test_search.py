"""A search by the blend of the query snapshot: keywords, keywords beside the titles, or titles."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cogr.keywords import self_keyword
from cogr.snapshots import Blend, Provenance, Row, Snapshot, write_snapshot
from indexers.backends.memory import MemoryBackend
from indexers.exchange.search import search
from indexers.workspace import Workspace
from tests.indexers.conftest import Command

ITEMS = [
    Row("a", "Velvet sofa", ("sofas", "couch")),
    Row("b", "Oak table", ("tables",)),
    Row("c", "Velvet chair", ("seat",)),
]
BLEND = Blend(keywords_from=0.6, text_below=0.2, text_boost=0.5)
SURE = [
    Row("q1", "velvet things", ("couch", "tables"), "", (2.0, 0.5, 1.0), 0.7),
    Row("q2", "velvet stuff", ("couch",), "", (), 0.4),
    Row("q3", "velvet anything", ("tables",), "", (), 0.1),
]


def serve(
    shop: Path, queries: Sequence[Row] = SURE, blend: Blend | None = BLEND, *settings: str
) -> Workspace:
    workspace = Workspace.open(shop / "cogr.toml", list(settings))
    backend = MemoryBackend(workspace.store)
    made: list[Snapshot] = [
        write_snapshot(workspace.store, "item", ITEMS, Provenance()),
        write_snapshot(workspace.store, "query", queries, Provenance(blend=blend)),
    ]
    for snapshot in made:
        backend.push(snapshot)
        backend.verify(snapshot, [])
    backend.publish({snapshot.side: snapshot.id for snapshot in made})
    return workspace


@pytest.mark.parametrize(
    ("text", "mode", "confidence", "ids"),
    [
        ("velvet things", "keywords", 0.7, ["a", "b"]),
        ("velvet stuff", "both", 0.4, ["a", "c"]),
        ("velvet anything", "text", 0.1, ["a", "c"]),
    ],
)
def test_the_confidence_decides_what_answers(
    shop: Path, text: str, mode: str, confidence: float, ids: list[str]
) -> None:
    workspace = serve(shop)
    found = search(workspace, text)
    assert (found.mode, found.note) == (mode, "")
    assert found.confidence == pytest.approx(confidence)
    assert [hit.id for hit in found.hits] == ids
    alone = search(workspace, text, keywords_only=True)
    assert alone.mode == "keywords"
    assert all(hit.words == 0 for hit in alone.hits)
    assert {hit.id for hit in alone.hits} == {
        row.id for row in ITEMS if {*row.keywords, self_keyword(row.text)} & {*found.keywords}
    }


def test_weights_decide_the_order_unless_they_are_switched_off(shop: Path) -> None:
    found = search(serve(shop), "velvet things")
    assert dict(found.keywords) == {"velvet things": 1.0, "couch": 2.0, "tables": 0.5}
    assert found.as_dict()["weights"] == [1.0, 2.0, 0.5]
    assert [hit.id for hit in found.hits] == ["a", "b"]
    equal = search(serve(shop, SURE, BLEND, "keywords.weights=false"), "velvet things")
    assert set(equal.keywords.values()) == {1.0}
    # A shorter set scores higher.
    assert [hit.id for hit in equal.hits] == ["b", "a"]


def test_without_a_blend_keywords_answer_alone(shop: Path) -> None:
    assert search(serve(shop, SURE, None), "velvet stuff").mode == "keywords"


def test_a_query_that_nobody_knows_is_searched_in_titles_too(shop: Path) -> None:
    workspace = serve(shop, SURE, BLEND, "generator.name=transformers")
    found = search(workspace, "velvet of another kind")
    assert (found.source, found.mode, found.confidence) == ("none", "both", None)
    assert [hit.id for hit in found.hits] == ["a", "c"]


def test_without_the_extra_the_keywords_answer_alone_and_a_note_says_so(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = serve(shop)
    monkeypatch.setitem(sys.modules, "bm25s", None)
    found = search(workspace, "velvet anything")
    assert found.mode == "keywords"
    assert "pip install 'cogr[statistical]'" in found.note
    assert [hit.id for hit in found.hits] == ["b"]


def test_the_command_says_how_sure_it_is_and_what_answered(shop: Path, cogr_index: Command) -> None:
    serve(shop)
    shown = cogr_index("search", "velvet stuff", "--explain")
    assert "2 keywords (precomputed) and the words in titles, memory, confidence 0.40" in shown.out
    assert "words of the title" in shown.out
    text = cogr_index("search", "velvet anything", "--json").json
    assert (text["mode"], text["total"]) == ("text", 2)
    only = cogr_index("search", "velvet anything", "--keywords-only").out
    assert "1 items by 2 keywords (precomputed), memory, confidence 0.10" in only
    weighted = cogr_index("search", "velvet things").out
    assert "keywords: velvet things, couch (2), tables (0.5)" in weighted
