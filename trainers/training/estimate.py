"""`cogr-train run --dry-run`: whether a configuration fits this machine, how many steps it trains,
and what training would refuse.

Loads no weights: parameters and memory (`memory`) come from the model's configuration, by
arithmetic.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cogr.errors import CogrError
from cogr.records import SIDES, Side
from cogr.settings.training import TrainingSettings
from indexers.workspace import Workspace
from trainers.training.inputs import INVENTED_WEIGHT
from trainers.training.memory import GIB, Machine, Memory, memory, shape_of
from trainers.training.rounds import with_dev
from trainers.training.trainer_config import check_settings, grpo_step, sft_step

_SAMPLE = 500
_LETTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Estimate:
    """The findings: `steps` of each stage at most; `refused` has a sentence for each reason why
    training would stop.
    """

    model: str
    parameters: int | None
    needed: Memory | None
    machine: Machine
    steps: Mapping[str, int]
    refused: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        peak = None if self.needed is None else self.needed.peak
        return asdict(self) | {"peak_bytes": peak, "fits": not self.refused}


def estimate(workspace: Workspace, machine: Machine | None = None) -> Estimate:
    """Check a configuration for this machine, or another one.

    Raises DataError where the data can't be read.
    """
    workspace = with_dev(workspace)
    settings = workspace.settings.training
    found, shape = machine or Machine.here(), shape_of(settings.model)
    refused = list(_invalid(workspace))
    steps: Mapping[str, int] = {}
    needed = None
    if not refused and shape is not None:
        sides = {side: _side(workspace, side) for side in SIDES}
        steps = {name: count for own, _ in sides.values() for name, count in own.items()}
        prompt = max(_longest_prompt(workspace, side) for side in SIDES)
        share, written = max(share for _, share in sides.values()), settings.rollouts.max_tokens
        needed = memory(settings, shape, share, prompt, written, found)
    refused += _refusals(settings, found, needed)
    parameters = None if shape is None else shape.parameters
    return Estimate(settings.model, parameters, needed, found, steps, tuple(refused))


def _invalid(workspace: Workspace) -> Iterator[str]:
    try:
        check_settings(workspace)
    except CogrError as error:
        yield str(error)


def _refusals(settings: TrainingSettings, machine: Machine, needed: Memory | None) -> Iterator[str]:
    by = f'training.rollouts.by is "{settings.rollouts.by}"'
    if settings.index_by == "vllm" and importlib.util.find_spec("vllm") is None:
        yield f"{by}, but vLLM is not installed."
    if settings.index_by == "vllm" and not machine.gpus:
        yield f'{by}, which needs a GPU; without one set it to "transformers".'
    if 0 < len(machine.gpus) < settings.processes:
        yield (
            f"training.processes is {settings.processes}, but this machine has "
            f"{len(machine.gpus)} GPUs; set it to {len(machine.gpus)}."
        )
    has = machine.of_one(settings.processes)
    if needed is not None and needed.peak > has:
        yield (
            f"{'Each GPU' if machine.gpus else 'Each process'} needs about "
            f"{needed.peak / GIB:.0f} GiB, and may take {has / GIB:.0f}; share weights "
            "(training.accelerate), or train adapters (training.lora.rank)."
        )


def _longest_prompt(workspace: Workspace, side: Side) -> int:
    """Tokens of the longest prompt of a sample, at four letters a token."""
    prompter, dataset = workspace.prompter(side), workspace.dataset
    entities = dataset.items if side == "item" else dataset.require("train")
    prompts = [prompter(entity, ()) for entity in entities[:: max(1, len(entities) // _SAMPLE)]]
    return max(len(prompt.system) + len(prompt.user) for prompt in prompts) // _LETTERS_A_TOKEN


def _side(workspace: Workspace, side: Side) -> tuple[dict[str, int], int]:
    settings, dataset = workspace.settings.training, workspace.dataset
    item, sft = side == "item", settings.sft
    train, invented = len(dataset.require("train")), settings.invented_queries
    times = max(1, round(1 / INVENTED_WEIGHT)) if invented else 1
    examples = len(dataset.items) if item else train + invented
    drawn = len(dataset.items) if item else train * times + invented
    grpo = settings.item if item else settings.query
    group, share = grpo_step(grpo, drawn, settings)
    epochs = sft.item_epochs if item else sft.query_epochs
    size = sft_step(settings, examples)[1] * settings.processes
    steps = {
        f"sft, {side} side": math.ceil(epochs * examples / size),
        f"round, {side} side": grpo.max_steps or math.ceil(grpo.epochs * (drawn // group)),
    }
    if settings.variant == "no-sft":
        del steps[f"sft, {side} side"]
    return ({} if item and settings.variant == "frozen-items" else steps), share
