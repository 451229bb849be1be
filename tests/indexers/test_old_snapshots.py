"""Snapshots of cogr-1, whose own texts kept their commas, written by that version: read and served
as ever, never matched with newer ones.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cogr.keywords import NORMALISER
from cogr.settings import OpenSearchSettings, load_settings
from cogr.snapshots import Provenance, Row, open_snapshot, write_snapshot
from cogr.store import Store
from indexers.workspace import Workspace
from ops.expander.follower import Pair
from ops.playground.page_data import PageData
from tests.indexers.backends.opensearch_worlds import backend_of
from tests.indexers.conftest import Command
from tests.shops import write_jsonl

OLD = Path(__file__).parents[1] / "data" / "snapshots_of_version_1"
ITEM, QUERY = "item-r000-fa472ce984fa", "query-r000-34904a7c12d1"
ITEMS = [
    {"id": "a", "title": "Oak chair, blue", "text": "A chair"},
    {"id": "b", "title": "Oak table", "text": "A table"},
    {"id": "c", "title": "Sofa; velvet, green", "text": "A sofa"},
]


@pytest.fixture
def old_shop(shop: Path, cogr_index: Command) -> Path:
    """A shop whose serving pair was written by the version before."""
    shutil.copytree(OLD, shop / ".cogr")
    write_jsonl(shop / "data" / "items.jsonl", ITEMS)
    write_jsonl(
        shop / "data" / "queries.jsonl", [{"id": "q1", "text": "chairs, oak", "split": "test"}]
    )
    write_jsonl(shop / "data" / "labels.jsonl", [{"query": "q1", "item": "a", "grade": 1}])
    for id_ in (ITEM, QUERY):
        assert cogr_index("push", id_).status == 0
    assert cogr_index("publish", ITEM, QUERY, "--no-gate").status == 0
    return shop


def rebuilt(cogr_index: Command) -> dict[str, str]:
    """Both sides, by this version, pushed and not published."""
    made = {
        s: cogr_index("rebuild", "--side", s, "--no-publish", "--json") for s in ("item", "query")
    }
    assert all(ended.status == 0 for ended in made.values()), made
    return {side: ended.json["snapshot"] for side, ended in made.items()}


def found(cogr_index: Command, text: str) -> tuple[str, list[str]]:
    answer = cogr_index("search", text, "--json").json
    return answer["source"], [hit["id"] for hit in answer["hits"]]


def test_an_old_pair_serves_as_it_did(old_shop: Path, cogr_index: Command) -> None:
    assert (
        cogr_index("search", "Sofa; velvet, green", "--json").json["keywords"][0]
        == "sofa; velvet, green"
    )
    assert found(cogr_index, "Sofa; velvet, green")[1] == ["c"]
    assert found(cogr_index, "chairs, oak") == ("index", ["a"])
    assert cogr_index("verify").status == 0
    assert ITEM in cogr_index("list", "--json").out
    assert cogr_index("export", "old.jsonl", "--side", "item").status == 0
    assert (
        json.loads((old_shop / "old.jsonl").read_text().splitlines()[0])["self"]
        == "oak chair, blue"
    )
    assert cogr_index("inspect").status == 0


def test_the_way_to_the_new_version_and_back(old_shop: Path, cogr_index: Command) -> None:
    new = rebuilt(cogr_index)
    assert {*new.values()}.isdisjoint({ITEM, QUERY})
    assert cogr_index("publish", new["item"], new["query"], "--no-gate").status == 0
    assert (
        cogr_index("search", "Sofa; velvet, green", "--json").json["keywords"][0]
        == "sofa velvet green"
    )
    assert found(cogr_index, "sofa, velvet green")[1] == ["c"]
    assert cogr_index("rollback").status == 0
    assert (
        cogr_index("search", "Sofa; velvet, green", "--json").json["keywords"][0]
        == "sofa; velvet, green"
    )


def test_a_difference_from_an_old_snapshot_compares_keywords_and_no_results(
    old_shop: Path, cogr_index: Command
) -> None:
    new = rebuilt(cogr_index)["item"]
    shown = cogr_index("diff", ITEM, new, "--json").json
    assert shown["changed"] > 0
    assert (shown["compared_queries"], shown["mean_overlap"]) == (0, None)


@pytest.mark.parametrize("gate", ["--gate", "--no-gate"])
def test_one_new_side_never_serves_beside_an_old_one(
    old_shop: Path, cogr_index: Command, gate: str
) -> None:
    new = rebuilt(cogr_index)
    for id_ in new.values():
        ended = cogr_index("publish", id_, gate)
        assert ended.status == 2
        assert (
            "different normalisers and can't be matched; run cogr-index rebuild --no-publish"
            in ended.err
        )
    assert cogr_index("search", "chairs, oak", "--json").json["snapshot"] == ITEM


def test_an_update_of_an_old_snapshot_is_refused_before_anything_is_done(
    old_shop: Path, cogr_index: Command
) -> None:
    log = old_shop / "log.txt"
    log.write_text("blue chairs\n" * 10)
    ended = cogr_index(
        "update", "--side", "query", "--from-log", log, "--save", "data/queries.jsonl"
    )
    assert ended.status == 2
    assert f"normaliser cogr-1 and this version writes {NORMALISER}" in ended.err
    assert "--side item and for --side query" in ended.err
    assert "blue chairs" not in (old_shop / "data" / "queries.jsonl").read_text()


def test_equal_rows_of_two_versions_are_two_snapshots(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "store")
    store = Store(tmp_path / "store")
    old = open_snapshot(store, ITEM)
    new = write_snapshot(
        store, "item", [Row(row.id, row.text, row.keywords) for row in old.rows()], Provenance()
    )
    assert new.id != old.id
    assert (old.manifest.normaliser, new.manifest.normaliser) == ("cogr-1", NORMALISER)
    assert [row.self_keyword for row in old.rows()] == [
        "oak chair, blue",
        "oak table",
        "sofa; velvet, green",
    ]
    assert [row.self_keyword for row in new.rows()] == [
        "oak chair blue",
        "oak table",
        "sofa velvet green",
    ]


def test_the_playground_shows_old_pairs_apart_from_new_ones(
    old_shop: Path, cogr_index: Command
) -> None:
    new = rebuilt(cogr_index)
    page = PageData(Workspace(load_settings(old_shop / "cogr.toml")))
    pairs = {(c.item.id, c.query and c.query.id) for c in page.choices(Pair())}
    assert (ITEM, QUERY) in pairs
    assert (new["item"], new["query"]) in pairs
    assert not {(ITEM, new["query"]), (new["item"], QUERY)} & pairs
    assert page.opened(QUERY).keywords_of("Chairs,  OAK") == ("chairs",)


@pytest.mark.server
def test_a_push_after_an_old_snapshot_writes_every_own_text_anew(
    opensearch: OpenSearchSettings, tmp_path: Path
) -> None:
    """Rows are equal but for their own texts, which a push by difference would take from the old
    index.
    """
    shutil.copytree(OLD, tmp_path / "store")
    store = Store(tmp_path / "store")
    old = open_snapshot(store, QUERY)
    rows = [Row(row.id, row.text, row.keywords) for row in old.rows()]
    new = write_snapshot(store, "query", rows, Provenance(parent=old.id))
    with backend_of(opensearch, store) as backend:
        for snapshot in (old, new):
            backend.push(snapshot)
            backend.verify(snapshot, [])
        found = backend.lookup("chairs, oak", snapshot=old.id)
        assert backend.lookup("chairs; oak", snapshot=old.id) is None
        assert found == backend.lookup("chairs; oak", snapshot=new.id)
        assert found is not None
        assert (found.keywords, found.weights, found.confidence) == (("chairs",), (), None)
