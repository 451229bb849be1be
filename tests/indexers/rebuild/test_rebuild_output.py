"""What a rebuild says of its generator: which one wrote and why, what it never did, and whom it
left without keywords.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from indexers.generators.statistical import generator as statistical
from tests.indexers.conftest import Command
from tests.indexers.generators.fake_endpoint import FakeEndpoint
from trainers.demo import CATALOGUE

AUTO = '[dataset]\nloader = "jsonl"\npath = "data"\n'


@pytest.fixture
def labelled(shop: Path) -> Path:
    """The demo's shop, with labels, by the generator auto."""
    shutil.rmtree(shop / "data")
    shutil.copytree(CATALOGUE, shop / "data")
    (shop / "cogr.toml").write_text(AUTO)
    return shop


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistical, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_the_extra")
def test_auto_with_labels_and_without_the_extra_says_what_to_install(
    labelled: Path, cogr_index: Command
) -> None:
    for dry in ((), ("--dry-run",)):
        ended = cogr_index("rebuild", "--side", "item", *dry)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.count("\n") == 1
        assert (
            '100 training queries have labels, so generator.name = "auto" means statistical'
            in ended.err
        )
        assert "pip install 'cogr[statistical]'" in ended.err
    assert not (labelled / ".cogr" / "snapshots").exists()
    named = cogr_index("rebuild", "--side", "item", "--generator", "extractive", "--json")
    assert named.status == 0
    assert named.json["generator"]["kind"] == "extractive"
    assert named.json["why"] == "asked for by name"
    # Who only searches needs no extra: the query side is not there, and nothing can write it now.
    assert cogr_index("search", "metal bookshelf", "--json").json["source"] == "none"


def test_a_rebuild_says_which_generator_wrote_and_why(labelled: Path, cogr_index: Command) -> None:
    pytest.importorskip("lightgbm")
    ended = cogr_index("rebuild", "--side", "item", "--limit", 20)
    assert "statistical (auto: 100 training queries have labels)" in ended.out
    assert "keywords of items by statistical (auto" in ended.err
    assert "no encoder: The model sentence-transformers/all-MiniLM-L6-v2 is neither" in ended.err
    (labelled / ".cogr" / "encoded" / "choice.json").unlink()
    planned = cogr_index("rebuild", "--side", "item", "--dry-run")
    assert not (labelled / ".cogr" / "encoded" / "choice.json").exists()
    assert "auto: 100 training queries have labels" in planned.out


def test_auto_with_too_few_labels_is_extractive_and_says_so(
    shop: Path, cogr_index: Command
) -> None:
    (shop / "cogr.toml").write_text(AUTO)
    ended = cogr_index("rebuild", "--side", "item")
    assert ended.status == 0, ended.err
    assert "extractive (auto: 1 training queries have labels, statistical needs 10)" in ended.out


def test_a_generator_that_reads_no_prompts_is_not_told_of_in_prompts(
    shop: Path, cogr_index: Command
) -> None:
    del shop
    told = [cogr_index("rebuild", "--side", "item", *dry) for dry in ((), ("--dry-run",))]
    for ended in told:
        assert ended.status == 0, ended.err
        assert not {
            word for word in ("prompt", "token", "truncated", "one line") if word in ended.out
        }
    with FakeEndpoint() as endpoint:
        address = (
            "--set",
            f"generator.openai.base_url={endpoint.url}",
            "--set",
            "generator.model=m",
        )
        prompted = cogr_index("rebuild", "--side", "item", "--generator", "openai", *address).out
    assert all(word in prompted for word in ("cut prompts", "truncated"))
