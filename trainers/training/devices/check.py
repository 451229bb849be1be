"""`cogr-train check`: whether a configuration fits this machine, how long training takes, and what
training would refuse.

Loads no weights: parameters, memory of a GPU and floating-point operations come from the model's
configuration, by arithmetic; docs/training.md has the table. It is the arithmetic of mixed
precision with Adam: weights, gradients and two moments in float32, 16 bytes a parameter
(Rajbhandari et al., ZeRO, 2020, section 3.1, without the copy in half precision, which autocast
makes a layer at a time). Activations are those of gradient checkpointing: what enters each layer,
and one layer computed again (Korthikanti et al., 2022). Measured memory differs by allocator and
kernels; `ROOM` is left for it.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cogr.errors import CogrError
from cogr.records import SIDES, Side
from cogr.settings.training import TinySettings, TrainingSettings
from indexers.workspace import Workspace
from trainers.tiny import MOST_TOKENS
from trainers.training.inputs import INVENTED_WEIGHT
from trainers.training.rounds import with_dev
from trainers.training.trainer_config import (
    check_settings,
    checkpoints_gradients,
    grpo_batch,
    sft_batch,
)

TFLOPS = {"gpu": 200.0, "cpu": 0.02}
"""Speed of a process unless `--tflops` says another, in 10^12 operations a second. On a GPU it is a
fifth of an H100's peak in bfloat16 (989, NVIDIA's data sheet), as reinforcement learning usually
reaches; on a CPU, that of one core.
"""
_SAMPLE = 500
_LETTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Machine:
    """A machine: memory of each GPU, main memory, and free disk space of the store, in bytes."""

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
    """The expected cost of one stage.

    Attributes:
        tokens: most generated tokens.
        hours: at the stated rate.
    """

    stage: str
    steps: int
    tokens: int
    hours: float


@dataclass(frozen=True)
class Report:
    """The findings of the command.

    Attributes:
        refused: a sentence for each reason why training would stop.
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
    """Check a configuration.

    Args:
        rounds: after SFT.
        tflops: speed of one process, in 10^12 operations a second; None for `TFLOPS`.
        machine: the machine to check for; this one by default.

    Raises DataError where the data can't be read.
    """
    workspace = with_dev(workspace)
    settings = workspace.settings.training
    found = machine or Machine.here(Path(workspace.store.url.removeprefix("file://")))
    rate = tflops or TFLOPS["gpu" if found.gpus else "cpu"]
    shape = shape_of(settings.model, settings.tiny)
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
    """Memory of the stage that needs most: the GRPO of one side."""
    settings = workspace.settings.training
    rollouts = settings.rollouts
    micro = max(settings.query.micro_batch, settings.item.micro_batch)
    load = Load(micro, prompt, rollouts.max_tokens, checkpoints_gradients(settings))
    length = rollouts.vllm_max_model_len or prompt + rollouts.max_tokens
    colocated = rollouts.by == "vllm-colocate"
    return Memory(
        states(shape, settings.processes, sharing_of(settings), settings.lora.rank),
        activations(shape, load),
        engine(shape, length, 1) if colocated else 0,
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
        """The index build of a side after its training."""
        dataset = self.workspace.dataset
        queries = sum(map(len, dataset.queries.values()))
        entities = queries if side == "query" else len(dataset.items)
        tokens = entities * self.workspace.settings.generator.sampling.max_tokens
        read = entities * self.prompts[side][0]
        return self._expected(f"index, {side} side", 0, 0, tokens + read, tokens)

    def _expected(
        self, name: str, steps: int, trained: int, through: int, generated: int
    ) -> Expected:
        """The cost of a stage by its numbers of tokens: trained on, only read, and generated."""
        work = operations(self.shape, trained, through)
        return Expected(name, steps, generated, work / self.rate / 3600)


GIB = 1024**3
ROOM = 4 * GIB
"""Memory left for CUDA's context, NCCL's buffers and fragmentation."""

Sharing = Literal["copies", "zero2", "sharded"]
"""What the processes of a stage share: nothing (each has a copy of all), gradients and moments
(ZeRO-2), or weights too (FSDP2, ZeRO-3).
"""


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
    context: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """Of a `config.json`. Raises KeyError, TypeError where it is another kind of model."""
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return cls(
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or hidden // heads),
            inner=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            context=int(config["max_position_embeddings"]),
        )

    @classmethod
    def tiny(cls, settings: TinySettings) -> Shape:
        """Of the model `tiny`."""
        hidden = settings.hidden
        size = hidden // 4
        return cls(hidden, settings.layers, 4, 4, size, 2 * hidden, MOST_TOKENS, True, 1024)

    @property
    def parameters(self) -> int:
        """How many weights, without norms, which are fewer than one in a thousand."""
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.inner
        return self.layers * layer + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapters(self, rank: int) -> int:
        """How many weights adapters of all linear layers have."""
        ends = [
            (self.hidden, self.heads * self.head_size),
            *[(self.hidden, self.kv_heads * self.head_size)] * 2,
            (self.heads * self.head_size, self.hidden),
            *[(self.hidden, self.inner)] * 3,
        ]
        return self.layers * rank * sum(a + b for a, b in ends)

    @property
    def cache_a_token(self) -> int:
        """Bytes that one token takes in vLLM's cache, in bfloat16."""
        return 2 * self.layers * self.kv_heads * self.head_size * 2


QWEN3_1_7B = Shape(2048, 28, 16, 8, 128, 6144, 151_936, True, 40_960)
QWEN3_4B = Shape(2560, 36, 32, 8, 128, 9728, 151_936, True, 262_144)
KNOWN = {"Qwen/Qwen3-1.7B": QWEN3_1_7B, "Qwen/Qwen3-4B-Instruct-2507": QWEN3_4B}
"""Sizes of the paper's models, for machines without their configuration."""


def shape_of(model: str, tiny: TinySettings) -> Shape | None:
    """The sizes of a model; None where its configuration is neither here nor known."""
    if model == "tiny":
        return Shape.tiny(tiny)
    folder = Path(model).expanduser()
    if not folder.is_dir() and (found := _cached(model)):
        folder = found
    try:
        return Shape.of(json.loads((folder / "config.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return KNOWN.get(model)


def _cached(model: str) -> Path | None:
    """The folder in the local Hugging Face cache, or of `smollm2`."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    from indexers.generators import smollm2

    if model == "smollm2":
        return smollm2.unpack()
    try:
        file = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(file).parent if isinstance(file, str) else None


@dataclass(frozen=True)
class Load:
    """What one process computes at once.

    Attributes:
        sequences: completions or examples.
        prompt: tokens of a prompt.
        completion: tokens of a completion.
        checkpointing: activations are computed again instead of kept.
    """

    sequences: int
    prompt: int
    completion: int
    checkpointing: bool = True


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU."""

    states: int
    activations: int
    engine: int

    @property
    def peak(self) -> int:
        """The peak. Training and vLLM take turns: each frees its memory while the other works,
        except for weights, gradients and moments.
        """
        return self.states + max(self.activations, self.engine) + ROOM


def states(shape: Shape, processes: int, sharing: Sharing, rank: int) -> int:
    """Bytes of weights, gradients and moments on one GPU.

    Args:
        rank: of adapters; 0 trains all weights.
    """
    trained = shape.adapters(rank) if rank else shape.parameters
    frozen = 2 * shape.parameters if rank else 0
    if sharing == "copies" or processes == 1:
        return frozen + 16 * trained
    if sharing == "zero2":
        return frozen + 4 * trained + 12 * trained // processes
    largest = 4 * max(
        shape.vocabulary * shape.hidden,
        (shape.parameters - shape.vocabulary * shape.hidden) // shape.layers,
    )
    return (frozen + 16 * trained) // processes + largest


def activations(shape: Shape, load: Load) -> int:
    """Bytes that a forward and backward pass keeps: the input of each layer (float32), the
    activations inside one layer or all of them (bfloat16 and the attention's sums), and the logits
    of the completions, once as bfloat16 and twice as float32.
    """
    tokens = load.sequences * (load.prompt + load.completion)
    inside = tokens * (2 * (6 * shape.hidden + 3 * shape.inner) + 4 * 4 * shape.hidden)
    kept = shape.layers * tokens * shape.hidden * 4
    logits = load.sequences * load.completion * shape.vocabulary * 10
    return (kept + inside if load.checkpointing else shape.layers * inside) + logits


def engine(shape: Shape, length: int, sequences: int) -> int:
    """The least memory of vLLM in bytes: weights, and the cache of so many sequences of
    a length.
    """
    return 2 * shape.parameters + sequences * length * shape.cache_a_token


def operations(shape: Shape, trained: int, generated: int) -> float:
    """Floating-point operations: 2 a parameter for a token that is generated, 8 for one that is
    trained on (forward, backward, forward again).
    """
    return float(shape.parameters) * (8.0 * trained + 2.0 * generated)
