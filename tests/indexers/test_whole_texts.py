"""Items' whole texts are searched for what follows the set, and kept once by content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cogr.keywords import self_keyword
from cogr.snapshots import open_snapshot, texts
from cogr.store import Store
from indexers.backends import Words
from indexers.workspace import Workspace
from tests.commands import Command, done
from tests.indexers.backends.opensearch_worlds import prefix_of
from tests.shops import SCRIPTED, write_data, write_jsonl, write_shop

ITEMS = [
    {"id": "sofa", "title": "Velvet sofa", "text": "Made to last. Its legs are of turned walnut."},
    {"id": "table", "title": "Walnut table", "text": "For six people, oiled by hand in our shop."},
    {"id": "lamp", "title": "Floor lamp", "text": "A brass shade and a cable of three metres."},
    {"id": "brass", "title": "Brass polish", "text": "", "brand": "Turned Legs"},
    {"id": "bare", "title": "Bare shelf", "text": ""},
]
QUERIES = [{"id": f"q{n}", "text": f"query {n}", "split": "train"} for n in range(3)]
LABELS = [{"query": f"q{n}", "item": ITEMS[n]["id"]} for n in range(3)]
PUBLISHED = '[publish]\ntolerance = 1\nfields = ["brand"]\n'


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path, ITEMS, QUERIES, LABELS, SCRIPTED + PUBLISHED)
    return tmp_path


@pytest.fixture(
    params=["memory", "opensearch", pytest.param("opensearch_2", marks=pytest.mark.drill)]
)
def anywhere(shop: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The shop, searched in memory or in a cluster."""
    if request.param == "memory":
        yield shop
        return
    with prefix_of(request.getfixturevalue(request.param)) as cluster:
        named = {"url": cluster.url, "prefix": cluster.settings.prefix}
        named["text_analyzer"] = cluster.settings.text_analyzer
        lines = "".join(f'{name} = "{value}"\n' for name, value in named.items())
        write_shop(shop, ITEMS, QUERIES, LABELS, f"{SCRIPTED}{PUBLISHED}[opensearch]\n{lines}")
        yield shop


def rebuilt(cogr_index: Command, *more: str) -> str:
    return str(done(cogr_index, "rebuild", "--side", "item", *more)["snapshot"])


def found(query: str) -> tuple[list[str], list[str]]:
    """Ids of the set, and of what follows, by a query's text and no keyword but it."""
    backend = Workspace.open(Path("cogr.toml")).backend
    own, serving = self_keyword(query), str(backend.serving()["item"])
    hits = backend.search([own], snapshot=serving, words=Words(query)).hits
    tiers = ("set", "more")
    in_set, after = ([hit.id for hit in hits if hit.tier == tier] for tier in tiers)
    return in_set, after


def changed(cogr_index: Command, *records: dict[str, Any]) -> str:
    write_jsonl(Path("changes.jsonl"), records)
    return str(
        done(cogr_index, "update", "--side", "item", "--changed", "changes.jsonl")["snapshot"]
    )


def kept(shop: Path) -> dict[str, Sequence[str]]:
    """Name of each file of texts in the store -> its texts."""
    files = (shop / ".cogr" / texts.TEXTS).iterdir()
    return {path.name: pq.read_table(path)["text"].to_pylist() for path in files}


def test_words_of_a_text_find_its_item_after_the_set(anywhere: Path, cogr_index: Command) -> None:
    rebuilt(cogr_index)
    assert found("brass shade") == ([], ["lamp", "brass"])
    assert found("six people hand") == ([], ["table"])
    # A word counts twice in a title, and every word in one field makes a literal match; all of them
    # in the text alone do not.
    assert found("walnut gates") == ([], ["table", "sofa"])
    assert found("turned legs") == (["brass"], ["sofa"])


def test_one_setting_leaves_texts_out(shop: Path, cogr_index: Command) -> None:
    titles = ("--set", "publish.search_text=false")
    ended = cogr_index("rebuild", "--side", "item", *titles)
    assert "found by titles alone, publish.search_text is false" in ended.err
    assert found("brass shade") == ([], ["brass"])
    assert not (shop / ".cogr" / texts.TEXTS).exists()
    write_jsonl(Path("changes.jsonl"), ITEMS[:1])
    refused = cogr_index("update", "--side", "item", "--changed", "changes.jsonl")
    refused.check_refused("without the items' texts (publish.search_text)", "rebuild --side item")
    rebuilt(cogr_index)
    assert found("brass shade") == ([], ["lamp", "brass"])


def test_snapshots_share_texts_and_an_update_adds_what_is_new(
    anywhere: Path, cogr_index: Command
) -> None:
    first = rebuilt(cogr_index)
    ((whole, before),) = kept(anywhere).items()
    assert sorted(before) == sorted(str(item["text"]) for item in ITEMS if item["text"])
    sofa = {**ITEMS[0], "text": "Legs of steel, springs of rubber."}
    second = changed(cogr_index, sofa, {"id": "lamp", "deleted": True})
    assert kept(anywhere).pop(whole) == before
    (added,) = kept(anywhere).keys() - {whole}
    assert kept(anywhere)[added] == [sofa["text"]]
    assert found("rubber springs") == ([], ["sofa"])
    assert found("cable metres") == ([], [])
    # The data has changed, and the older snapshot still has its texts.
    write_data(anywhere / "data", items=[sofa, *ITEMS[1:]])
    done(cogr_index, "publish", first, "--no-gate")
    assert found("turned walnut legs") == ([], ["sofa", "table"])
    # A rebuild finds all texts in its parent's files and one more.
    assert rebuilt(cogr_index) not in (first, second)
    assert len(kept(anywhere)) == 2


def test_many_updates_end_in_one_file(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("cogr.snapshots.texts", "indexers.rebuild.assembly"):
        monkeypatch.setattr(f"{module}.MAX_FILES", 3)
    rebuilt(cogr_index)
    for n in range(4):
        last = changed(cogr_index, {**ITEMS[0], "text": f"Springs of kind{n}."})
        manifest = json.loads((shop / f".cogr/snapshots/{last}/manifest.json").read_text())
        assert len(manifest["texts"]) == (2, 3, 1, 2)[n]
        assert found(f"kind{n} gates") == ([], ["sofa"])
        assert found("cable metres") == ([], ["lamp"])


def test_prune_removes_texts_that_no_snapshot_names(shop: Path, cogr_index: Command) -> None:
    rebuilt(cogr_index)
    stray = shop / ".cogr" / texts.TEXTS / f"{'0' * 64}.parquet"
    for n in range(3):
        changed(cogr_index, {**ITEMS[0], "text": f"Springs of kind{n}."})
    stray.write_bytes(b"")
    pruned = done(cogr_index, "prune", "--keep", "1", "--files", "--dry-run")["texts"]
    assert done(cogr_index, "prune", "--keep", "1", "--files")["texts"] == pruned
    assert not stray.exists()
    # The serving snapshot names all the others, and a rollback would need the one before.
    assert f"texts/{stray.name}" in pruned
    assert len(kept(shop)) == 4
    store = Store(shop / ".cogr")
    assert len(store.list("text_index")) in (0, len(store.list("snapshots")))
    assert found("kind2 gates") == ([], ["sofa"])
    done(cogr_index, "rollback")
    assert found("kind1 gates") == ([], ["sofa"])


@pytest.mark.parametrize("damage", ["lost", "altered"])
def test_damaged_texts_are_told(shop: Path, cogr_index: Command, damage: str) -> None:
    rebuilt(cogr_index, "--no-publish", "--set", "publish.search_text=true", "--no-push")
    (path,) = (shop / ".cogr" / texts.TEXTS).iterdir()
    path.unlink() if damage == "lost" else path.write_bytes(path.read_bytes()[::-1])
    (one,) = (shop / ".cogr" / "snapshots").iterdir()
    refused = cogr_index("publish", one.name, "--no-gate")
    refused.check_refused("are lost or damaged", "cogr-index rebuild --side item")
    path.unlink(missing_ok=True)
    rebuilt(cogr_index)
    assert found("cable metres") == ([], ["lamp"])


@pytest.mark.parametrize("damage", ["cut", "altered", "zeroed"])
def test_an_index_of_texts_is_opened_as_it_is_and_a_damaged_one_made_anew(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    published = rebuilt(cogr_index)
    (path,) = (shop / ".cogr/text_index").glob("*/whole/postings*")
    sound = path.read_bytes()
    # A search looks at sizes alone and reads no texts, which takes time by their size.
    with monkeypatch.context() as patched:
        for name in ("file_sha256", "language_of", "whole_texts"):
            patched.setattr(f"indexers.backends.memory.{name}", None)
        assert found("turned gates") == ([], ["sofa"])
    spoilt = {"cut": sound[:-1], "altered": sound[:-1] + bytes([sound[-1] ^ 1])}
    path.write_bytes(spoilt.get(damage, bytes(len(sound))))
    if damage == "altered":
        workspace = Workspace.open(Path("cogr.toml"))
        workspace.backend.push(open_snapshot(workspace.store, published))
    assert found("turned gates") == ([], ["sofa"])
    assert path.read_bytes() == sound
