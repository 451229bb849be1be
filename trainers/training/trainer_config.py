"""The set-up of training: checks before anything is loaded, the batches of a step, and the
configurations of TRL's trainers.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.errors import SettingsError, TrainingError, require
from cogr.rewards import load_reward
from cogr.settings.training import GrpoSettings, ItemsFrom, TrainingSettings
from indexers.generators.model_folders import without_bars
from indexers.workspace import Workspace
from trainers.training.rounds import with_dev

GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
VLLM_SHARE = 0.3
"""Share of a GPU's memory that vLLM takes beside training."""
COMPLETIONS_AT_ONCE = 8
"""Completions (examples) that a process computes at once, as TRL has it."""

# What is refused


def check_settings(workspace: Workspace) -> None:
    """Refuse a configuration that can't train. Raises TrainingError, SettingsError, StorageError,
    DataError or MissingExtraError, one sentence each.
    """
    training, k_max = workspace.settings.training, workspace.settings.keywords.k_max
    require("Training", "train", "torch", "transformers", "trl")
    if training.accelerate and not Path(training.accelerate).is_file():
        raise SettingsError(
            f"There is no file {training.accelerate}; correct training.accelerate or unset it."
        )
    _check_gpus(training)
    workspace.store.local("runs")
    if k_max < training.sft.item_keywords:
        raise TrainingError(
            f"keywords.k_max is {k_max}, below the {training.sft.item_keywords} keywords of "
            "training.sft.item_keywords (M); raise the one or lower the other."
        )
    items_from(training)
    queries = with_dev(workspace).dataset.require("train")
    sizes = {"query": len(queries), "item": len(workspace.dataset.items)}
    for side, settings in (("query", training.query), ("item", training.item)):
        load_reward(settings.reward)
        sft_step(training, sizes[side])
        try:
            grpo_step(settings, sizes[side], training)
        except TrainingError as error:
            raise TrainingError(f"training.{side}: {error}") from None


def _check_gpus(settings: TrainingSettings) -> None:
    by = f'training.rollouts.by is "{settings.rollouts.by}"'
    if settings.index_by == "vllm" and importlib.util.find_spec("vllm") is None:
        raise SettingsError(f"{by}, but vLLM is not installed; run pip install 'cogr[vllm]'.")
    if settings.index_by == "vllm" and not has_gpu():
        raise SettingsError(f'{by}, which needs a GPU; without one set it to "transformers".')
    if 0 < (gpus := len([*Path("/dev").glob("nvidia[0-9]*")])) < settings.processes:
        raise SettingsError(
            f"training.processes is {settings.processes}, but this machine has {gpus} GPUs; set it "
            f"to {gpus}."
        )


def has_gpu() -> bool:
    """Whether a GPU's driver is here; torch need not be imported for it."""
    return any(device.exists() for device in GPU_DEVICES)


def items_from(settings: TrainingSettings) -> ItemsFrom:
    """The writer of the first item keywords."""
    if (source := settings.sft.items_from) == "auto":
        source = "labels" if settings.model == "tiny" else "self"
    elif source == "self" and settings.model == "tiny":
        raise SettingsError(
            'training.sft.items_from is "self", but the model tiny can\'t write keywords before it '
            'is trained; set it to "labels", "extractive" or "statistical".'
        )
    return source


# How a step is shared out


@dataclass(frozen=True)
class Batch:
    """How a process computes its share of an optimizer step.

    Attributes:
        micro: completions (examples) at once.
        again: activations are computed again instead of kept (gradient checkpointing).
    """

    micro: int
    accumulate: int
    again: bool

    @classmethod
    def of(cls, settings: TrainingSettings, share: int, retries: int = 0) -> Batch:
        """The largest divisor of a process's share of a step up to `COMPLETIONS_AT_ONCE`; all of it
        for `tiny`.

        Args:
            retries: how often memory ran out: at first activations are computed again, which takes
                a third more time, then each time half as many are computed at once.
        """
        most = share if settings.model == "tiny" else COMPLETIONS_AT_ONCE
        most = max(1, most >> max(0, retries - 1))
        micro = next(size for size in range(min(share, most), 0, -1) if share % size == 0)
        return cls(micro, share // micro, retries > 0)


def grpo_step(side: GrpoSettings, entities: int, settings: TrainingSettings) -> int:
    """Completions of a step of one process. With fewer entities than prompts_per_step every step
    takes as many as the processes can share.

    Raises TrainingError for completions that the processes can't share.
    """
    generations, processes = settings.rollouts.generations, settings.processes
    least = processes // math.gcd(generations, processes)
    prompts = min(side.prompts_per_step, entities)
    if prompts < side.prompts_per_step:
        prompts -= prompts % least
    completions = prompts * generations
    if not completions or completions % processes:
        raise TrainingError(
            f"{completions or min(side.prompts_per_step, entities) * generations} completions a "
            f"step can't be shared by {processes} processes; make prompts_per_step a multiple of "
            f"{least}, or train with fewer processes."
        )
    return completions // processes


def sft_step(settings: TrainingSettings, examples: int) -> int:
    """Examples of a step of one process. With fewer examples than batch_size every step takes them
    all.

    Raises TrainingError for a batch that the processes can't share.
    """
    sft, processes = settings.sft, settings.processes
    if sft.batch_size % processes:
        raise TrainingError(
            f"training.sft.batch_size is {sft.batch_size}, which {processes} processes can't "
            f"share; make it a multiple of {processes}, or lower training.processes."
        )
    return max(1, min(sft.batch_size, examples) // processes)


# Configurations of the trainers


def sft_config(
    settings: TrainingSettings, epochs: float, batch: Batch, examples: int, output: Path
) -> Any:
    """The configuration of SFTTrainer: loss on the answer, a linear schedule after a tenth of
    warm-up.
    """
    from trl import SFTConfig

    steps = math.ceil(examples / (batch.accumulate * batch.micro * settings.processes)) * epochs
    return SFTConfig(
        output_dir=str(output),
        per_device_train_batch_size=batch.micro,
        gradient_accumulation_steps=batch.accumulate,
        num_train_epochs=epochs,
        learning_rate=settings.sft.learning_rate * _times(settings),
        lr_scheduler_type="linear",
        warmup_steps=max(1, round(0.1 * steps)),
        weight_decay=0.01,
        max_length=None,
        completion_only_loss=True,
        # A step's examples are sorted by length into its micro batches, of which tiny has one.
        train_sampling_strategy="random" if settings.model == "tiny" else "batch_rebalance",
        seed=settings.seed,
        **_formats(settings, batch),
    )


LORA_TIMES = 10.0
"""Factor on the learning rate in the settings, which is that of full weights, for adapters."""

REWARD_WEIGHT = 100.0
"""Rewards are multiplied by it before advantages are computed. TRL divides by std + 1e-4, verl by
std + 1e-6; a weight of 100 makes them the same. Item rewards have a spread of 1e-4 to 1e-3.
"""


def grpo_config(
    side: GrpoSettings,
    settings: TrainingSettings,
    batch: Batch,
    output: Path,
    seed: int,
    max_model_len: int | None = None,
) -> Any:
    """The configuration of GRPOTrainer: the paper's verl settings (its appendix B) in TRL's words.

    One optimizer step on each batch of fresh rollouts (num_iterations 1), no KL term,
    token-mean loss (dapo), advantages normalised in the group, constant learning rate.
    """
    from trl import GRPOConfig

    rollouts = settings.rollouts
    return GRPOConfig(
        output_dir=str(output),
        per_device_train_batch_size=batch.micro,
        gradient_accumulation_steps=batch.accumulate,
        num_generations=rollouts.generations,
        num_train_epochs=side.epochs,
        max_steps=side.max_steps or -1,
        learning_rate=side.learning_rate * _times(settings),
        lr_scheduler_type="constant",
        num_iterations=1,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="group",
        reward_weights=[REWARD_WEIGHT],
        # Of the plain distribution: temperature 1, nothing cut off.
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_completion_length=rollouts.max_tokens,
        chat_template_kwargs={"enable_thinking": False},
        log_completions=True,
        num_completions_to_print=0,
        seed=seed,
        use_vllm=rollouts.by == "vllm-colocate",
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=VLLM_SHARE,
        vllm_max_model_length=max_model_len,
        vllm_enable_sleep_mode=True,
        **_formats(settings, batch),
    )


def _times(settings: TrainingSettings) -> float:
    return LORA_TIMES if settings.lora.rank else 1.0


def computes_in_bfloat16() -> bool:
    """Whether a trainer computes in bfloat16 here: on GPUs that have it."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_bf16_supported())


def _formats(settings: TrainingSettings, batch: Batch) -> dict[str, Any]:
    import torch

    gpu = torch.cuda.is_available()
    return {
        "bf16": computes_in_bfloat16(),
        "use_cpu": not gpu,
        "gradient_checkpointing": batch.again,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "dataloader_pin_memory": gpu,
        "ddp_find_unused_parameters": False,
        "save_strategy": "steps" if settings.save_steps else "no",
        "save_steps": max(1, settings.save_steps),
        "save_total_limit": 2,  # The previous checkpoint stays until the new one is complete.
        "report_to": [],
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }


def set_up(seed: int) -> None:
    """Prepare this process for a trainer: no progress bars of other libraries, only answers scored
    where there is no GPU, and seeded random numbers.
    """
    import datasets
    from transformers import set_seed

    datasets.disable_progress_bars()
    without_bars()
    score_answers_only()
    set_seed(seed)


def score_answers_only() -> None:
    """Override TRL's code where there is no GPU: score the answers alone.

    TRL does so where its Triton kernel runs. Elsewhere it projects every position onto the
    vocabulary, prompts and padding too, which is most of a small model's work on a CPU. It has no
    option for it, so its private check of the device is replaced; a TRL without that check is left
    as it is, and is slower. Losses and gradients are the same.
    """
    import torch
    from trl.trainer import utils

    if not torch.cuda.is_available() and hasattr(utils, "_use_triton"):
        utils._use_triton = lambda _: True


def silence(trainer: Any) -> None:
    """Remove the callback that prints every step; the step log has the steps."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
