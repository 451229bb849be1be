"""Step figures as jsonl, and as TensorBoard events when asked: trainer callbacks, the public way to
look at a training step.

Nothing here changes what is learned.
A loss that is no number stops the stage here; a policy that collapses is `watch`'s business.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from transformers import TrainerCallback, TrainerState

from cogr.errors import TrainingError
from cogr.progress import Advance, Say
from cogr.settings.training import WatchSettings
from indexers.cli.reports import progress_bar
from trainers.training.scorer import Scorer
from trainers.training.watch import Watch, step_shares


class _StepLog(TrainerCallback):  # type: ignore[misc]
    """Writes one line a step and shows how far it is; begins anew, since a stage that is done again
    starts at its first step.

    Of several processes the first one writes. Used as a context around the training, so that
    progress ends with it.

    Args:
        path: the jsonl file; TensorBoard events go to `tensorboard/` beside it, in a folder of the
            same name.
        tensorboard: whether to write those.
    """

    def __init__(self, path: Path, tensorboard: bool = False) -> None:
        self.losses: list[float] = []
        self._file: TextIO | None = None
        self._events: Any = None
        self._shown = ExitStack()
        self._advance: Advance = lambda _: None
        self._what = f"training, {path.stem.rpartition('-')[2]} side"
        if os.environ.get("RANK", "0") != "0":
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8", buffering=1)
        folder = path.parent / "tensorboard" / path.stem
        shutil.rmtree(folder, ignore_errors=True)
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(folder))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def on_train_begin(self, _args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        if self._file is not None:
            self._advance = self._shown.enter_context(progress_bar(self._what, state.max_steps))

    def write(self, record: Mapping[str, Any]) -> None:
        self._advance(1)
        if self._file is not None:
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        if self._events is not None:
            for name, value in _scalars(record):
                self._events.add_scalar(name, value, record["step"])
            # A stage may be killed or stopped at any step.
            self._events.flush()

    def check_loss(self, logs: Mapping[str, Any], step: int) -> None:
        """Raise TrainingError when the loss or the gradient is no number."""
        for name in ("loss", "grad_norm"):
            value = logs.get(name)
            if value is not None and not math.isfinite(float(value)):
                raise TrainingError(
                    f"The {name} of step {step} is {float(value)}: the training has diverged; "
                    "lower the learning rate, "
                    "or set training.dtype to float32."
                )


def _scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and prefix + name != "step":
            yield prefix + name, value


class SftLog(_StepLog):
    """Loss, learning rate and seconds of each SFT step."""

    def __init__(self, path: Path, tensorboard: bool = False) -> None:
        super().__init__(path, tensorboard)
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_log(
        self,
        _args: Any,
        state: TrainerState,
        *_: Any,
        logs: dict[str, Any] | None = None,
        **__: Any,
    ) -> None:
        if not logs or "loss" not in logs:
            return
        self.check_loss(logs, state.global_step)
        self.losses.append(float(logs["loss"]))
        self.write(
            {
                "step": state.global_step,
                "loss": logs["loss"],
                "learning_rate": logs.get("learning_rate"),
                "seconds": round(time.perf_counter() - self._began, 4),
            }
        )

    @property
    def notes(self) -> Mapping[str, Any]:
        """First and last loss, for the record of the stage."""
        return {
            "steps": len(self.losses),
            "loss": [round(float(value), 4) for value in (self.losses[:1] + self.losses[-1:])],
        }


class GrpoLog(_StepLog):
    """The figures of each GRPO step, from the scorer's tally and the trainer's own log.

    Args:
        path: the jsonl file.
        scorer: the reward callable of the same trainer.
        known: keywords of the side's snapshot before; others are new.
        watch: when a collapse is named and when it stops the stage.
        say: where a collapse is named.
        tensorboard: write TensorBoard events too.
    """

    def __init__(
        self,
        path: Path,
        scorer: Scorer,
        known: Collection[str],
        watch: WatchSettings,
        say: Say,
        tensorboard: bool = False,
    ) -> None:
        super().__init__(path, tensorboard)
        self._scorer = scorer
        self._known = known
        self._watch = Watch(watch, say)
        self._began = self._ended = 0.0
        self.rewards: list[float] = []
        self.seconds = {"rollout": 0.0, "reward": 0.0, "update": 0.0}

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._ended = time.perf_counter()

    def on_log(
        self,
        _args: Any,
        state: TrainerState,
        *_: Any,
        logs: dict[str, Any] | None = None,
        **__: Any,
    ) -> None:
        if not logs or "loss" not in logs:
            return
        self.check_loss(logs, state.global_step)
        tally = self._scorer.tally
        times = {
            "rollout": tally.started - self._began,
            "reward": tally.ended - tally.started,
            "update": self._ended - tally.ended,
        }
        for name, seconds in times.items():
            self.seconds[name] += seconds
        shares = step_shares(tally, self._known)
        self.rewards.append(shares["reward"])
        self.losses.append(float(logs["loss"]))
        self.write(
            {
                "step": state.global_step,
                **{name: round(value, 6) for name, value in shares.items()},
                "tokens_per_second": round(tally.tokens / max(times["rollout"], 1e-9), 1),
                "seconds": {name: round(seconds, 5) for name, seconds in times.items()},
                **{
                    name: logs[name]
                    for name in ("loss", "grad_norm", "learning_rate", "entropy")
                    if name in logs
                },
                "collapsing": self._watch.see(state.global_step, shares),
            }
        )
        self._watch.stop(state.global_step)

    @property
    def notes(self) -> Mapping[str, Any]:
        """Reward at the ends and where the time went, for the record of the stage."""
        tenth = max(1, len(self.rewards) // 10)
        ends = (self.rewards[:tenth], self.rewards[-tenth:])
        return {
            "steps": len(self.rewards),
            "reward": [round(float(np.mean(values)), 4) for values in ends if values],
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
        }
