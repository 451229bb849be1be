"""Model folders of a run: loaded with checks, saved whole or not at all, with a model card and the
sha256 of every file.

A folder's name holds a digest of its content, so that nothing is ever overwritten. Weights are
safetensors; nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cogr.errors import GeneratorError, StorageError, TrainingError
from cogr.records import Side
from cogr.settings.training import TrainingSettings
from cogr.store import storage_errors
from indexers.generators.model_folders import (
    LocalModelOptions,
    context_length,
    digest,
    first_line,
    load_tokenizer,
    read_json,
    resolve_model,
)
from trainers.training.inputs import Inputs, Wrote
from trainers.training.run_folder import Run
from trainers.training.trainer_config import is_out_of_memory

log = logging.getLogger(__name__)

_SUMS = "sha256.json"
_LORA_ALPHA = 32
"""Scale of an adapter, divided by its rank: the learning rate does what another one would."""
_SUMMED = TypeAdapter(dict[str, str])


def load_model(folder: Path) -> Any:
    """The model in float32, ready to train.

    Raises GeneratorError; lets pass what is out of memory.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise GeneratorError(
            f"The model {folder} can't be loaded ({first_line(error)})."
        ) from error


def trainable_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder, checked for what training needs.

    One without a chat template is trained on plain text prompts, with a warning.

    Raises GeneratorError, TrainingError.
    """
    declared = read_json(folder / "tokenizer_config.json", f"The model folder {folder}").get(
        "pad_token"
    )
    tokenizer = load_tokenizer(folder)
    if not declared:
        raise TrainingError(
            f"The tokenizer of {folder} has no padding token; add pad_token to its "
            "tokenizer_config.json (a token that no text contains, not the end of text, which "
            "training has to see)."
        )
    if tokenizer.eos_token_id is None:
        raise TrainingError(
            f"The tokenizer of {folder} has no end-of-text token; add eos_token to its "
            "configuration."
        )
    if not tokenizer.chat_template:
        log.warning(
            "The tokenizer of %s has no chat template: the model is trained on plain text prompts.",
            folder,
        )
    return tokenizer


def save_model(run: Run, name: str, write: Callable[[Path], None], card: Mapping[str, Any]) -> str:
    """Save a model folder under the run; returns its path relative to the store.

    Args:
        run: whose it is.
        name: beginning of the folder's name, such as r001-query.
        write: writes weights and tokenizer into the folder that it gets.
        card: what the model card says besides.

    Raises:
        StorageError: the disk is full or read-only; nothing of it is kept.
    """
    parent = run.folder("models")
    for left in parent.glob(".tmp-*"):
        shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=parent))
    try:
        with storage_errors(str(parent)):
            _write_checked(write, temporary)
            for left in temporary.glob("*.bin"):
                left.unlink()
            (temporary / "README.md").write_text(_card(name, card), "utf-8")
            sums = {
                file.name: _sha256(file) for file in sorted(temporary.iterdir()) if file.is_file()
            }
            folder = parent / f"{name}-{digest(temporary)}"
            (temporary / _SUMS).write_text(json.dumps(sums, indent=1))
            temporary.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return f"{run.path}/models/{folder.name}"


def _write_checked(write: Callable[[Path], None], folder: Path) -> None:
    from safetensors import SafetensorError

    try:
        write(folder)
    except SafetensorError as error:
        raise StorageError(
            f"Can't write the weights to {folder.parent} ({first_line(error)}); free some space "
            "and run the same command again."
        ) from error


def check_model(run: Run, path: str) -> None:
    """Compare a saved model folder with its sums.

    Raises TrainingError when it is missing or differs.
    """
    folder = run.store.local(path)
    try:
        sums = _SUMMED.validate_json((folder / _SUMS).read_bytes())
        here = {file.name for file in folder.iterdir()} - {_SUMS}
        wrong = sorted(here ^ sums.keys()) or [
            name for name, sha in sums.items() if _sha256(folder / name) != sha
        ]
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"The checkpoint {folder} is missing or incomplete ({first_line(error)})."
        ) from error
    if wrong:
        raise TrainingError(
            f"The checkpoint {folder} is broken: {wrong[0]} does not match its sha256."
        )


def context_of(folder: Path) -> int:
    """Tokens that the model reads, prompt and completion together."""
    return context_length(folder, LocalModelOptions(model=str(folder)))


def lora_config(settings: TrainingSettings) -> Any:
    """The LoRA configuration, or None when all weights are trained."""
    if not settings.lora.rank:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora.rank,
        lora_alpha=_LORA_ALPHA,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


@dataclass(frozen=True)
class Trained:
    """A trained model, not yet saved, with the notes of its training."""

    trainer: Any
    notes: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        """Write weights and tokenizer; adapters are merged, so that every engine loads the folder
        as it is.
        """
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        if hasattr(model, "merge_and_unload"):
            model.merge_and_unload().save_pretrained(folder)
            self.trainer.processing_class.save_pretrained(folder)
            return
        self.trainer.save_model(str(folder))


def save_side(inputs: Inputs, side: Side, trained: Trained) -> Wrote:
    """Save what was trained, with a model card that says from what."""
    against = (
        ""
        if not inputs.round.number
        else inputs.before.items
        if side == "query"
        else inputs.round.queries
    )
    card = {
        "side": side,
        "round": inputs.round.number,
        "run": inputs.run.name,
        "data set": inputs.workspace.dataset.dataset_hash,
        "prompt": inputs.workspace.settings.prompts.template(side).hash,
        "trained against": against or "targets of algorithm 1",
        "figures": trained.notes,
        "settings": inputs.settings.model_dump(mode="json"),
    }
    path = save_model(inputs.run, f"r{inputs.round.number:03d}-{side}", trained.write, card)
    return Wrote(path, trained.notes)


def base_folder(run: Run, output: str) -> Path:
    """The folder of a model as a stage's output names it: a path in the store, a folder, or a
    model's name.
    """
    inside = run.store.local(output) if not output.startswith("/") else Path(output)
    return inside if inside.is_dir() else resolve_model(output)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _card(name: str, card: Mapping[str, Any]) -> str:
    facts = "\n".join(f"| {key} | {_cell(value)} |" for key, value in card.items())
    return (
        "---\nlibrary_name: transformers\ntags: [cogr, keyword-generation, retrieval]\n---\n"
        f"# {name}\n\nA keyword generator of co-evolving generative retrieval: it writes the "
        "keywords of one side, "
        "to be matched with those of the snapshot named below.\n\n| what | value |\n|---|---|\n"
        f"{facts}\n"
    )


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("|", "\\|").replace("\n", " ")
