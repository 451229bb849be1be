"""What the training loop costs on top of TRL: a GRPO step of ours beside one of a plain GRPOTrainer
with a constant reward.

    python benchmarks/bench_grpo_overhead.py            the sample shop as the demo trains it
    python benchmarks/bench_grpo_overhead.py --quick    two steps a trainer: figures mean nothing

Both have the same model, prompts, configuration and seed, and a learning rate that moves nothing,
so that step k of the one draws what step k of the other draws. They run in turns; of each step the
shortest time over the turns counts, since what else the machine does only adds. Ours has the real
rewards, their bookkeeping and the step log.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from _timing import Row, report

from cogr.records import Side
from indexers.workspace import Workspace
from trainers.demo import CATALOGUE, SAMPLE_SETTINGS
from trainers.training.driver import Driver
from trainers.training.inputs import Inputs
from trainers.training.rounds import Round, StageRecord, create
from trainers.training.stage import Launcher


@dataclass(frozen=True)
class Sizes:
    """Turns of each trainer, steps of a turn, and settings on top of the demo's."""

    turns: int
    steps: int
    settings: dict[str, Any]


# A learning rate that float32 weights don't feel.
_COMMON = {
    "training.invented_queries": 0,
    "training.query.learning_rate": 1e-30,
    "training.item.learning_rate": 1e-30,
}
FULL = Sizes(8, 4, _COMMON)
QUICK = Sizes(
    1,
    2,
    {
        **_COMMON,
        "training.sft.epochs": 1,
        "training.rollouts.max_tokens": 8,
        "training.query.prompts_per_step": 4,
        "training.item.prompts_per_step": 4,
        "generator.sampling.max_tokens": 8,
    },
)
TARGET_OVERHEAD, TARGET_REWARDS = 3.0, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        inputs = after_sft(Path(folder), sizes)
        report(rows(inputs, sizes), as_json=options.json)


def after_sft(folder: Path, sizes: Sizes) -> Inputs:
    """The sample shop with SFT done, as the GRPO stages of round 1 see it; both sides against the
    snapshots of SFT.
    """
    config = folder / "cogr.toml"
    config.write_text(
        f'store = "store"\n[dataset]\nloader = "jsonl"\npath = {json.dumps(str(CATALOGUE))}\n'
    )
    settings = {
        **SAMPLE_SETTINGS,
        **sizes.settings,
        "training.query.max_steps": sizes.steps,
        "training.item.max_steps": sizes.steps,
    }
    overrides = [
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()
    ]
    workspace = Workspace.open(config, overrides)
    run = create(workspace)
    done = Driver(workspace, run, Launcher(config, overrides), lambda _: None).reach(0)
    queries = StageRecord(name="index-query", output=done.queries, seconds=0.0)
    return Inputs(workspace, run, Round(number=1, stages=(queries,)), done, lambda _: None)


def rows(inputs: Inputs, sizes: Sizes) -> Iterator[Row]:
    """Overhead and share of rewards, for each side."""
    for side in ("query", "item"):
        ours, plain, shares = compare(inputs, side, sizes)
        notes = {
            "turns": sizes.turns,
            "steps": sizes.steps,
            "plain": f"{plain:.3f} s a step",
            "ours": f"{ours:.3f} s",
        }
        yield Row(
            f"overhead over a plain GRPOTrainer, {side}",
            100 * (ours / plain - 1),
            "%",
            TARGET_OVERHEAD,
            notes=notes,
        )
        yield Row(f"share of rewards in a step, {side}", 100 * shares, "%", TARGET_REWARDS)


def compare(inputs: Inputs, side: Side, sizes: Sizes) -> tuple[float, float, float]:
    """Seconds a step of ours and of the plain trainer, and the share of rewards in ours."""
    times: dict[str, list[list[float]]] = {"ours": [], "plain": []}
    rewards = whole = 0.0
    for turn in range(sizes.turns):
        order = ("ours", "plain") if turn % 2 else ("plain", "ours")
        for name in order:
            trainer, seconds = (our_trainer if name == "ours" else plain_trainer)(inputs, side)
            times[name].append(timed(trainer))
            rewards += seconds()
            whole += sum(times[name][-1]) if name == "ours" else 0.0
    ours, plain = (
        sum(map(min, zip(*times[name], strict=True))) / sizes.steps for name in ("ours", "plain")
    )
    return ours, plain, rewards / whole


Seconds = Callable[[], float]


def our_trainer(inputs: Inputs, side: Side) -> tuple[Any, Seconds]:
    """The trainer of a training stage, and the seconds of its rewards."""
    from trainers.training.grpo import prepare_grpo

    trainer, _ = prepare_grpo(inputs, side)
    return trainer, lambda: trainer.reward_funcs[0].seconds


def plain_trainer(inputs: Inputs, side: Side) -> tuple[Any, Seconds]:
    """TRL's trainer alone: the same arguments but for the log, which is TRL's own with its default
    frequency.
    """
    from trl import GRPOConfig, GRPOTrainer

    from trainers.training.checkpoints import base_folder, load_model
    from trainers.training.grpo import prepare_grpo
    from trainers.training.trainer_config import silence

    ours, _ = prepare_grpo(inputs, side)
    ours.args.logging_steps = GRPOConfig.logging_steps
    trainer = GRPOTrainer(
        model=load_model(base_folder(inputs.run, inputs.model_before(side))),
        reward_funcs=constant,
        args=ours.args,
        train_dataset=ours.train_dataset,
        processing_class=ours.processing_class,
    )
    silence(trainer)
    return trainer, lambda: 0.0


def constant(completions: Sequence[Any], **_: object) -> list[float]:
    """The reward of the plain trainer."""
    return [0.5] * len(completions)


def timed(trainer: Any) -> list[float]:
    """Seconds of each step, from its beginning to that of the next; callbacks and logs included."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.ticks: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.ticks.append(perf_counter())

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.ticks.append(perf_counter())

    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    return [after - before for before, after in zip(clock.ticks, clock.ticks[1:], strict=False)]


if __name__ == "__main__":
    main()
