"""A search in two tiers: the set by keywords and literal matches, then more by text."""

from __future__ import annotations

from pathlib import Path

from cogr.snapshots import Row
from indexers.search import search
from indexers.workspace import Workspace
from tests.commands import Command
from tests.indexers.backends.backend_worlds import publish
from tests.shops import frozen

ITEMS = [
    Row("a", "Velvet sofa", ("sofas", "couch")),
    Row("b", "Oak table", ("tables",)),
    Row("c", "Velvet chair", ("seat",)),
]
SURE = [
    Row("q1", "velvet things", ("couch", "tables"), "", (2.0, 0.5, 1.0), 0.7),
    Row("q2", "velvet stuff", ("couch",), "", (), 0.4),
    Row("q3", "velvet anything", ("tables",), "", (), 0.1),
]


def serve(shop: Path, *settings: str) -> Workspace:
    workspace = Workspace.open(shop / "cogr.toml", list(settings))
    items, queries = (
        frozen(workspace.store, "item", ITEMS),
        frozen(workspace.store, "query", SURE),
    )
    publish(workspace.backend, items, queries)
    return workspace


def test_weights_decide_the_order_unless_they_are_switched_off(shop: Path) -> None:
    found = search(serve(shop), "velvet things")
    assert dict(found.keywords) == {"velvet things": 1.0, "couch": 2.0, "tables": 0.5}
    assert found.as_dict()["weights"] == [1.0, 2.0, 0.5]
    assert [hit.id for hit in found.hits] == ["a", "b", "c"]
    equal = search(serve(shop, "keywords.weights=false"), "velvet things", keywords_only=True)
    assert set(equal.keywords.values()) == {1.0}
    # A shorter set scores higher.
    assert [hit.id for hit in equal.hits] == ["b", "a"]


def test_a_query_that_nobody_knows_is_searched_in_titles_too(shop: Path) -> None:
    workspace = serve(shop, "generator.name=transformers")
    found = search(workspace, "velvet of another kind")
    assert (found.source, found.total, found.more, found.confidence) == ("none", 0, 2, None)
    assert [hit.id for hit in found.hits] == ["a", "c"]


def test_the_command_says_how_sure_it_is_and_what_answered(shop: Path, cogr_index: Command) -> None:
    serve(shop)
    shown = cogr_index("search", "velvet stuff", "--explain").out
    assert "velvet stuff: 1 items, 1 more by text" in shown
    assert "Keywords (precomputed): velvet stuff, couch; confidence 0.40." in shown
    assert "words of title and text" in shown
    text = cogr_index("search", "velvet stuff", "--json").json
    assert (text["total"], text["more"]) == (1, 1)
    assert [hit["tier"] for hit in text["hits"]] == ["set", "more"]
    only = cogr_index("search", "velvet anything", "--keywords-only").out
    assert "velvet anything: 1 items\n" in only
    weighted = cogr_index("search", "velvet things", "--explain").out
    assert "Keywords (precomputed): velvet things, couch (2), tables (0.5)" in weighted
