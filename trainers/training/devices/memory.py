"""What training a model needs, by arithmetic: parameters, memory of a GPU, floating-point
operations. Nothing is loaded; docs/training.md has the table.

The arithmetic is that of mixed precision with Adam: weights, gradients and two moments in float32,
16 bytes a parameter (Rajbhandari et al., ZeRO, 2020, section 3.1, without the copy in half
precision, which autocast makes a layer at a time). Activations are those of gradient checkpointing:
what enters each layer, and one layer computed again (Korthikanti et al., 2022). Measured memory
differs by allocator and kernels; `ROOM` is left for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cogr.settings.training import TinySettings
from trainers.training.tiny import MOST_TOKENS

GIB = 1024**3
ROOM = 4 * GIB
"""For CUDA's context, NCCL's buffers and what an allocator can't use."""

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
"""The models of the paper, where their configuration is not on this machine."""


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
        """Training and vLLM take turns: while one works the other's share is asleep, but for
        weights, gradients and moments, which stay.
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
    """Bytes that a forward and backward pass keeps: what enters each layer (float32), one layer or
    all of them computed (bfloat16 and the attention's sums), and the logits of the completions, as
    bfloat16 and twice in float32.
    """
    tokens = load.sequences * (load.prompt + load.completion)
    inside = tokens * (2 * (6 * shape.hidden + 3 * shape.inner) + 4 * 4 * shape.hidden)
    kept = shape.layers * tokens * shape.hidden * 4
    logits = load.sequences * load.completion * shape.vocabulary * 10
    return (kept + inside if load.checkpointing else shape.layers * inside) + logits


def engine(shape: Shape, length: int, sequences: int) -> int:
    """Bytes that vLLM needs at least: weights, and the cache of so many sequences of a length."""
    return 2 * shape.parameters + sequences * length * shape.cache_a_token


def operations(shape: Shape, trained: int, generated: int) -> float:
    """Floating-point operations: 2 a parameter for a token that is generated, 8 for one that is
    trained on (forward, backward, forward again).
    """
    return float(shape.parameters) * (8.0 * trained + 2.0 * generated)
