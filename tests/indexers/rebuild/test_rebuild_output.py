"""What a rebuild says of its generator: which one wrote and why, what it never did, and whom it
left without keywords.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cogr.settings import indexing
from tests.commands import Command, done, sets
from tests.indexers.generators.fake_endpoint import FakeEndpoint
from tests.shops import DATASET
from trainers.demo import CATALOGUE


@pytest.fixture
def labelled(shop: Path) -> Path:
    """The demo's shop, with labels, by the generator auto."""
    shutil.rmtree(shop / "data")
    shutil.copytree(CATALOGUE, shop / "data")
    (shop / "cogr.toml").write_text(DATASET)
    return shop


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "find_spec", lambda name: None)


REBUILD = ("rebuild", "--side", "item")


@pytest.mark.usefixtures("without_the_extra")
def test_auto_with_labels_and_without_the_extra_says_what_to_install(
    labelled: Path, cogr_index: Command
) -> None:
    told = '100 training queries have labels, so generator.name = "auto" means statistical'
    ended = cogr_index(*REBUILD, "--dry-run")
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert all(part in ended.err for part in (told, "pip install 'cogr[statistical]'"))
    assert not (labelled / ".cogr" / "snapshots").exists()
    named = done(cogr_index, *REBUILD, "--generator", "extractive")
    assert (named["generator"]["kind"], named["why"]) == ("extractive", "asked for by name")
    # Who only searches needs no extra: what wrote the items writes the query's keywords.
    assert done(cogr_index, "search", "metal bookshelf")["source"] == "model"


@pytest.mark.slow
def test_a_rebuild_says_which_generator_wrote_and_why(labelled: Path, cogr_index: Command) -> None:
    pytest.importorskip("lightgbm")
    ended = cogr_index(*REBUILD, "--limit", 20)
    assert "statistical (auto: 100 training queries have labels)" in ended.out
    assert "keywords of items by statistical (auto" in ended.err
    assert "no encoder: The model sentence-transformers/all-MiniLM-L6-v2 is not in" in ended.err
    choice = labelled / ".cogr/encoded/choice.json"
    choice.unlink()
    planned = cogr_index(*REBUILD, "--dry-run")
    assert not choice.exists()
    assert "auto: 100 training queries have labels" in planned.out


def test_auto_with_too_few_labels_is_extractive_and_says_so(
    shop: Path, cogr_index: Command
) -> None:
    (shop / "cogr.toml").write_text(DATASET)
    told = "extractive (auto: 1 training queries have labels, statistical needs 10)"
    assert told in cogr_index(*REBUILD, "--dry-run").out


@pytest.mark.usefixtures("shop")
def test_a_generator_that_reads_no_prompts_is_not_told_of_in_prompts(cogr_index: Command) -> None:
    planned = cogr_index(*REBUILD, "--dry-run")
    assert not Path(".cogr/snapshots").exists()
    for ended in (planned, cogr_index(*REBUILD)):
        assert ended.status == 0, ended.err
        words = ("prompt", "token", "truncated", "one line")
        assert not [word for word in words if word in ended.out]
    with FakeEndpoint() as endpoint:
        asked = ("--generator", "openai", *sets(*endpoint.settings))
        prompted = cogr_index(*REBUILD, *asked).out
    assert all(word in prompted for word in ("cut prompts", "truncated"))
