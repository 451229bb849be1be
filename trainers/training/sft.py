"""SFT of one side by TRL's SFTTrainer: loss on the answer only. Targets are `targets`' business."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.errors import DataError
from cogr.prompts import Prompt
from cogr.settings.training import TrainingSettings
from trainers.training.answers import project_answers_only
from trainers.training.options import (
    context_of,
    lora_config,
    number_formats,
    quiet,
    save_trained,
    sft_batch,
    silence,
)
from trainers.training.prompting import sft_example
from trainers.training.steplog import SftLog
from trainers.training.weights import load_model, trainable_tokenizer


@dataclass(frozen=True)
class SftJob:
    """One side's fine-tuning.

    Attributes:
        base: the model folder that it starts from.
        prompts: of the entities that have a target.
        targets: their keyword sets, aligned with the prompts.
        epochs: passes over them.
        log: step figures go there, as jsonl.
        halvings: how often the micro batch is halved, after running out of memory.
    """

    base: Path
    prompts: Sequence[Prompt]
    targets: Sequence[Sequence[str]]
    epochs: float
    log: Path
    halvings: int
    settings: TrainingSettings


@dataclass(frozen=True)
class Trained:
    """A trained model, not yet saved: `write` writes weights and tokenizer into a folder."""

    trainer: Any
    notes: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        """Weights as safetensors, tokenizer and configuration."""
        save_trained(self.trainer, folder)


def run_sft(job: SftJob) -> Trained:
    """Train and return the model.

    Raises:
        TrainingError: the loss is no number, batches that don't divide.
        DataError: every example is longer than the model's context.
    """
    from datasets import Dataset
    from trl import SFTTrainer

    quiet()
    tokenizer = trainable_tokenizer(job.base, job.settings)
    examples, too_long = _examples(job, tokenizer)
    log = SftLog(job.log, job.settings.tensorboard)
    trainer = SFTTrainer(
        model=load_model(job.base),
        args=_config(job, len(examples)),
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
        peft_config=lora_config(job.settings),
        callbacks=[log],
    )
    silence(trainer)
    project_answers_only(trainer.model)
    with log:
        trainer.train()
    return Trained(trainer, {"examples": len(examples), "too_long": too_long, **log.notes})


def _examples(job: SftJob, tokenizer: Any) -> tuple[list[Mapping[str, list[int]]], int]:
    context = context_of(job.base)
    made = [
        sft_example(p, words, tokenizer, context)
        for p, words in zip(job.prompts, job.targets, strict=True)
    ]
    kept = [example for example in made if example is not None]
    if not kept:
        raise DataError(
            f"No prompt and target fit into the {context:,} tokens of {job.base.name}; lower "
            "prompts.description_tokens."
        )
    return kept, len(made) - len(kept)


def _config(job: SftJob, examples: int) -> Any:
    from trl import SFTConfig

    settings, sft = job.settings, job.settings.sft
    batch = sft_batch(sft, examples, settings.processes, job.halvings)
    steps = math.ceil(examples / (batch.accumulate * batch.micro * settings.processes)) * job.epochs
    return SFTConfig(
        output_dir=str(job.log.parent / "trainer"),
        per_device_train_batch_size=batch.micro,
        gradient_accumulation_steps=batch.accumulate,
        num_train_epochs=job.epochs,
        learning_rate=sft.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=max(1, round(0.1 * steps)),
        weight_decay=0.01,
        max_length=None,
        completion_only_loss=True,
        seed=settings.seed,
        **number_formats(settings),
    )
