"""Constrained decoding inside vLLM's engine, by its interface for custom logits processors. The
rule itself is `constraint`.

The engine may run in processes of its own, so it gets a class name and a file instead of an object.
This module imports vllm; only the engine and `vllm_lm` import it. Requests that name no vocabulary
are not constrained.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from indexers.generators.constraint import KeywordConstraint
from indexers.generators.model_folders import load_tokenizer

if TYPE_CHECKING:
    from vllm import SamplingParams

ARGUMENT = "cogr_vocabulary"
"""Names the vocabulary's file among a request's `extra_args`; `vllm_lm` writes it."""


@lru_cache(maxsize=2)
def _vocabulary(file: str) -> KeywordConstraint:
    said = json.loads(Path(file).read_text("utf-8"))
    return KeywordConstraint(
        said["keywords"], load_tokenizer(Path(said["tokenizer"])), said["ends"], said["k_max"]
    )


class VocabularyProcessor(AdapterLogitsProcessor):  # type: ignore[misc]
    """Masks the logits of each request that names a vocabulary."""

    def is_argmax_invariant(self) -> bool:
        """The most probable token may be a forbidden one."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        """The request's own mask, or None where it names no vocabulary."""
        file = (params.extra_args or {}).get(ARGUMENT)
        return None if file is None else _Mask(_vocabulary(file))


class _Mask:
    def __init__(self, vocabulary: KeywordConstraint) -> None:
        self._vocabulary = vocabulary
        self._writing = vocabulary.start()
        self._seen = 0

    def __call__(self, output_ids: list[int], logits: Any) -> Any:
        import torch

        for token in output_ids[self._seen :]:
            if not self._writing.ended:
                self._vocabulary.advance(self._writing, token)
        self._seen = len(output_ids)
        if self._writing.ended:
            return logits
        allowed = torch.tensor(self._vocabulary.allowed(self._writing), device=logits.device)
        masked = torch.full_like(logits, -torch.inf)
        masked[allowed] = logits[allowed]
        return masked
