"""The memory of training, by arithmetic: from the sizes in a model's configuration, and what a
machine has. docs/training.md has a table.

It is the arithmetic of mixed precision with Adam: 16 bytes a trained parameter (Rajbhandari et al.,
ZeRO, 2020, section 3.1). Activations are kept, or computed again (gradient checkpointing,
Korthikanti et al., 2022). Measured memory differs by allocator and kernels; `ROOM` is left for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.settings.training import TrainingSettings
from trainers.tiny import MAX_TOKENS

GIB = 1024**3
ROOM = 4 * GIB
"""Memory left for CUDA's context, NCCL's buffers and fragmentation."""
VLLM_SHARE = 0.3
"""Share of a GPU's memory that vLLM takes beside training."""
MIN_MICRO = 8
"""With fewer completions at once than these, activations are computed again."""


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

    def activations(self, tokens: int, *, again: bool) -> int:
        """Bytes that a forward and backward pass keeps: the input of each layer (float32), and the
        activations inside one layer (`again`: computed a second time) or all. TRL never has the
        logits of all tokens at once. Bytes inside a layer are as measured with Qwen3 of 0.6 and 1.7
        billion parameters (docs/LOG.md, 2026-11-26).
        """
        heads = self.head_size * (self.heads + self.kv_heads)
        inside = tokens * (28 * self.hidden + 8 * self.inner + 10 * heads)
        kept = self.layers * tokens * self.hidden * 4
        return kept + inside if again else self.layers * inside


KNOWN = {
    "tiny": Shape(96, 2, 4, 4, 24, 192, MAX_TOKENS, True),
    "Qwen/Qwen3-1.7B": Shape(2048, 28, 16, 8, 128, 6144, 151_936, True),
    "Qwen/Qwen3-4B-Instruct-2507": Shape(2560, 36, 32, 8, 128, 9728, 151_936, True),
}
"""Sizes of the paper's models, for machines without their configuration."""


def shape_of(model: str) -> Shape | None:
    """The sizes of a model; None where its configuration is neither here nor known."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(model).expanduser()
    file: Any = folder / "config.json"
    if not folder.is_dir() and model.count("/") == 1:
        file = try_to_load_from_cache(model, "config.json")
    try:
        config = json.loads(Path(file).read_bytes())
        return Shape.of(config.get("text_config", config))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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
        main = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with suppress(OSError, ValueError):  # A container's limit; "max" where there is none.
            main = min(main, int(Path("/sys/fs/cgroup/memory.max").read_text()))
        return cls(gpus, main)

    def of_one(self, processes: int) -> int:
        """What one process may take: all but some room, and on a CPU all but half."""
        return min(self.gpus) - ROOM if self.gpus else self.main // processes // 2


@dataclass(frozen=True)
class Batch:
    """How a process computes its share of an optimizer step, and bytes of its memory.

    Attributes:
        micro: completions (examples) at once.
        again: activations are computed again instead of kept.
        states: bytes of weights, gradients and moments.
        activations: bytes of one pass.
        engine: bytes of vLLM beside them.
    """

    micro: int
    accumulate: int
    again: bool
    states: int = 0
    activations: int = 0
    engine: int = 0

    @property
    def peak(self) -> int:
        """Training and vLLM take turns, but vLLM takes its whole share when it wakes."""
        return self.states + max(self.activations, self.engine)

    @classmethod
    def of(
        cls,
        settings: TrainingSettings,
        share: int,
        length: int,
        halvings: int = 0,
        machine: Machine | None = None,
    ) -> Batch:
        """The largest divisor of a process's share of a step that memory has room for, and at least
        1. Activations are computed again, which takes a third more time, only where fewer than
        eight completions fit otherwise. A model of unknown size gets `MIN_MICRO`.

        Args:
            share: completions (examples) of one process.
            length: of the longest prompt and completion together, in tokens.
            halvings: how often memory ran out.
            machine: another one than this.
        """
        shape = shape_of(settings.model)
        if shape is None:
            micro = divisor(share, MIN_MICRO >> halvings or 1)
            return cls(micro, share // micro, True)
        has = (machine or Machine.here()).of_one(settings.processes)
        sharded, rank = settings.accelerate is not None, settings.lora.rank
        states = shape.states(settings.processes, rank, sharded=sharded)
        engine = round(VLLM_SHARE * has) if settings.rollouts.by == "vllm-colocate" else 0
        for again in (False, True):
            one = shape.activations(length, again=again)
            micro = divisor(share, max(1, (has - states) // one))
            if micro >= min(share, MIN_MICRO):
                break
        micro = divisor(share, micro >> halvings or 1)
        return cls(micro, share // micro, again, states, micro * one, engine)


def divisor(share: int, most: int) -> int:
    """The largest divisor of a number up to another."""
    return next(size for size in range(min(share, most), 0, -1) if share % size == 0)
