"""`cogr-train check`: whether a configuration fits this machine, how long it takes, what would be
refused later. Loads no weights; sizes come from the model's configuration (`memory`).
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cogr.errors import CogrError
from cogr.records import SIDES, Side
from cogr.settings.training import TrainingSettings
from indexers.workspace import Workspace
from trainers.training.devices import memory
from trainers.training.devices.memory import GIB, Load, Memory, Shape, Sharing
from trainers.training.inputs import INVENTED_WEIGHT
from trainers.training.rounds import with_dev
from trainers.training.trainer_config import (
    check_settings,
    checkpoints_gradients,
    grpo_batch,
    sft_batch,
)

TFLOPS = {"gpu": 200.0, "cpu": 0.02}
"""What a process computes by default, in 10^12 operations a second: a fifth of an H100's peak in
bfloat16 (989, NVIDIA's data sheet), which training by reinforcement usually reaches; one core.
"""
_SAMPLE = 500
_LETTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Machine:
    """What is here: bytes of each GPU, of main memory, and free on the store's disk."""

    gpus: tuple[int, ...]
    main: int
    disk: int

    @classmethod
    def here(cls, store: Path) -> Machine:
        """This machine, as torch sees it."""
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        gpus = tuple(torch.cuda.get_device_properties(n).total_memory for n in range(count))
        main = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        while not store.exists():
            store = store.parent
        return cls(gpus, main, shutil.disk_usage(store).free)


@dataclass(frozen=True)
class Expected:
    """What one stage takes.

    Attributes:
        tokens: that are generated, at most.
        hours: at the stated rate.
    """

    stage: str
    steps: int
    tokens: int
    hours: float


@dataclass(frozen=True)
class Report:
    """What the command says.

    Attributes:
        refused: a sentence for each thing that would stop the training.
    """

    model: str
    parameters: int | None
    needed: Memory | None
    machine: Machine
    stages: tuple[Expected, ...]
    rounds: int
    tflops: float
    refused: tuple[str, ...]

    @property
    def hours(self) -> float:
        """Of SFT and all rounds."""
        once = sum(one.hours for one in self.stages if one.stage.startswith("sft"))
        return once + self.rounds * sum(
            one.hours for one in self.stages if not one.stage.startswith("sft")
        )

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        peak = None if self.needed is None else self.needed.peak
        return asdict(self) | {"hours": self.hours, "peak_bytes": peak, "fits": not self.refused}


def look_over(
    workspace: Workspace, rounds: int, tflops: float | None, machine: Machine | None = None
) -> Report:
    """Look a configuration over.

    Args:
        rounds: after SFT.
        tflops: what one process computes, in 10^12 operations a second; None for `TFLOPS`.
        machine: another one than this.

    Raises DataError where the data can't be read.
    """
    workspace = with_dev(workspace)
    settings = workspace.settings.training
    found = machine or Machine.here(Path(workspace.store.url.removeprefix("file://")))
    rate = tflops or TFLOPS["gpu" if found.gpus else "cpu"]
    shape = memory.shape_of(settings.model, settings.tiny)
    invalid = list(_invalid(workspace))
    refused = [*invalid, *_refusals(settings, found)]
    stages: tuple[Expected, ...] = ()
    needed = None
    if not invalid and shape is not None:
        tokens = {side: _prompt_tokens(workspace, side) for side in SIDES}
        together = rate * 1e12 * settings.processes
        stages = tuple(_Work(workspace, shape, tokens, together).stages())
        needed = _needed(workspace, shape, max(longest for _, longest in tokens.values()))
        refused += _memory_refusals(settings, shape, needed, found, rounds)
    parameters = None if shape is None else shape.parameters
    return Report(settings.model, parameters, needed, found, stages, rounds, rate, tuple(refused))


# What would be refused


def _invalid(workspace: Workspace) -> Iterator[str]:
    try:
        check_settings(workspace)
    except CogrError as error:
        yield str(error)


def _refusals(settings: TrainingSettings, machine: Machine) -> Iterator[str]:
    if settings.index_by == "vllm" and importlib.util.find_spec("vllm") is None:
        yield f'training.rollouts.by is "{settings.rollouts.by}", but vLLM is not installed.'
    if settings.rollouts.by != "transformers" and not machine.gpus:
        yield (
            f'training.rollouts.by is "{settings.rollouts.by}", which needs a GPU; without one '
            'set it to "transformers".'
        )
    if machine.gpus and len(machine.gpus) < settings.processes:
        yield (
            f"training.processes is {settings.processes}, but this machine has "
            f"{len(machine.gpus)} GPUs; set it to {len(machine.gpus)}."
        )
    if settings.accelerate is not None and Path(settings.accelerate).is_file():
        kind = _accelerate(settings).get("distributed_type")
        if kind == "DEEPSPEED" and importlib.util.find_spec("deepspeed") is None:
            yield "training.accelerate is a file for DeepSpeed, which is not installed."


def _memory_refusals(
    settings: TrainingSettings, shape: Shape, needed: Memory, machine: Machine, rounds: int
) -> Iterator[str]:
    has = min(machine.gpus, default=machine.main // settings.processes)
    what = "Each GPU" if machine.gpus else "Each process"
    if needed.peak > has:
        yield (
            f"{what} needs about {needed.peak / GIB:.0f} GiB, and has "
            f"{has / GIB:.0f}; lower micro_batch, share weights (training.accelerate), or train "
            "adapters (training.lora.rank)."
        )
    share = settings.rollouts.vllm_gpu_share * has
    if settings.rollouts.by == "vllm-colocate" and machine.gpus and needed.engine > share:
        yield (
            f"vLLM needs {needed.engine / GIB:.1f} GiB for weights and one completion, and "
            f"training.rollouts.vllm_gpu_share leaves {share / GIB:.1f}; raise it."
        )
    kept = settings.keep_models + 1 if settings.keep_models else rounds + 1
    disk = 2 * kept * 4 * shape.parameters + 2 * 12 * shape.parameters * bool(settings.save_steps)
    if disk > machine.disk:
        yield (
            f"Models and checkpoints take {disk / GIB:.0f} GiB, and {machine.disk / GIB:.0f} are "
            "free; set training.keep_models, or make room."
        )


def _accelerate(settings: TrainingSettings) -> dict[str, Any]:
    import yaml

    file = settings.accelerate
    found = yaml.safe_load(Path(file).read_text("utf-8")) if file else {}
    return found if isinstance(found, dict) else {}


def sharing_of(settings: TrainingSettings) -> Sharing:
    """What processes share, by accelerate's configuration file."""
    found = _accelerate(settings)
    if found.get("distributed_type") == "FSDP":
        return "sharded"
    if found.get("distributed_type") == "DEEPSPEED":
        stage = int((found.get("deepspeed_config") or {}).get("zero_stage", 2))
        return "sharded" if stage == 3 else "zero2"
    return "copies"


def _needed(workspace: Workspace, shape: Shape, prompt: int) -> Memory:
    """Of the stage that needs most: the GRPO of one side."""
    settings = workspace.settings.training
    rollouts = settings.rollouts
    micro = max(settings.query.micro_batch, settings.item.micro_batch)
    load = Load(micro, prompt, rollouts.max_tokens, checkpoints_gradients(settings))
    length = rollouts.vllm_max_model_len or prompt + rollouts.max_tokens
    colocated = rollouts.by == "vllm-colocate"
    return Memory(
        memory.states(shape, settings.processes, sharing_of(settings), settings.lora.rank),
        memory.activations(shape, load),
        memory.engine(shape, length, 1) if colocated else 0,
    )


# What to expect


def _prompt_tokens(workspace: Workspace, side: Side) -> tuple[int, int]:
    """Tokens of the mean and of the longest prompt of a sample, at four letters a token."""
    prompter = workspace.prompter(side)
    entities = _entities(workspace, side)
    every = max(1, len(entities) // _SAMPLE)
    prompts = [prompter(entities[at], ()) for at in range(0, len(entities), every)]
    letters = [len(prompt.system) + len(prompt.user) for prompt in prompts]
    return math.ceil(statistics.mean(letters) / _LETTERS_A_TOKEN), max(letters) // _LETTERS_A_TOKEN


def _entities(workspace: Workspace, side: Side) -> Sequence[Any]:
    dataset = workspace.dataset
    return dataset.items if side == "item" else dataset.require("train")


@dataclass(frozen=True)
class _Work:
    """What stages cost.

    Attributes:
        prompts: tokens of a side's mean and longest prompt.
        rate: operations a second of all processes together.
    """

    workspace: Workspace
    shape: Shape
    prompts: dict[Side, tuple[int, int]]
    rate: float

    def stages(self) -> Iterator[Expected]:
        """SFT's, and those of one round."""
        settings = self.workspace.settings.training
        sides: tuple[Side, ...] = ("query",) if settings.variant == "frozen-items" else SIDES
        for side in sides if settings.variant != "no-sft" else ():
            epochs = settings.sft.item_epochs if side == "item" else settings.sft.query_epochs
            yield self._fine_tuning(f"sft, {side} side", side, epochs)
        for side in sides:
            name = f"round, {side} side"
            if side == "query" and settings.query.by == "expert":
                yield self._fine_tuning(name, side, settings.query.epochs)
            else:
                yield self._reinforcement(name, side)
            yield self._index(side)

    def _fine_tuning(self, name: str, side: Side, epochs: float) -> Expected:
        """SFT, or a round of expert iteration."""
        settings = self.workspace.settings.training
        invented = settings.invented_queries if side == "query" else 0
        count = len(_entities(self.workspace, side)) + invented
        batch = sft_batch(settings.sft, count, settings.processes)
        size = batch.micro * batch.accumulate * settings.processes
        steps = math.ceil(epochs * math.ceil(count / size))
        answer = 5 * settings.sft.query_keywords
        trained = round(epochs * count) * (self.prompts[side][0] + answer)
        return self._expected(name, steps, trained, 0, 0)

    def _reinforcement(self, name: str, side: Side) -> Expected:
        settings = self.workspace.settings.training
        grpo = settings.query if side == "query" else settings.item
        rollouts, entities = settings.rollouts, len(_entities(self.workspace, side))
        if side == "query" and settings.invented_queries:
            entities = entities * max(1, round(1 / INVENTED_WEIGHT)) + settings.invented_queries
        batch = grpo_batch(grpo, entities, rollouts.generations, settings.processes)
        steps = grpo.max_steps or math.ceil(grpo.epochs * (entities // batch.prompts))
        completions = steps * batch.prompts * rollouts.generations
        generated = completions * rollouts.max_tokens
        trained = completions * (self.prompts[side][0] + rollouts.max_tokens)
        return self._expected(name, steps, trained, generated, generated)

    def _index(self, side: Side) -> Expected:
        """A side written anew, after its training."""
        dataset = self.workspace.dataset
        queries = sum(map(len, dataset.queries.values()))
        entities = queries if side == "query" else len(dataset.items)
        tokens = entities * self.workspace.settings.generator.sampling.max_tokens
        read = entities * self.prompts[side][0]
        return self._expected(f"index, {side} side", 0, 0, tokens + read, tokens)

    def _expected(
        self, name: str, steps: int, trained: int, through: int, generated: int
    ) -> Expected:
        """Of tokens that are trained on, that go through the model alone, and that it writes."""
        work = memory.operations(self.shape, trained, through)
        return Expected(name, steps, generated, work / self.rate / 3600)
