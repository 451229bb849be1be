"""Off GPUs answers alone are scored; losses and gradients are those of TRL's trainers
as they are.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cogr.prompts import Prompt
from cogr.settings.training import LoraSettings, SftSettings, TrainingSettings
from tests.shops import read_jsonl
from tests.trainers.shop import Shop
from trainers.tiny import tiny_model
from trainers.training import grpo, sft
from trainers.training import trainer_config as options
from trainers.training.inputs import Inputs
from trainers.training.rounds import Round, StageRecord, open_run

pytestmark = [pytest.mark.slow, pytest.mark.model]

WORDS = ["oak", "teal", "velvet", "lamp", "desk", "sofa", "rattan", "stool"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny_model(folder, [" ".join(WORDS)] * 3, seed=0)
    return folder


def leave_to_trl(patch: pytest.MonkeyPatch) -> None:
    """Score every position, as TRL does where Triton does not run."""
    from trl.kernels.chunked_logprob import _use_triton
    from trl.trainer import utils

    patch.setattr(options, "score_answers_only", lambda: None)
    patch.setattr(utils, "_use_triton", _use_triton)


def losses(base: Path, log: Path, rank: int, *, ours: bool) -> list[float]:
    """Of two epochs, answers and prompts of many lengths, in two micro batches a step."""
    drawn = random.Random(0)
    texts = [" ".join(drawn.choices(WORDS, k=drawn.randint(1, 20))) for _ in range(24)]
    prompts = [Prompt("", text) for text in texts]
    targets = [drawn.sample(WORDS, k=drawn.randint(1, 5)) for _ in range(24)]
    settings = SftSettings(batch_size=8, learning_rate=1e-3)
    training = TrainingSettings(sft=settings, lora=LoraSettings(rank=rank))
    folder = log.parent / log.stem / "stage" / "begun"
    with pytest.MonkeyPatch.context() as patch:
        if not ours:
            leave_to_trl(patch)
        sft.run_sft(base, prompts, targets, 2, log, training, folder, retries=2)
    return [line["loss"] for line in read_jsonl(log)]


@pytest.mark.parametrize("rank", [0, 4])
def test_the_losses_are_those_of_trls_own_trainer(base: Path, tmp_path: Path, rank: int) -> None:
    ours = losses(base, tmp_path / "ours.jsonl", rank, ours=True)
    theirs = losses(base, tmp_path / "theirs.jsonl", rank, ours=False)
    assert len(ours) == 6
    assert ours[-1] < ours[0]
    assert ours == pytest.approx(theirs, rel=1e-5)


def first_round(shop: Shop, *overrides: str) -> Inputs:
    """What the first query stage after SFT reads."""
    workspace = shop.workspace(*overrides)
    run = open_run(workspace, "main")
    done = run.state().rounds[0]
    written = StageRecord(name="index-query", output=done.queries, seconds=0.0)
    return Inputs(workspace, run, Round(number=1, stages=(written,)), done, lambda _: None)


def grpo_steps(shop: Shop, *overrides: str) -> list[dict[str, float]]:
    inputs = first_round(shop, *overrides)
    grpo.run_grpo(inputs, "query")
    return read_jsonl(inputs.log("query"))


def test_a_query_stage_learns_what_trls_own_trainer_learns(copied: Shop) -> None:
    names, ours = ("reward", "loss", "entropy", "grad_norm"), grpo_steps(copied)
    with pytest.MonkeyPatch.context() as patch:
        leave_to_trl(patch)
        theirs = [[step[name] for name in names] for step in grpo_steps(copied)]
    assert len(ours) == 2
    for mine, other in zip(ours, theirs, strict=True):
        assert [mine[name] for name in names] == pytest.approx(other, rel=1e-4, abs=1e-6)
