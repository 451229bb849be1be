"""Off GPUs: project answers onto the vocabulary, not the prompts and the padding around them.

TRL's trainers ask a model for the log-probabilities of labels (`trl.add_fused_lm_head`). Where
Triton runs, labelled positions alone are projected; elsewhere all are, which is most of a small
model's work: in a query stage on film search, one answer token among 15. The model that the
trainers are given answers the same question here, by TRL's own kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

_OWN_SCALES = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)

_TOKENS_AT_ONCE = 32_768
"""Of the vocabulary: as TRL has it."""


def project_answers_only(model: Any, temperature: float = 1.0) -> None:
    """Replace what a trainer of TRL asks of its model; figures and gradients stay as they are.

    Nothing is done on GPUs, nor to a model that scales or caps its logits.

    Args:
        model: a causal language model that a trainer has been made with, adapters included.
        temperature: what logits are divided by, as that trainer does.
    """
    import torch

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if torch.cuda.is_available() or any(
        getattr(base.config, name, None) is not None for name in _OWN_SCALES
    ):
        return
    whole = base.forward

    @functools.wraps(whole)
    def forward(*args: Any, fused_lm_head: bool = False, labels: Any = None, **asked: Any) -> Any:
        if fused_lm_head and labels is not None and not args:
            return _scored(base, asked, labels, temperature)
        return whole(
            *args, **({"fused_lm_head": True} if fused_lm_head else {}), labels=labels, **asked
        )

    base.forward = forward


def _scored(model: Any, asked: Mapping[str, Any], labels: Any, temperature: float) -> Any:
    from trl.kernels import ChunkedLogProbFunction
    from trl.trainer.utils import FusedCausalLMOutput

    read = {name: asked[name] for name in ("input_ids", "attention_mask")}
    hidden = model.base_model(**read, use_cache=False).last_hidden_state[:, :-1]
    following = labels[:, 1:]
    mask = following != -100
    head = model.get_output_embeddings()
    found = ChunkedLogProbFunction.apply(
        hidden[mask], head.weight, head.bias, following[mask], temperature, _TOKENS_AT_ONCE, None, 1.0,
        ("entropy", "is_top1"),
    )  # fmt: skip
    logs, entropy, is_top1 = (
        x.new_zeros(mask.shape).masked_scatter(mask, x) for x in found if x is not None
    )
    return FusedCausalLMOutput(log_probs=logs, entropy=entropy, is_top1=is_top1, label_mask=mask)
