"""`cogr-train run --dry-run`: whether a configuration fits this machine, how long training takes,
and what training would refuse.

Loads no weights: parameters, memory (`memory`) and floating-point operations come from the model's
configuration, by arithmetic.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cogr.errors import CogrError
from cogr.records import SIDES, Side
from cogr.settings.training import TrainingSettings
from indexers.workspace import Workspace
from trainers.training.inputs import INVENTED_WEIGHT
from trainers.training.memory import GIB, Machine, Memory, Shape, memory, shape_of
from trainers.training.rounds import with_dev
from trainers.training.trainer_config import (
    check_settings,
    grpo_batch,
    sft_batch,
)

TFLOPS = {"gpu": 200.0, "cpu": 0.02}
"""Assumed speed of a process, in 10^12 operations a second: a fifth of an H100's peak in bfloat16
(989), as reinforcement learning usually reaches; on a CPU, that of one core.
"""
_SAMPLE = 500
_LETTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Expected:
    """The expected cost of one stage: steps, most generated tokens, hours at the assumed speed."""

    stage: str
    steps: int
    tokens: int
    hours: float


@dataclass(frozen=True)
class Estimate:
    """The findings; `refused` has a sentence for each reason why training would stop."""

    model: str
    parameters: int | None
    needed: Memory | None
    machine: Machine
    stages: tuple[Expected, ...]
    rounds: int
    refused: tuple[str, ...]

    @property
    def hours(self) -> float:
        """Of SFT and all rounds."""
        return sum(
            one.hours * (1 if one.stage.startswith("sft") else self.rounds) for one in self.stages
        )

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        peak = None if self.needed is None else self.needed.peak
        return asdict(self) | {"hours": self.hours, "peak_bytes": peak, "fits": not self.refused}


def estimate(workspace: Workspace, rounds: int, machine: Machine | None = None) -> Estimate:
    """Check a configuration for this machine, or another one.

    Raises DataError where the data can't be read.
    """
    workspace = with_dev(workspace)
    settings = workspace.settings.training
    found, shape = machine or Machine.here(), shape_of(settings.model)
    refused = list(_invalid(workspace))
    stages: tuple[Expected, ...] = ()
    needed = None
    if not refused and shape is not None:
        tokens = {side: _prompt_tokens(workspace, side) for side in SIDES}
        longest = max(longest for _, longest in tokens.values())
        needed = memory(settings, shape, longest, found)
        speed = TFLOPS["gpu" if found.gpus else "cpu"] * 1e12 * settings.processes
        stages = tuple(_stages(workspace, shape, tokens, speed))
    refused += _refusals(settings, found, needed)
    parameters = None if shape is None else shape.parameters
    return Estimate(settings.model, parameters, needed, found, stages, rounds, tuple(refused))


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
            f"{needed.peak / GIB:.0f} GiB, and has {has / GIB:.0f}; lower micro_batch, share "
            "weights (training.accelerate), or train adapters (training.lora.rank)."
        )


def _prompt_tokens(workspace: Workspace, side: Side) -> tuple[int, int]:
    """Tokens of the mean and of the longest prompt of a sample, at four letters a token."""
    prompter, dataset = workspace.prompter(side), workspace.dataset
    entities = dataset.items if side == "item" else dataset.require("train")
    prompts = [prompter(entity, ()) for entity in entities[:: max(1, len(entities) // _SAMPLE)]]
    letters = [len(prompt.system) + len(prompt.user) for prompt in prompts]
    return math.ceil(statistics.mean(letters) / _LETTERS_A_TOKEN), max(letters) // _LETTERS_A_TOKEN


def _stages(
    workspace: Workspace, shape: Shape, prompts: Mapping[Side, tuple[int, int]], speed: float
) -> Iterator[Expected]:
    """SFT's stages, and those of one round. A parameter takes 2 operations for a token that is
    written or only read, 8 for one that is trained on.
    """
    settings, dataset = workspace.settings.training, workspace.dataset
    rollouts, sft, index = settings.rollouts, settings.sft, workspace.settings.generator.sampling
    sides: tuple[Side, ...] = ("query",) if settings.variant == "frozen-items" else SIDES

    def cost(name: str, steps: int, trained: int, read: int, written: int) -> Expected:
        work = shape.parameters * (8.0 * trained + 2.0 * (read + written))
        return Expected(name, steps, written, work / speed / 3600)

    invented = settings.invented_queries
    times = max(1, round(1 / INVENTED_WEIGHT)) if invented else 1
    train = len(dataset.require("train"))
    for side in sides:
        mean = prompts[side][0]
        item = side == "item"
        count = len(dataset.items) if item else train + invented
        drawn = len(dataset.items) if item else train * times + invented
        if settings.variant != "no-sft":
            epochs = sft.item_epochs if item else sft.query_epochs
            batch = sft_batch(sft, count, settings.processes)
            size = batch.micro * batch.accumulate * settings.processes
            examples = round(epochs * count) * (mean + 5 * sft.query_keywords)
            yield cost(f"sft, {side} side", math.ceil(epochs * count / size), examples, 0, 0)
        grpo = settings.item if item else settings.query
        group = grpo_batch(grpo, drawn, rollouts.generations, settings.processes)
        steps = grpo.max_steps or math.ceil(grpo.epochs * (drawn // group.prompts))
        answers = steps * group.prompts * rollouts.generations
        written = answers * rollouts.max_tokens
        yield cost(f"round, {side} side", steps, answers * mean + written, 0, written)
        entities = len(dataset.items) if item else sum(map(len, dataset.queries.values()))
        yield cost(f"index, {side} side", 0, 0, entities * mean, entities * index.max_tokens)
