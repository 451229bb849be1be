"""Completions that depend on the prompt alone, so that one process and several draw the same.

TRL gives each process random numbers of its own; its completions then can't be those of one
process. Here every token is drawn by noise of its own (Gumbel's trick: the most probable after
adding it is a fair draw) that depends on the prompt, the number of the completion among those of
the prompt, and the position. Naming one of these rewards has a stage draw so.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from cogr import rewards

item_reward = rewards.item_reward


def query_reward(world: rewards.World, id_: str, keywords: Sequence[str]) -> float:
    """The real one and a bit for each keyword: a model that finds nothing yet learns something."""
    return rewards.query_reward(world, id_, keywords) + 0.01 * len(keywords)


def install() -> None:
    """Have transformers draw so in this process, from now on."""
    from transformers import GenerationMixin

    if not hasattr(GenerationMixin.generate, "drawn"):
        GenerationMixin.generate = drawing_the_same(GenerationMixin.generate)


def drawing_the_same(generate: Any) -> Any:
    """A method `generate` that draws so."""

    def drawn(self: Any, *arguments: Any, **options: Any) -> Any:
        config = options["generation_config"]
        if config.do_sample:
            options["logits_processor"] = [Drawn(config.pad_token_id)]
        return generate(self, *arguments, **options)

    drawn.drawn = True  # type: ignore[attr-defined]
    return drawn


class Drawn:
    """A processor of logits that leaves one token in each row, drawn by the row's own noise."""

    def __init__(self, pad: int) -> None:
        self._pad = pad
        self._rows: list[str] = []
        self._begins = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        import torch

        if not self._rows:
            self._begins, seen = input_ids.shape[1], Counter[str]()
            for row in input_ids.tolist():
                prompt = str([token for token in row if token != self._pad])
                self._rows.append(f"{prompt} {seen[prompt]}")
                seen[prompt] += 1
        position = input_ids.shape[1] - self._begins
        noise = np.stack([_noise(f"{row} {position}", scores.shape[1]) for row in self._rows])
        best = (scores + torch.from_numpy(noise)).argmax(dim=1, keepdim=True)
        return torch.full_like(scores, float("-inf")).scatter(1, best, 0.0)


def _noise(what: str, count: int) -> Any:
    seed = int.from_bytes(hashlib.sha256(what.encode()).digest()[:8])
    return np.random.default_rng(seed).gumbel(size=count).astype(np.float32)


install()
