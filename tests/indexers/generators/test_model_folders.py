"""Model folders: what is refused and how it is said, digests, prompts as tokens, the
small models.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import GeneratorError
from cogr.prompts import Prompt
from cogr.records import Query
from indexers.generators import Completion, Request, make_generator
from indexers.generators import model_folders as models
from tests.indexers.generators.test_generator_contract import IN_CHILD, tiny_adapter

# The smallest safetensors file: one float32.
HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + b"\0\0\0\0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a model from outside."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 128}')
    (made / "tokenizer.json").write_text("{}")
    (made / "model.safetensors").write_bytes(WEIGHTS)
    return made


def test_adapters_are_checked(tmp_path: Path) -> None:
    config = tmp_path / "adapter_config.json"
    with pytest.raises(GeneratorError, match=r"has no adapter_config\.json"):
        models.check_adapter(tmp_path)
    config.write_text("[]")
    with pytest.raises(GeneratorError, match="holds no JSON object"):
        models.check_adapter(tmp_path)
    for kind in ("PROMPT_TUNING", "LORA"):
        config.write_text(json.dumps({"peft_type": kind, "base_model_name_or_path": "a/base"}))
        said = rf"a {kind}, can't be used; .* weights in adapter_model\.safetensors"
        with pytest.raises(GeneratorError, match=said):
            models.check_adapter(tmp_path)
    with pytest.raises(GeneratorError, match="adapter of a/base"):
        models.resolve_model(str(tmp_path))


def test_an_adapter_names_its_base(folder: Path, tmp_path: Path) -> None:
    assert models.with_base(str(folder)) == (str(folder), None)
    assert models.with_base("somebody/base") == ("somebody/base", None)
    config = tmp_path / "adapter_config.json"
    config.write_text('{"peft_type": "LORA", "base_model_name_or_path": "somebody/base"}')
    assert models.with_base(str(tmp_path)) == ("somebody/base", tmp_path)
    config.write_text('{"peft_type": "LORA"}')
    with pytest.raises(GeneratorError, match="base"):
        models.with_base(str(tmp_path))


def test_digest_goes_by_content(folder: Path, tmp_path: Path) -> None:
    first = models.digest(folder)
    elsewhere = Path(shutil.copytree(folder, tmp_path / "moved"))
    assert models.digest(elsewhere) == first
    (elsewhere / "README.md").write_text("not read by the model")
    assert models.digest(elsewhere) == first
    (elsewhere / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"\1")
    assert models.digest(elsewhere) != first


@pytest.mark.torch
def test_context_length(folder: Path) -> None:
    assert models.context_length(folder) == 128
    # Where a configuration leaves it out, as those of Gemma 3 do, transformers knows it.
    for kind, known in (("gemma3_text", 131_072), ("llama", 2048), ("mistral", 4096 * 32)):
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        assert models.context_length(folder) == known
    text = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2}
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(whole))
    assert models.context_length(folder) == 131_072
    for bad in ('{"model_type": "mamba"}', '{"model_type": "x"}', "{}", "{", "[]"):
        (folder / "config.json").write_text(bad)
        with pytest.raises(GeneratorError, match=re.escape(str(folder))) as raised:
            models.context_length(folder)
        assert "\n" not in str(raised.value)


@pytest.mark.model
@pytest.mark.parametrize("more", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_that_vllm_refuses_is_named_with_what_loads_it(
    more: dict[str, Any], tiny: Path, tmp_path: Path
) -> None:
    adapter = tiny_adapter(tiny, tmp_path / "adapter", **more)
    options = {"kind": IN_CHILD or "transformers", "model": str(tiny), "adapter": adapter}
    asked = [Request("q", Query("q", "sofa"), Prompt("", "sofa"))]
    with make_generator(options, "query") as made:
        if IN_CHILD is None:
            assert isinstance(next(made.generate(asked)), Completion)
            return
        with pytest.raises(
            GeneratorError, match=r'vLLM .*generator\.name = "transformers"'
        ) as raised:
            list(made.generate(asked))
    assert str(adapter) in str(raised.value)
    assert "\n" not in str(raised.value)


def _halved(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _dangling(file: Path) -> None:
    file.unlink()
    file.symlink_to("gone")


def _configured(**changes: Any) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


LARGER = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
DAMAGED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "half of the weights": ("model.safetensors", _halved, "can't be loaded"),
    "no content": ("model.safetensors", Path.touch, "can't be loaded"),
    "weights that the hub's cache lost": ("model.safetensors", _dangling, "has no weights"),
    "a larger model's configuration": (
        "config.json",
        _configured(**LARGER),
        r"lacks weights, such as model\.layers\.2\.",
    ),
    "a configuration of other types": ("config.json", _configured(hidden_size=None), "loaded"),
    "half of a tokenizer": ("tokenizer.json", _halved, "The tokenizer in .* can't be loaded"),
    "a tokenizer of no version": ("tokenizer.json", _configured(version=None), "can't be loaded"),
    "half of a chat template": (
        "chat_template.jinja",
        _halved,
        "The chat template in .* can't be used",
    ),
    "an adapter of more layers": (
        "adapter/adapter_config.json",
        _configured(target_modules=["q_proj", "v_proj", "o_proj"]),
        r"with the adapter .* lacks weights, such as .*o_proj",
    ),
    "half of an adapter": ("adapter/adapter_model.safetensors", _halved, "can't be loaded"),
}


@pytest.mark.model
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_or_mixed_model_is_one_sentence(damage: str, tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "model")
    options = {"kind": "transformers", "model": str(folder), "sampling": {"max_tokens": 4}}
    name, spoil, said = DAMAGED[damage]
    if "adapter" in damage:
        options["adapter"] = tiny_adapter(tiny, folder / "adapter")
    if damage == "no content":
        (folder / name).unlink()
    spoil(folder / name)
    with pytest.raises(GeneratorError, match=said) as raised:
        with make_generator(options, "query") as made:
            list(made.generate([Request("q", Query("q", "sofa"), Prompt("", "sofa"))]))
    assert "\n" not in str(raised.value)


@pytest.mark.model
def test_no_memory_is_taken_for_a_larger_models_weights(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that are lacking, and parts that are larger: 64 GB of them."""
    from transformers import AutoModelForCausalLM

    real, devices = AutoModelForCausalLM.from_pretrained, list[Any]()

    def noted(*given: Any, **named: Any) -> Any:
        devices.append(named.get("device_map"))
        return real(*given, **named)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", noted)
    folder = shutil.copytree(tiny, tmp_path / "model")
    for change in (LARGER, {"intermediate_size": 2**27}):
        shutil.copy(tiny / "config.json", folder)
        _configured(**change)(folder / "config.json")
        with pytest.raises(GeneratorError, match=re.escape(str(folder))):
            models.load_weights(folder, None, "float32")
    assert devices == ["meta", "meta"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "option", "said"),
    [
        ("vllm", {"engine": {"load_format": "pt"}}, "engine: load_format"),
        *(
            ("vllm", {"engine": {"max_model_len": length}}, "engine: max_model_len must be")
            for length in (-1, "16k", "auto")
        ),
        ("openai", {"base_url": "localhost:8000"}, "base_url: it is not a URL; write it as http"),
        ("transformers", {"sampling": {"top_p": 0}}, r"sampling\.top_p"),
    ],
)
def test_wrong_options_are_one_sentence(kind: str, option: dict[str, Any], said: str) -> None:
    with pytest.raises(GeneratorError, match=f"{kind} can't use its option {said}") as raised:
        make_generator({"kind": kind, "model": "m/m", **option}, "item")
    assert "\n" not in str(raised.value)
