"""Off GPUs SFT projects the answers alone onto the vocabulary: the losses are those of TRL's own trainer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cogr.prompts import Prompt
from cogr.training_settings import LoraSettings, SftSettings, TinySettings, TrainingSettings
from trainers.training import sft

pytestmark = [pytest.mark.slow, pytest.mark.model]

WORDS = ["oak", "teal", "velvet", "lamp", "desk", "sofa", "rattan", "stool"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trainers.training.tiny import tiny_model

    folder = tmp_path_factory.mktemp("base")
    tiny_model(folder, [" ".join(WORDS)] * 3, TinySettings(hidden=32, layers=1, heads=2, vocabulary=400), seed=0)
    return folder


def losses(base: Path, log: Path, rank: int, trainer: Callable[[], Any]) -> list[float]:
    """Of two epochs with micro batches of 4, 2 to a step, answers and prompts of many lengths."""
    drawn = random.Random(0)
    settings = SftSettings(batch_size=8, micro_batch=4, learning_rate=1e-3)
    job = sft.SftJob(
        base=base,
        prompts=[Prompt("", " ".join(drawn.choices(WORDS, k=drawn.randint(1, 20)))) for _ in range(24)],
        targets=[drawn.sample(WORDS, k=drawn.randint(1, 5)) for _ in range(24)],
        epochs=2,
        log=log,
        halvings=0,
        settings=TrainingSettings(sft=settings, lora=LoraSettings(rank=rank), dtype="float32"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sft, "_trainer_class", trainer)
        sft.run_sft(job)
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()]


@pytest.mark.parametrize("rank", [0, 4])
def test_the_losses_are_those_of_trls_own_trainer(base: Path, tmp_path: Path, rank: int) -> None:
    from trl import SFTTrainer

    ours = losses(base, tmp_path / "ours.jsonl", rank, sft._trainer_class)
    theirs = losses(base, tmp_path / "theirs.jsonl", rank, lambda: SFTTrainer)
    assert len(ours) == 6
    assert ours[-1] < ours[0]
    assert ours == pytest.approx(theirs, rel=1e-5)
