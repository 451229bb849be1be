"""Stages that two processes train together on the CPU, by gloo: as one does at the same batch; and
what becomes of a stage of which one process fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import SettingsError, TrainingError
from tests.documents import ROOT
from tests.shops import write_sample_part
from tests.trainers.shop import Shop, copy_of, steps, whole
from trainers.training import building, ranks
from trainers.training.building import Build, build_snapshot, write_share
from trainers.training.driver import Driver
from trainers.training.rounds import Round, Run, create, open_run
from trainers.training.stage import Launcher
from trainers.training.trainer_config import check_settings

BATCHES = (
    "training.invented_queries=0",
    "training.sft.batch_size=8",
    'training.sft.items_from="extractive"',
    "training.sft.epochs=6",
    "training.query.reward=tests.trainers.training.same_draws:query_reward",
    "training.item.reward=tests.trainers.training.same_draws:item_reward",
)
TWO = (*BATCHES, "training.processes=2")
TOLERANCE = 1e-3
"""Of the distance between weights, as a share of the way that they have moved. A bound for each
weight alone would be one of rounding: Adam divides a gradient by its own size plus 1e-8, so where
it is about as small, a difference of 2e-10 moves the weight by a hundredth of the learning rate.
"""


def weights(run: Run, output: str) -> Any:
    from safetensors.torch import load_file

    return load_file(run.store.local(output) / "model.safetensors")


def apart(one: Any, other: Any) -> float:
    """Euclidean distance of all weights."""
    return sum(float((one[name] - other[name]).square().sum()) for name in one) ** 0.5


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """64 items and 72 training queries, so that no batch is left over; with one process trained.

    Training here has transformers draw the same for every seed; later tests get its own way back.
    """
    from transformers import GenerationMixin

    found = Shop(write_sample_part(tmp_path_factory.mktemp("ranks"), items=64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GenerationMixin, "generate", GenerationMixin.generate)
        found.driver("one", *BATCHES).reach(1)
        yield found


@pytest.mark.drill
@pytest.mark.model
@pytest.mark.timeout(600)
def test_two_processes_learn_what_one_learns(shop: Shop) -> None:
    workspace = shop.workspace(*TWO)
    run, launcher = create(workspace, "two"), Launcher(shop.config, TWO)
    Driver(workspace, run, launcher, shop.said.append).reach(1)
    one, two = open_run(workspace, "one"), open_run(workspace, "two")
    whole(shop, "two", *TWO)
    base = weights(one, one.state().rounds[0].output("targets"))
    for number in (0, 1):
        for side in ("query", "item"):
            alone, together = (run.state().rounds[number].model(side) for run in (one, two))
            learned, other = weights(one, alone), weights(two, together)
            assert 0 < apart(learned, other) <= TOLERANCE * apart(learned, base)
            figures, others = (figures_of(run, number, side) for run in (one, two))
            assert len(figures) == len(others) > 1
            assert figures == pytest.approx(others, abs=1e-4)
        assert one.state().rounds[number].items == two.state().rounds[number].items
    trained = [weights(one, one.state().rounds[number].model("query")) for number in (0, 1)]
    assert apart(*trained) > TOLERANCE * apart(trained[0], base)


def figures_of(run: Run, number: int, side: str) -> list[float]:
    """Losses, and what GRPO counts over all completions of a step."""
    names = ("loss", *(("reward", "equal_groups", "keywords") if number else ()))
    return [line[name] for line in steps(run, f"r{number:03d}-{side}") for name in names]


@pytest.mark.drill
@pytest.mark.model
@pytest.mark.timeout(600)
def test_a_killed_process_ends_the_stage_of_several(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real launcher, which ends what waits for the dead one; then the stage is done again by
    one process.
    """
    flag = shop.config.parent / "killed"
    monkeypatch.setenv("KILL_ONCE", str(flag))
    overrides = (*TWO, "training.query.reward=tests.trainers.shop:killing_reward")
    workspace = shop.workspace(*overrides)
    run = copy_of(workspace, "one", "killed")
    driver = Driver(workspace, run, Launcher(shop.config, overrides), shop.said.append)
    with pytest.raises(TrainingError, match="signal 9"):
        driver.reach(2)
    assert time.time() - flag.stat().st_mtime < 60
    assert run.state().unfinished == Round(number=2)
    with run.store.lock("stage-killed", "the test"):
        pass


@pytest.mark.drill
@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("reward", "error", "sentence"),
    [
        ("failing_reward", TrainingError, "reward failed on .*no margin known"),
        ("interrupted_reward", KeyboardInterrupt, None),
    ],
)
def test_errors_of_several_processes_are_one_sentence(
    copied: Shop, reward: str, error: type[BaseException], sentence: str | None
) -> None:
    overrides = ("training.processes=2", f"training.query.reward=tests.trainers.shop:{reward}")
    workspace = copied.workspace(*overrides)
    run = copy_of(workspace, "main", "fails")
    with pytest.raises(error, match=sentence):
        Driver(workspace, run, Launcher(copied.config, overrides), copied.said.append).reach(2)
    assert run.state().unfinished == Round(number=2)


@pytest.mark.torch
def test_accelerate_is_told_by_its_own_file_of_fsdp(tmp_path: Path) -> None:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    file = ROOT / "examples/accelerate-fsdp2.yaml"
    options = [*ranks.launch_options(8, str(file)), "-m", "some.module"]
    told = _validate_launch_command(launch_command_parser().parse_args(options))[0]
    assert (told.num_processes, told.use_fsdp, told.use_deepspeed) == (8, True, False)
    shop = Shop(write_sample_part(tmp_path / "shop", items=24))
    with pytest.raises(SettingsError, match=r"no file .*training\.accelerate"):
        check_settings(shop.workspace(f'training.accelerate="{tmp_path / "none.yaml"}"'))


@pytest.mark.torch
@pytest.mark.parametrize("ending", [75, -9])
def test_the_launcher_ends_as_the_process_that_failed(ending: int) -> None:
    stage = ["-m", "tests.trainers.training.ending", str(ending)]
    command = [sys.executable, "-m", ranks.__name__, *ranks.launch_options(2, None), *stage]
    began = time.monotonic()
    assert subprocess.run(command, check=False).returncode == ending
    assert time.monotonic() - began < 60


def test_processes_share_an_index_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second writes every other answer into the cache; the first the rest, and the snapshot."""
    shop, build = Shop(write_sample_part(tmp_path / "shop")), Build("item", 0, None, "extractive")
    alone = build_snapshot(shop.workspace(f'store="{tmp_path / "alone"}"'), build)
    workspace, barrier = shop.workspace(), tmp_path / "barrier"
    barrier.mkdir()
    written: list[int] = []
    real = building.generate_missing

    def counted(job: Any, plan: Any, advance: Any) -> Any:
        written.append(len(plan.missing))
        return real(job, plan, advance)

    monkeypatch.setattr(building, "generate_missing", counted)
    for name, value in (("WORLD_SIZE", "2"), ("MASTER_PORT", "1"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    write_share(workspace, build, barrier)
    monkeypatch.setenv("RANK", "0")
    together = build_snapshot(workspace, build, barrier)
    assert together.id == alone.id
    assert written == [30, 30, 0]
    assert list(barrier.iterdir()) == []


def test_each_process_of_an_index_build_sees_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    for seen, own in (("4,6", "6"), ("", "1")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        ranks.take_one_gpu()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == own
