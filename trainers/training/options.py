"""What both kinds of training set up alike: number formats, what a trainer may write,
LoRA, saving.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.errors import TrainingError
from cogr.settings.training import GrpoSettings, SftSettings, TrainingSettings
from indexers.generators.model_folders import LocalModelOptions, context_length, without_bars


def hide_vllm() -> None:
    """Keep TRL from importing vLLM, which it does wherever it is installed; a third of its import
    time.

    Only for stages whose rollouts are not vLLM's. Must be called before TRL is imported.
    """
    if "vllm" not in sys.modules:
        sys.modules["vllm"] = None  # type: ignore[assignment]


def is_out_of_memory(error: BaseException) -> bool:
    """True for the errors by which Python and torch say that memory, of GPU or machine,
    is used up.
    """
    text = str(error).lower()
    return (
        isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text
    )


def number_formats(settings: TrainingSettings) -> dict[str, Any]:
    """Arguments of a trainer's configuration that depend on the device and on what it may write."""
    import torch

    gpu = torch.cuda.is_available()
    wanted = settings.dtype == "bfloat16" or (
        settings.dtype == "auto" and gpu and torch.cuda.is_bf16_supported()
    )
    return {
        "bf16": wanted,
        "use_cpu": not gpu,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "dataloader_pin_memory": gpu,
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }


def quiet() -> None:
    """Keep transformers, datasets and TRL from writing bars and tables between our own lines."""
    import datasets

    datasets.disable_progress_bars()
    without_bars()


def silence(trainer: Any) -> None:
    """Take out the callback that prints every step; the step log has them."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)


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
        lora_alpha=settings.lora.alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def save_trained(trainer: Any, folder: Path) -> None:
    """Weights and tokenizer; adapters are merged, so that every engine loads the folder
    as it is.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "merge_and_unload"):
        model.merge_and_unload().save_pretrained(folder)
        trainer.processing_class.save_pretrained(folder)
        return
    trainer.save_model(str(folder))


@dataclass(frozen=True)
class Batch:
    """One optimizer step.

    Attributes:
        prompts: entities, or examples of SFT.
        micro: completions, or examples, that a device computes at once.
        accumulate: passes of so many that make the step.
    """

    prompts: int
    micro: int
    accumulate: int


def grpo_batch(
    side: GrpoSettings, entities: int, generations: int, processes: int, halvings: int = 0
) -> Batch:
    """How a step is shared out.

    With fewer entities than prompts_per_step every step takes them all, in the largest micro batch
    that divides them.

    Raises:
        TrainingError: a group of one, or a micro batch that does not divide the step; names the
            nearest that do.
    """
    if generations < 2:
        raise TrainingError(
            f"training.rollouts.generations is {generations}, but GRPO compares the completions "
            "of one prompt; set 2 or more."
        )
    prompts = min(side.prompts_per_step, entities)
    completions = prompts * generations
    good = [
        size
        for size in range(1, completions // processes + 1)
        if completions % (size * processes) == 0
    ]
    if not good:
        raise TrainingError(
            f"{completions} completions a step can't be shared by {processes} processes; "
            f"make prompts_per_step a multiple of {processes}."
        )
    micro = min(side.micro_batch, completions // processes)
    if micro not in good and prompts == side.prompts_per_step:
        below, above = (
            max(size for size in good if size < micro),
            min(size for size in good if size > micro),
        )
        raise TrainingError(
            f"micro_batch is {side.micro_batch}, which does not divide the {completions} "
            "completions of a step "
            f"(prompts_per_step x generations) on {processes} processes; the nearest that do are "
            f"{below} and {above}."
        )
    micro = max(size for size in good if size <= max(1, micro >> halvings))
    return Batch(prompts, micro, completions // (micro * processes))


def sft_batch(sft: SftSettings, examples: int, processes: int, halvings: int = 0) -> Batch:
    """How a step of SFT is shared out; with fewer examples than batch_size every step takes them
    all.

    Raises:
        TrainingError: a batch that is no multiple of what all processes compute at once; names the
            nearest that are.
    """
    batch = min(sft.batch_size, examples)
    micro = min(sft.micro_batch, batch)
    at_once = micro * processes
    if batch % at_once and examples >= sft.batch_size:
        raise TrainingError(
            f"training.sft.batch_size is {batch}, which is no multiple of micro_batch times "
            f"processes ({at_once}); "
            f"the nearest are {batch // at_once * at_once or at_once} and "
            f"{(batch // at_once + 1) * at_once}."
        )
    halved = max(1, micro >> halvings)
    micro = max(size for size in range(1, halved + 1) if micro % size == 0)
    return Batch(batch, micro, max(1, batch // (micro * processes)))
