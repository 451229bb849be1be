"""A training stage that dies goes on from its last checkpoint, and learns what an undisturbed one
learns, to the bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.shops import write_sample_part
from tests.trainers.shop import Shop, learned, steps
from trainers.tiny import catalogue_texts, tiny_model
from trainers.training import step_log

# Three steps an epoch and a checkpoint every four: in the middle of the second epoch.
SETTINGS = (
    "training.invented_queries=0",
    'training.sft.items_from="extractive"',
    "training.sft.batch_size=24",
    "training.sft.epochs=3",
    "training.query.max_steps=7",
    "training.query.prompts_per_step=24",
    "training.item.max_steps=1",
    "training.rollouts.max_tokens=4",
    "generator.sampling.max_tokens=4",
)
EVERY = "training.save_steps=4"
pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(900)]


class Died(BaseException):
    """A process that is no more."""


def dies(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The first stage that logs this step ends there, once."""
    real, died = step_log.StepLog.logged, []

    def logged(self: Any, step: int, logs: Any) -> bool:
        ends = real(self, step, logs)
        if step == at and not died:
            died.append(step)
            raise Died
        return ends

    monkeypatch.setattr(step_log.StepLog, "logged", logged)


def test_a_stage_that_died_goes_on_from_its_checkpoint_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model in a folder, whose examples are sorted by length; never from half a checkpoint."""
    shop = Shop(write_sample_part(tmp_path, items=64))
    tiny_model(tmp_path / "model", catalogue_texts(shop.workspace().dataset), 0)
    settings = (*SETTINGS, f"training.model={tmp_path / 'model'}")
    calm = shop.driver("calm", *settings, "training.save_steps=0")
    calm.reach(1)
    driver = shop.driver("dies", *settings, EVERY)
    run = driver.run
    for number, stage in enumerate(("r000-item", "r001-query")):
        dies(monkeypatch, 6)
        with pytest.raises(Died):
            driver.reach(number)
        (whole,) = run.folder("trainer", stage).glob("*/checkpoint-4/whole")
        (whole.parents[1] / "checkpoint-8").mkdir()
        assert len(steps(run, stage)) == 6
        driver.reach(number)
        assert not list(run.folder("trainer").iterdir())
        assert steps(run, stage) == steps(calm.run, stage)
        assert [line["step"] for line in steps(run, stage)][:7] == [1, 2, 3, 4, 5, 6, 7]
    assert learned(run) == learned(calm.run)
