"""Model folders of a run: loaded with checks, saved whole or not at all.

A folder's name holds a digest of its content, so that nothing is ever overwritten and damage shows.
Weights are safetensors; nothing is pickled.

Checkpoints inside a training stage are those of its trainer: weights, optimizer, random numbers.
They are removed when the stage is done.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cogr.errors import StorageError, TrainingError
from cogr.prompts import Prompt
from cogr.records import Side
from cogr.settings.training import TrainingSettings
from cogr.store import Store, storage_errors
from indexers.generators.model_folders import (
    digest,
    first_line,
    load_tokenizer,
    load_weights,
    read_json,
    resolve_model,
    with_base,
)
from trainers.training import ranks
from trainers.training.inputs import Inputs, Wrote
from trainers.training.rounds import Run
from trainers.training.step_log import StepLog
from trainers.training.trainer_config import computes_in_bfloat16

log = logging.getLogger(__name__)

_LORA_ALPHA = 32
"""LoRA's alpha. The scale of an adapter is alpha divided by its rank; another alpha would only act
as another learning rate.
"""
_SAVED = re.compile(r".*/runs/[^/]+/models/[^/]+-([0-9a-f]{16})")
"""A folder of `save_model`."""
_WHOLE = "whole"
"""An empty file in a checkpoint that all processes have written."""


def load_model(folder: Path, settings: TrainingSettings | None = None) -> Any:
    """The model, ready to train, in float32; the base of adapters in bfloat16 where training is.
    The folder of an adapter gives its base with that adapter, which goes on learning.

    Raises GeneratorError. Out-of-memory errors pass unchanged.
    """
    import torch

    frozen = settings is not None and settings.lora.rank and computes_in_bfloat16()
    return load_weights(*based(folder), torch.bfloat16 if frozen else torch.float32, learns=True)


def based(folder: Path) -> tuple[Path, Path | None]:
    """A model folder and None, or the base of an adapter and the adapter's folder."""
    base, adapter = with_base(str(folder))
    return (folder, None) if adapter is None else (resolve_model(base), adapter)


def trainable_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder, checked for what training needs.

    One without a chat template is trained on plain text prompts, with a warning.

    Raises GeneratorError, TrainingError.
    """
    declared = read_json(folder / "tokenizer_config.json", f"The model folder {folder}").get(
        "pad_token"
    )
    tokenizer = load_tokenizer(folder)
    for name, there in (("pad_token", declared), ("eos_token", tokenizer.eos_token)):
        if not there:
            raise TrainingError(
                f"The tokenizer of {folder} has no {name}; add it to its tokenizer_config.json "
                "(pad_token: a token that no text contains, not the end of text, which training "
                "has to see)."
            )
    if not tokenizer.chat_template:
        log.warning(
            "The tokenizer of %s has no chat template: the model is trained on plain text prompts.",
            folder,
        )
    return tokenizer


def save_model(run: Run, name: str, write: Callable[[Path], None]) -> str:
    """Save a model folder under the run; returns its path relative to the store.

    Raises:
        StorageError: the disk is full or read-only; nothing of it is kept.
    """
    parent = run.folder("models")
    for left in parent.glob(".tmp-*"):
        shutil.rmtree(left, ignore_errors=True)
    with storage_errors(str(parent)), TemporaryDirectory(prefix=".tmp-", dir=parent) as made:
        temporary = Path(made)
        with _full_disk_named(f"the weights to {parent}"):
            write(temporary)
        for left in temporary.glob("*.bin"):
            left.unlink()
        folder = parent / f"{name}-{digest(temporary)}"
        temporary.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    return f"{run.path}/models/{folder.name}"


@contextmanager
def _full_disk_named(what: str) -> Iterator[None]:
    """Raise StorageError where weights can't be written. On a full disk torch reports that its
    writer failed.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "StreamWriter" not in str(error):
            raise
        raise StorageError(
            f"Can't write {what} ({first_line(error)}); free some space and run the same command "
            "again."
        ) from error


def lora_config(settings: TrainingSettings, base: Path) -> Any:
    """The LoRA configuration; None when all weights are trained, or the adapter of `base` is."""
    if not settings.lora.rank or based(base)[1] is not None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora.rank,
        lora_alpha=_LORA_ALPHA,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


# Inside a stage


def stage_folder(inputs: Inputs, side: Side, prompts: Sequence[Prompt], **more: Any) -> Path:
    """Where the trainer of a stage writes `checkpoint-STEP`: `trainer/STAGE/DIGEST` of the run, the
    digest that of all inputs. After a change of these the stage starts over.
    """
    before = [(done.name, done.output) for done in inputs.round.stages]
    begun_with = repr([inputs.settings.processes, before, sorted(more.items()), prompts])
    named = hashlib.sha256(begun_with.encode("utf-8", "surrogatepass")).hexdigest()
    return inputs.run.folder("trainer") / f"r{inputs.round.number:03d}-{side}" / named[:16]


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint; None where there is none."""
    whole = [file.parent for file in folder.glob(f"checkpoint-*/{_WHOLE}")]
    return max(whole, key=lambda one: int(one.name.rpartition("-")[2]), default=None)


def as_callback(folder: Path, log: StepLog) -> Any:
    """A trainer's callback that passes its steps to a log, marks complete checkpoints and, on
    resuming, advances the sampler to its epoch. TRL's sampler for GRPO draws the order of each
    epoch from one random generator, and the trainer does not repeat the draws of past epochs.
    """
    import torch
    from accelerate.utils import wait_for_everyone
    from transformers import TrainerCallback

    class Callback(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(
            self, _a: Any, state: Any, _c: Any, train_dataloader: Any = None, **_: Any
        ) -> None:
            log.begins(state.max_steps, [one for one in state.log_history if "loss" in one])
            sampler, epoch = train_dataloader, int(state.epoch or 0)
            for name in ("batch_sampler", "sampler"):
                while hasattr(sampler, name):
                    sampler = getattr(sampler, name)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            else:
                for _past in range(epoch):
                    torch.randperm(sampler.num_samples, generator=sampler.generator)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            log.step_begins()

        def on_log(self, _a: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                control.should_training_stop |= log.logged(state.global_step, logs)
                log.keep_completions(folder)

        def on_step_end(self, _a: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step >= state.max_steps:
                control.should_save = False  # The stage saves the model itself.

        def on_save(self, _a: Any, state: Any, _c: Any, **_: Any) -> None:
            wait_for_everyone()  # Every process has written its part.
            if ranks.is_first():
                (folder / f"checkpoint-{state.global_step}" / _WHOLE).touch()

    return Callback()


def train(trainer: Any) -> None:
    """Train, from the last checkpoint of the stage where there is one.

    Raises StorageError when a checkpoint can't be written.
    """
    folder = Path(trainer.args.output_dir)
    checkpoint = last_checkpoint(folder)
    with _full_disk_named(f"a checkpoint to {folder}"):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


# What a stage ends with


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, not yet saved, with the notes of its training."""

    trainer: Any
    notes: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        """Write weights and tokenizer. Weights are float32, of which bfloat16 would lose most of a
        short stage; engines are told to compute in bfloat16 where training does. Of adapters only
        these are written, with the name of their base.
        """
        self.trainer.save_model(str(folder))
        adapter, model = folder / "adapter_config.json", folder / "config.json"
        if adapter.exists():
            config = json.loads(adapter.read_bytes())
            base = Path(config["base_model_name_or_path"])
            if base.parent.resolve() == folder.parent.resolve():
                config["base_model_name_or_path"] = f"../{base.name}"
            adapter.write_text(json.dumps(config, indent=2), "utf-8")
        elif self.trainer.args.bf16:
            config = json.loads(model.read_bytes())
            model.write_text(json.dumps(config | {"dtype": "bfloat16"}, indent=2), "utf-8")

    def take_part(self) -> None:
        """The part of `write` that every process but the first does: where each holds a share of
        the weights, it sends its own.
        """
        if self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled:
            self.trainer.save_model(self.trainer.args.output_dir)


def save_side(inputs: Inputs, side: Side, trained: TrainedModel) -> Wrote:
    """Save a trained model. The first process saves; the others take part where each holds a share
    of the weights.
    """
    if not ranks.is_first():
        trained.take_part()
        return Wrote("", trained.notes)
    path = save_model(inputs.run, f"r{inputs.round.number:03d}-{side}", trained.write)
    shutil.rmtree(inputs.run.folder("trainer"), ignore_errors=True)
    return Wrote(path, trained.notes)


def base_folder(run: Run, output: str) -> Path:
    """The folder of a model that a stage's output names by a path in the store, a folder, or a
    model's name. Raises TrainingError as `saved_folder`, and where a model from outside, on which
    the run or its adapter builds, is another one than at its beginning.
    """
    folder = saved_folder(run.store, output) or resolve_model(output)
    base, _ = based(folder)
    if _SAVED.fullmatch(base.as_posix()):
        return folder
    rounds = run.state().rounds
    made = rounds[0].stage("targets") if rounds else None
    if made and made.notes.get("base") not in (None, digest(base)):
        raise TrainingError(
            f"The model {base} is not the one that the run {run.name} began with; restore the "
            "folder, or begin another run with --run NAME."
        )
    return folder


def saved_folder(store: Store, output: str) -> Path | None:
    """The folder that a stage's output names, in the store or elsewhere; None for a model's name.

    Raises TrainingError where a model that a run saved, or the base of its adapter, is not what its
    name says.
    """
    folder = Path(output) if output.startswith("/") else store.local(output)
    if not folder.is_dir():
        return None
    checked: Path | None = folder
    while checked is not None and (named := _SAVED.fullmatch(checked.as_posix())):
        if digest(checked) != named[1]:
            raise TrainingError(
                f"The model {checked} is not what was saved there: its content has another digest "
                "than its name says; restore the folder, or begin another run with --run NAME."
            )
        base, adapter = with_base(str(checked))
        checked = Path(base) if adapter else None
    return folder
