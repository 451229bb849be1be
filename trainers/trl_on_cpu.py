"""The only override of TRL's code, off on GPUs: without a GPU, score the answers alone.

What: TRL's trainers compute log probabilities of the answers alone where its Triton kernel runs.
Elsewhere they project every position onto the vocabulary: prompts and padding too. The override
makes them take the first way, in torch, without Triton.

Why: that projection is most of a small model's work on a CPU. Losses and gradients are the same
(`tests/trainers/test_trl_on_cpu.py`).

How: TRL has no option for it, so its private check of the device, `trl.trainer.utils._use_triton`,
is replaced. A TRL without that check is left as it is, and is slower.
"""

from __future__ import annotations


def score_answers_only() -> None:
    """Apply the override to this process; with a GPU nothing is changed."""
    import torch
    from trl.trainer import utils

    if not torch.cuda.is_available() and hasattr(utils, "_use_triton"):
        utils._use_triton = lambda _: True
