"""A run whose files are damaged goes on from what is whole, or says in one sentence what to do."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from cogr.errors import CogrError
from tests.damages import HARMS, damage, files_below
from tests.trainers.shop import Shop
from trainers.training.sft import read_targets

pytestmark = [pytest.mark.slow, pytest.mark.model]


def test_broken_targets_are_made_again_while_they_are_needed(copied: Shop) -> None:
    driver = copied.driver()
    driver.run.save(driver.run.state().back_to(0, "train-item"))
    driver.run.store.write("runs/main/sft/item.json", b'{"id"')
    assert driver.sft().finished
    assert any("Going back to round 0, targets." in said for said in copied.said)
    assert read_targets(driver.run, "item")


@pytest.mark.parametrize("trials", [6, pytest.param(40, marks=pytest.mark.drill)])
@pytest.mark.parametrize("how", HARMS)
def test_whatever_is_damaged_a_run_goes_back_or_refuses(
    copied: Shop, tmp_path: Path, how: str, trials: int
) -> None:
    store = tmp_path / "shop/store"
    kept = tmp_path / "kept"
    shutil.copytree(store, kept)
    files = [file.relative_to(kept) for file in files_below(kept, without=("locks", "cache"))]
    refused: set[str] = set()
    for number in range(trials):
        draw = random.Random(f"{how} {number}")
        chosen = draw.choice(files)
        damage(store / chosen, how, draw)
        try:
            copied.driver().sft()
        except CogrError:
            refused.add(chosen.name)
        shutil.rmtree(store)
        shutil.copytree(kept, store)
    assert refused <= {"run.json", "state.json"}
