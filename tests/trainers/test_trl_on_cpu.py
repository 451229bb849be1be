"""Off GPUs answers alone are scored; losses and gradients are those of TRL's trainers
as they are.
"""

from __future__ import annotations

import pytest

from cogr.records import Side
from tests.trainers.shop import Shop, steps
from trainers.training import grpo, sft, trainer_config
from trainers.training.inputs import Inputs
from trainers.training.rounds import Round, open_run
from trainers.word_model import WordModel

pytestmark = [pytest.mark.slow, pytest.mark.model]


def leave_to_trl(patch: pytest.MonkeyPatch) -> None:
    """Score every position, as TRL does where Triton does not run."""
    from trl.kernels.chunked_logprob import _use_triton
    from trl.trainer import utils

    patch.setattr(trainer_config, "score_answers_only", lambda: None)
    patch.setattr(utils, "_use_triton", _use_triton)


def figures(shop: Shop, number: int, side: Side, *overrides: str) -> list[list[float]]:
    """Of each step of a stage that the shop's run has done, done again in two micro batches."""
    workspace = shop.workspace(*overrides)
    run = open_run(workspace, "main")
    sft_round, done = run.state().rounds[0], run.state().rounds[number]
    before = done.stages[: done.plan.index("train-item" if side == "item" else "train-query")]
    now = Round(number=number, stages=before)
    inputs = Inputs(workspace, run, now, sft_round, lambda _: None, retries=2)
    (grpo.run_grpo if number else sft.train_sft)(inputs, side)
    names = ("loss", "grad_norm", *(("reward", "entropy") if number else ()))
    return [[line[name] for name in names] for line in steps(run, f"r{number:03d}-{side}")]


def test_no_queries_are_invented_for_the_item_side(
    copied: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(WordModel, "invent")
    assert copied.workspace().settings.training.invented_queries > 0
    assert figures(copied, 0, "item")


@pytest.mark.parametrize(
    ("number", "side", "overrides"),
    [(0, "item", ()), (0, "item", ("training.lora.rank=4",)), (1, "query", ())],
)
def test_a_stage_learns_what_trls_own_trainer_learns(
    copied: Shop, number: int, side: Side, overrides: tuple[str, ...]
) -> None:
    ours = figures(copied, number, side, *overrides)
    with pytest.MonkeyPatch.context() as patch:
        leave_to_trl(patch)
        theirs = figures(copied, number, side, *overrides)
    assert len(ours) == len(theirs) > 1
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-6)
