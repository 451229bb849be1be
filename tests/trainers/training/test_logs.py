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


def test_tensorboard_events_and_completions_say_what_the_jsonl_says(copied: Shop) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overrides = ('training.report_to=["completions", "tensorboard"]',)
    workspace = copied.workspace(*overrides)
    run = open_run(workspace, "main")
    Driver(workspace, run, InThisProcess(copied.config, overrides), copied.said.append).round()
    logs = run.folder("logs")
    completions = (logs / "r002-item.completions.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in completions]
    assert [one["step"] for one in found] == [1] * 16 + [2] * 16
    items = {item.id for item in workspace.dataset.items}
    assert all(one["entity"] in items and isinstance(one["text"], str) for one in found)
    assert not (logs / "tensorboard" / "r001-query").exists()
    for side in ("query", "item"):
        lines = [
            json.loads(line) for line in (logs / f"r002-{side}.jsonl").read_text().splitlines()
        ]
        events = EventAccumulator(str(logs / "tensorboard" / f"r002-{side}")).Reload()
        assert {
            "reward",
            "reward_std",
            "equal_groups",
            "seconds/rollout",
            "tokens_per_second",
        } <= set(events.Tags()["scalars"])
        for name in ("reward", "loss", "seconds/update"):
            top, _, inner = name.partition("/")
            expected = [line[top][inner] if inner else line[top] for line in lines]
            found = events.Scalars(name)
            assert [event.step for event in found] == [1, 2]
            assert [event.value for event in found] == pytest.approx(expected, rel=1e-6)


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
