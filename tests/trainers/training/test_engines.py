"""Models as training finds and leaves them: adapters, tokenizers, a lack of memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from cogr.errors import TrainingError
from cogr.settings.training import TrainingSettings
from cogr.snapshots import open_snapshot
from indexers.generators.model_folders import is_out_of_memory
from tests.shops import write_sample_part
from tests.trainers.shop import Shop
from trainers.tiny import tiny_model
from trainers.training import stage
from trainers.training.checkpoints import (
    TrainedModel,
    load_model,
    lora_config,
    trainable_tokenizer,
)
from trainers.training.inputs import Inputs, Wrote

pytestmark = [pytest.mark.slow, pytest.mark.model]


class EnoughError(Exception):
    """What a test asks of a round is there."""


def test_an_adapter_goes_on_learning_writes_keywords_and_names_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Shop(write_sample_part(tmp_path, items=40)).driver("main", "training.lora.rank=4")
    driver.reach(0)

    def enough(_: Inputs) -> Wrote:
        raise EnoughError

    monkeypatch.setitem(stage.WORK, "train-item", enough)  # type: ignore[arg-type]
    with pytest.raises(EnoughError):
        driver.reach(1)
    (_, learned) = driver.run.state().rounds
    assert open_snapshot(driver.run.store, learned.queries).manifest.keywords > 0
    model = driver.run.store.local(learned.model("query"))
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


def untrained(shop: Shop, folder: Path, key: str) -> Path:
    """A copy of the untrained model of the shop, whose tokenizer lacks something."""
    (base,) = (shop.config.parent / "store/runs/main/models").glob("base-*")
    shutil.copytree(base, folder)
    (folder / f"{key}.jinja").unlink(missing_ok=True)
    file = folder / "tokenizer_config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if k != key}
    file.write_text(json.dumps(config))
    return folder


def test_a_model_without_padding_is_refused(trained: Shop, tmp_path: Path) -> None:
    model = untrained(trained, tmp_path / "model", "pad_token")
    with pytest.raises(TrainingError, match="pad_token"):
        trainable_tokenizer(model)


def test_a_model_without_a_chat_template_is_trained_on_plain_text_with_a_warning(
    trained: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = untrained(trained, tmp_path / "model", "chat_template")
    assert not trainable_tokenizer(model).chat_template
    assert "has no chat template" in caplog.text


def test_torch_names_a_lack_of_memory_as_it_is_expected() -> None:
    import torch

    with pytest.raises(RuntimeError) as found:
        torch.empty(1 << 55, dtype=torch.uint8)
    assert is_out_of_memory(found.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
