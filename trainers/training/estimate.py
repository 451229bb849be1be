"""`cogr-train run --dry-run`: whether a configuration fits this machine, how long training takes,
and what training would refuse.

Loads no weights: parameters, memory of a GPU and floating-point operations come from the model's
configuration, by arithmetic; docs/training.md has the table. It is the arithmetic of mixed
precision with Adam: 16 bytes a trained parameter (Rajbhandari et al., ZeRO, 2020, section 3.1).
Activations are those of gradient checkpointing (Korthikanti et al., 2022). Measured memory differs
by allocator and kernels; `ROOM` is left for it.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cogr.errors import CogrError
from cogr.records import SIDES, Side
from cogr.settings.training import TrainingSettings
from indexers.workspace import Workspace
from trainers.tiny import MOST_TOKENS
from trainers.training.inputs import INVENTED_WEIGHT
from trainers.training.rounds import with_dev
from trainers.training.trainer_config import (
    VLLM_SHARE,
    check_settings,
    checkpoints_gradients,
    grpo_batch,
    sft_batch,
)

GIB = 1024**3
ROOM = 4 * GIB
"""Memory left for CUDA's context, NCCL's buffers and fragmentation."""
TFLOPS = {"gpu": 200.0, "cpu": 0.02}
"""Assumed speed of a process, in 10^12 operations a second: a fifth of an H100's peak in bfloat16
(989), as reinforcement learning usually reaches; on a CPU, that of one core.
"""
_SAMPLE = 500
_LETTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder with gated feed-forward layers, as in a model's `config.json`."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """Of a `config.json`. Raises KeyError, TypeError where it is another kind of model."""
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return cls(
            hidden,
            int(config["num_hidden_layers"]),
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config.get("head_dim") or hidden // heads),
            int(config["intermediate_size"]),
            int(config["vocab_size"]),
            bool(config.get("tie_word_embeddings", False)),
        )

    @property
    def parameters(self) -> int:
        """How many weights, without norms, which are fewer than one in a thousand."""
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.inner
        return self.layers * layer + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapters(self, rank: int) -> int:
        """How many weights adapters of all linear layers have."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        ends = (
            2 * (self.hidden + queries) + 2 * (self.hidden + keys) + 3 * (self.hidden + self.inner)
        )
        return self.layers * rank * ends

    def states(self, processes: int, rank: int, *, sharded: bool) -> int:
        """Bytes of weights, gradients and moments on one GPU; `sharded` by FSDP2."""
        trained = self.adapters(rank) if rank else self.parameters
        frozen = 2 * self.parameters if rank else 0
        if not sharded or processes == 1:
            return frozen + 16 * trained
        ends = self.vocabulary * self.hidden
        largest = 4 * max(ends, (self.parameters - ends) // self.layers)
        return (frozen + 16 * trained) // processes + largest

    def activations(self, sequences: int, prompt: int, completion: int, *, again: bool) -> int:
        """Bytes that a forward and backward pass keeps: the input of each layer (float32), the
        activations inside one layer (`again`: computed a second time) or all, and the logits of
        the completions, once as bfloat16 and twice as float32.
        """
        tokens = sequences * (prompt + completion)
        inside = tokens * (2 * (6 * self.hidden + 3 * self.inner) + 16 * self.hidden)
        kept = self.layers * tokens * self.hidden * 4
        logits = sequences * completion * self.vocabulary * 10
        return (kept + inside if again else self.layers * inside) + logits


KNOWN = {
    "tiny": Shape(96, 2, 4, 4, 24, 192, MOST_TOKENS, True),
    "Qwen/Qwen3-1.7B": Shape(2048, 28, 16, 8, 128, 6144, 151_936, True),
    "Qwen/Qwen3-4B-Instruct-2507": Shape(2560, 36, 32, 8, 128, 9728, 151_936, True),
}
"""Sizes of the paper's models, for machines without their configuration."""


def shape_of(model: str) -> Shape | None:
    """The sizes of a model; None where its configuration is neither here nor known."""
    from huggingface_hub import try_to_load_from_cache

    from indexers.generators import smollm2

    folder = smollm2.unpack() if model == smollm2.NAME else Path(model).expanduser()
    file: Any = folder / "config.json"
    if not folder.is_dir() and model.count("/") == 1:
        file = try_to_load_from_cache(model, "config.json")
    try:
        return Shape.of(json.loads(Path(file).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return KNOWN.get(model)


@dataclass(frozen=True)
class Machine:
    """Memory of each GPU and main memory, in bytes."""

    gpus: tuple[int, ...]
    main: int

    @classmethod
    def here(cls) -> Machine:
        """This machine, as torch sees it."""
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        gpus = tuple(torch.cuda.get_device_properties(n).total_memory for n in range(count))
        return cls(gpus, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    def of_one(self, processes: int) -> int:
        """What one process has."""
        return min(self.gpus, default=self.main // processes)


@dataclass(frozen=True)
class Memory:
    """Bytes of one process: weights, gradients and moments; one pass; vLLM beside them."""

    states: int
    activations: int
    engine: int

    @property
    def peak(self) -> int:
        """Training and vLLM take turns, but vLLM takes its whole share when it wakes."""
        return self.states + max(self.activations, self.engine) + ROOM


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


def memory(settings: TrainingSettings, shape: Shape, prompt: int, machine: Machine) -> Memory:
    """Memory of the stage that needs most: the GRPO of one side."""
    rollouts = settings.rollouts
    micro = max(settings.query.micro_batch, settings.item.micro_batch)
    again = checkpoints_gradients(settings)
    share = VLLM_SHARE if rollouts.by == "vllm-colocate" else 0.0
    return Memory(
        shape.states(
            settings.processes, settings.lora.rank, sharded=settings.accelerate is not None
        ),
        shape.activations(micro, prompt, rollouts.max_tokens, again=again),
        round(share * machine.of_one(settings.processes)),
    )


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
