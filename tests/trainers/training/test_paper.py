"""The paper's configurations: they hold its numbers, and they run with a small stand-in of the same
architecture.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cogr.settings import load_settings
from indexers.workspace import Workspace
from tests.commands import Command
from tests.shops import write_sample_part
from tests.trainers.shop import InThisProcess
from trainers.tiny import texts_of, tiny_tokenizer
from trainers.training.driver import Driver
from trainers.training.rounds import create, frozen_settings

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
    assert (settings.keywords.k_max, training.sft.item_keywords, training.sft.query_keywords) == (
        30,
        10,
        15,
    )
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


@pytest.mark.parametrize("example", [*PAPER, *MACHINES], ids=lambda path: path.stem)
def test_the_paper_configurations_begin_a_run_as_they_are(
    example: Path, tmp_path: Path, cogr_train: Command
) -> None:
    shop = write_sample_part(tmp_path / "shop").parent
    only_data = [f'dataset.path="{shop / "data"}"', 'dataset.loader="jsonl"', f'store="{tmp_path}"']
    asked = [part for one in only_data for part in ("--set", one)]
    ended = cogr_train("run", "--dry-run", "--json", "-c", example, *asked)
    refused = [one for one in ended.json["refused"] if not re.search("vLLM|GPU|process", one)]
    assert refused == [], ended.err


def write_stand_in(folder: Path, workspace: Workspace) -> None:
    """A Qwen3 with random weights and a tokenizer of the shop's words."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = tiny_tokenizer(texts_of(workspace.dataset))
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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
    write_stand_in(tmp_path / "model", workspace)
    driver = Driver(workspace, create(workspace), InThisProcess(PAPER[0], own), print)
    driver.reach(0)
    done = driver.reach(1)
    assert done.verdict == "accepted"
    trained = done.stage("train-query")
    assert trained.notes["steps"] == 2
    accepted = done.stage("accept-items")
    assert accepted.notes["accepted"] == accepted.notes["moved"]
