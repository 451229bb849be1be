"""Monitoring of training: the figures of each step as jsonl, and when a stage ends: where its
reward rises no more, and with an error where a loss is not a number.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from cogr.errors import TrainingError
from cogr.records import Advance, Say
from indexers.telemetry.terminal import progress_bar
from trainers.training import ranks

_OURS = {
    "reward": "rewards/retrieval/mean",
    "reward_std": "rewards/retrieval/std",
    "equal_groups": "frac_reward_zero_std",
}
"""Name in the step log -> name of TRL."""
SHARES = ("over_budget", "unfinished", "empty", "keywords")
"""What `CompletionScorer` adds to TRL's figures."""
MIN_WINDOW = 10
"""Fewest steps whose mean reward is compared with that of the steps before."""


class StepLog(ExitStack):
    """Writes one line a step and shows progress. `as_callback` of `checkpoints` connects it to a
    trainer, whose checkpoints keep the figures of the steps before them.

    Of several processes the first one writes. Used as a context around the training, so that
    progress ends with it.

    Args:
        scored: of GRPO; otherwise of SFT.
        whole: do all steps, also when the reward rises no more.
    """

    def __init__(
        self, path: Path, say: Say = print, *, scored: bool = False, whole: bool = True
    ) -> None:
        super().__init__()
        self.records: list[Mapping[str, Any]] = []
        self._path, self._scored, self._whole, self._say = path, scored, whole, say
        self._window, self._began = 0, 0.0
        self._file: TextIO | None = None
        self._advance: Advance = lambda _: None

    def begins(self, steps: int, before: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin a training of `steps` steps; `before` are the figures of steps done before a
        resume.
        """
        self._window = max(MIN_WINDOW, steps // 5)
        if ranks.is_first():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            opened = self._path.open("w", encoding="utf-8", buffering=1)
            self._file = self.enter_context(opened)
            what = f"training, {self._path.stem.rpartition('-')[2]} side"
            self._advance = self.enter_context(progress_bar(what, steps))
        for logs in before:
            self._record(logs["step"], logs)

    def step_begins(self) -> None:
        """Note the time at which a step begins."""
        self._began = time.perf_counter()

    def logged(self, step: int, logs: Mapping[str, Any]) -> bool:
        """The trainer's figures of a step. Returns whether the stage may end with it: the mean
        reward of the last fifth of its steps (10 at least) is not above that of the fifth before.

        Raises TrainingError where the loss or the gradient is NaN or infinite.
        """
        for name in ("loss", "grad_norm"):
            if not math.isfinite(value := float(logs.get(name, 0))):
                raise TrainingError(
                    f"The {name} of step {step} is {value}: the training has diverged; lower the "
                    "learning rate."
                )
        seconds = round(time.perf_counter() - self._began, 4)
        self._record(step, logs, seconds=seconds)
        if self._whole or not self._is_level():
            return False
        self._say(
            f"step {step}: the reward has not risen for {self._window} steps, so the stage "
            "ends here"
        )
        return True

    def keep_completions(self, folder: Path) -> None:
        """Keep the completions of a step, which TRL writes to a stage's folder after its figures,
        beside the log, in place of those of the step before.
        """
        if ranks.is_first():
            for file in sorted(folder.glob("completions/*.parquet")):
                file.replace(self._path.with_suffix(".parquet"))

    def _record(self, step: int, logs: Mapping[str, Any], **more: Any) -> None:
        names = ("loss", "grad_norm", "learning_rate", "entropy", "kl")
        record = {"step": step, **{name: logs[name] for name in names if name in logs}, **more}
        if self._scored:
            shares = {name: logs[theirs] for name, theirs in _OURS.items()}
            shares |= {name: logs[name] for name in SHARES}
            record |= {name: round(value, 6) for name, value in shares.items()}
        self.records.append(record)
        self._advance(1)
        if self._file is not None:
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _is_level(self) -> bool:
        rewards = [record["reward"] for record in self.records[-2 * self._window :]]
        before, last = rewards[: self._window], rewards[self._window :]
        return len(rewards) == 2 * self._window and bool(np.mean(last) <= np.mean(before))

    @property
    def notes(self) -> Mapping[str, Any]:
        """For the record of the stage: the steps, and the first and last loss of SFT, or the mean
        rewards of the first and last tenth of the steps.
        """
        name, many = ("reward", max(1, len(self.records) // 10)) if self._scored else ("loss", 1)
        parts = filter(None, (self.records[:many], self.records[-many:]))
        ends = [round(float(np.mean([record[name] for record in part])), 4) for part in parts]
        return {"steps": len(self.records), name: ends}
