"""Adapters that LoRA training wrote: what they keep, and how they write keywords."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from cogr.settings.training import TrainingSettings
from tests.commands import Command
from tests.shops import write_sample_part
from tests.trainers.shop import Shop
from trainers.tiny import tiny_model
from trainers.training.checkpoints import TrainedModel, load_model, lora_config

pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A configuration, the adapter that two stages of LoRA trained, and the query snapshot that it
    wrote in its run.
    """
    config = write_sample_part(tmp_path_factory.mktemp("lora"), items=40)
    driver = Shop(config).driver("main", "training.lora.rank=4")
    done = driver.reach(1)
    return config, driver.run.store.local(done.model("query")), done.queries


def test_an_adapter_goes_on_learning_and_names_its_base(adapted: tuple[Path, Path, str]) -> None:
    _, model, _ = adapted
    names = {file.name for file in model.iterdir()}
    assert {"adapter_model.safetensors", "tokenizer.json"} <= names
    assert not any(name.startswith("model") or name.endswith(".bin") for name in names)
    config = json.loads((model / "adapter_config.json").read_text())
    assert (model / config["base_model_name_or_path"] / "model.safetensors").is_file()


def test_a_small_step_survives_being_saved_on_a_bfloat16_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged into bfloat16 weights it would be rounded away."""
    import torch
    from peft import get_peft_model

    base = tmp_path / "base"
    tiny_model(base, ["oak table", "pine desk"], 0)
    monkeypatch.setattr("trainers.training.checkpoints.computes_in_bfloat16", lambda: True)
    settings = TrainingSettings.model_validate({"lora": {"rank": 64}})
    model = get_peft_model(load_model(base, settings), lora_config(settings, base))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=1e-6)
    step = {name: w.detach().clone() for name, w in model.named_parameters() if "lora_" in name}
    trainer = SimpleNamespace(save_model=model.save_pretrained, args=SimpleNamespace(bf16=True))
    TrainedModel(trainer, {}).write(tmp_path / "adapter")
    again = dict(load_model(tmp_path / "adapter", settings).named_parameters())
    for name, weight in step.items():
        lost = (again[name] - weight).norm() / weight.norm()
        assert lost < 0.02, name
        assert again[name].requires_grad
    assert lora_config(settings, tmp_path / "adapter") is None


def test_transformers_loads_an_adapter(
    adapted: tuple[Path, Path, str], tmp_path: Path, cogr_index: Command
) -> None:
    config, model, written = adapted
    ended = cogr_index(
        "rebuild", "--side", "query", "--generator", "transformers", "--json", "--no-push",
        "-c", config, "--set", f"generator.model={model}", "--set", f"store={tmp_path}",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    assert ended.json["snapshot"].rpartition("-")[2] == written.rpartition("-")[2]
