"""What a real training stage logs: TensorBoard events beside the jsonl, and a collapse that is
named and stopped.
"""

from __future__ import annotations

import json

import pytest

from cogr.errors import CheckFailedError
from tests.trainers.shop import InThisProcess, Shop
from trainers.training.driver import Driver
from trainers.training.run_folder import branch, open_run

pytestmark = [pytest.mark.slow, pytest.mark.model]


def test_the_trainers_figures_become_tensorboard_events(copied: Shop) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overrides = ('training.report_to=["tensorboard"]',)
    workspace = copied.workspace(*overrides)
    run = open_run(workspace, "main")
    Driver(workspace, run, InThisProcess(copied.config, overrides), copied.said.append).round()
    logs = run.folder("logs")
    assert not (logs / "tensorboard" / "r001-query").exists()
    for side in ("query", "item"):
        lines = (logs / f"r002-{side}.jsonl").read_text().splitlines()
        events = EventAccumulator(str(logs / "tensorboard" / f"r002-{side}")).Reload()
        found = events.Scalars("train/loss")
        assert [event.step for event in found] == [1, 2]
        expected = [json.loads(line)["loss"] for line in lines]
        assert [event.value for event in found] == pytest.approx(expected, rel=1e-4)


@pytest.mark.drill
def test_a_collapse_is_named_and_stops_the_stage(copied: Shop) -> None:
    overrides = (
        "training.query.reward=tests.trainers.shop:constant_reward",
        "training.query.max_steps=40",
    )
    workspace = copied.workspace(*overrides)
    run = branch(workspace, "main", "flat")
    with pytest.raises(
        CheckFailedError,
        match="collapsed: at step 30 all rewards of a group are equal.* for 30 steps in a row",
    ):
        Driver(workspace, run, InThisProcess(copied.config, overrides), copied.said.append).round()
    steps = [
        json.loads(line)
        for line in (run.folder("logs") / "r002-query.jsonl").read_text().splitlines()
    ]
    assert [step["equal_groups"] for step in steps] == [1.0] * 30
    assert ["equal_groups" in step["collapsing"] for step in steps] == [False] * 9 + [True] * 21
    assert len(run.state().finished) == 2
