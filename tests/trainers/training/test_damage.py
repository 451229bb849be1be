"""A run whose files are damaged goes on from what is whole, or says in one sentence what to do; a
renamed one loses nothing.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from cogr.errors import CogrError, TrainingError
from tests.damages import HARMS, damage, files_below
from tests.trainers.shop import Shop, whole
from trainers.training.run_folder import Run, create, open_run
from trainers.training.sft import read_targets

pytestmark = [pytest.mark.slow, pytest.mark.model]


def run_of(shop: Shop, name: str = "main") -> Run:
    return open_run(shop.workspace(), name)


def test_a_renamed_run_folder_keeps_its_finished_rounds(copied: Shop) -> None:
    before = run_of(copied).state()
    runs = run_of(copied).store.local("runs")
    (runs / "main").rename(runs / "spring")
    driver = copied.driver("spring")
    driver.sft()
    after = driver.run.state()
    assert [round_.number for round_ in after.finished] == [
        round_.number for round_ in before.finished
    ]
    assert after.rounds[1].model("item").startswith("runs/spring/models/")
    assert copied.said == []
    assert len(whole(copied, "spring")) == 2
    assert driver.round().number == 2


def test_a_torn_state_goes_back_by_one_stage_and_says_so(
    copied: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(copied)
    for torn in (b"", run.store.read("runs/main/state.json")[:-40]):
        run.store.write("runs/main/state.json", torn)
        state = run.state()
        assert len(state.finished) == 1
        assert state.unfinished is not None
        assert state.unfinished.next_stage == "evaluate"
    assert "goes on from before its last stage" in caplog.text
    done = copied.driver().round()
    assert (done.number, done.finished) == (1, True)
    assert len(whole(copied)) == 2


def test_a_state_that_is_lost_twice_is_one_sentence(copied: Shop) -> None:
    run = run_of(copied)
    for name in ("state.json", "state-before.json"):
        run.store.write(f"runs/main/{name}", b"\0\0")
    with pytest.raises(TrainingError, match=r"state\.json\) is broken; restore it, or remove it"):
        run.state()


def test_a_broken_beginning_can_be_written_again_and_its_rounds_stay(copied: Shop) -> None:
    run = run_of(copied)
    run.store.write("runs/main/run.json", b"")
    with pytest.raises(
        TrainingError, match="remove it and run cogr-train run --run main: its rounds stay"
    ):
        run.check(copied.workspace())
    run.store.remove("runs/main/run.json")
    assert len(create(copied.workspace()).state().finished) == 2


def rename(run: Run, name: str, output: str) -> None:
    """Have the state say that something else was written."""
    path = "runs/main/state.json"
    run.store.write(path, run.store.read(path).replace(name.encode(), output.encode()))


@pytest.mark.parametrize("output", ["runs/../../precious", "runs/main/models/.."])
def test_a_state_that_names_a_model_elsewhere_is_refused(copied: Shop, output: str) -> None:
    run = run_of(copied)
    rename(run, run.state().rounds[1].model("item"), output)
    with pytest.raises(TrainingError, match="not a model of this store"):
        run.state()


@pytest.mark.parametrize("output", ["../../precious", "item-r001-x", "/etc"])
def test_a_state_that_names_no_snapshot_goes_back(copied: Shop, output: str) -> None:
    driver = copied.driver()
    rename(driver.run, driver.run.state().rounds[1].items, output)
    driver.sft()
    assert any(
        "has no snapshot" in said and "Going back to round 1, " in said for said in copied.said
    )


def test_broken_targets_are_made_again_while_they_are_needed(copied: Shop) -> None:
    driver = copied.driver()
    driver.run.save(driver.run.state().back_to(0, "train-item"))
    driver.run.store.write("runs/main/sft/item.jsonl", b'{"id"')
    assert driver.sft().finished
    assert any("Going back to round 0, targets." in said for said in copied.said)
    assert read_targets(driver.run, "item")


@pytest.mark.parametrize("how", HARMS)
def test_whatever_is_damaged_a_run_goes_back_or_refuses(
    copied: Shop, tmp_path: Path, how: str
) -> None:
    store = tmp_path / "shop/store"
    kept = tmp_path / "kept"
    shutil.copytree(store, kept)
    files = [
        file.relative_to(kept) for file in files_below(kept, without=("locks", "cache", "mirrors"))
    ]
    refused: set[str] = set()
    for number in range(40):
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
