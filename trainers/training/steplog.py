"""Step figures as jsonl, and the watch over them: a loss that is no number, a policy that collapses.

Trainer callbacks, the public way to look at a training step. Nothing here changes what is learned.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState

from cogr.errors import CheckFailedError, TrainingError
from cogr.training_settings import WatchSettings
from trainers.training.scorer import Scorer, Tally, commonest_share

log = logging.getLogger(__name__)

Say = Callable[[str], None]


class _JsonLog(TrainerCallback):
    """Writes one line a step; begins anew, since a stage that is done again starts at its first step."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self.losses: list[float] = []

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def check_loss(self, logs: Mapping[str, Any], step: int) -> None:
        """Raise TrainingError when the loss or the gradient is no number."""
        for name in ("loss", "grad_norm"):
            value = logs.get(name)
            if value is not None and not math.isfinite(float(value)):
                raise TrainingError(
                    f"The {name} of step {step} is {float(value)}: the training has diverged; lower the learning rate, "
                    "or set training.dtype to float32."
                )


class SftLog(_JsonLog):
    """Loss, learning rate and seconds of each SFT step."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._began = 0.0

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = time.perf_counter()

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
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


class GrpoLog(_JsonLog):
    """The figures of each GRPO step, from the scorer's tally and the trainer's own log.

    Args:
        path: the jsonl file.
        scorer: the reward callable of the same trainer.
        known: keywords of the side's snapshot before; others are new.
        watch: when a collapse is named and when it stops the stage.
        say: where a collapse is named.
    """

    def __init__(self, path: Path, scorer: Scorer, known: Collection[str], watch: WatchSettings, say: Say) -> None:
        super().__init__(path)
        self._scorer = scorer
        self._known = known
        self._watch = Watch(watch, say)
        self._began = self._ended = 0.0
        self.rewards: list[float] = []
        self.seconds = {"rollout": 0.0, "reward": 0.0, "update": 0.0}

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._ended = time.perf_counter()

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
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
                **{name: logs[name] for name in ("loss", "grad_norm", "learning_rate", "entropy") if name in logs},
            }
        )
        self._watch.see(state.global_step, shares)

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


def step_shares(tally: Tally, known: Collection[str]) -> dict[str, float]:
    """Means and shares of one step's completions."""
    count = max(1, len(tally.rewards))
    words = [word for _, keywords in tally.sets for word in keywords]
    return {
        "reward": float(np.mean(tally.rewards)) if tally.rewards else 0.0,
        "reward_std": float(np.std(tally.rewards)) if tally.rewards else 0.0,
        "equal_groups": tally.equal_groups / max(1, tally.groups),
        "over_budget": tally.over_budget / count,
        "unfinished": tally.unfinished / count,
        "empty": sum(not keywords for _, keywords in tally.sets) / count,
        "one_list": commonest_share(tally.sets),
        "keywords": len(words) / count,
        "new_keywords": sum(word not in known for word in words) / max(1, len(words)),
    }


_COLLAPSES = {
    "empty": "the lists are empty",
    "one_list": "all entities get one list",
    "over_budget": "the lists are over the budget",
    "unfinished": "the lists don't end before the length limit",
    "equal_groups": "all rewards of a group are equal, so that there is nothing to learn from",
}
_ADVICE = "lower the learning rate, train SFT longer, or look at the prompts; the step log has the figures"


class Watch:
    """Names a collapse that lasts, and stops the stage when it goes on.

    Args:
        settings: from which share on it is one, after how many steps it is named, after how many the stage stops.
        say: where it is named.
    """

    def __init__(self, settings: WatchSettings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._lasting = dict.fromkeys(_COLLAPSES, 0)

    def see(self, step: int, shares: Mapping[str, float]) -> None:
        """Look at one step's figures. Raises CheckFailedError when a collapse has lasted for the patience."""
        for name, what in _COLLAPSES.items():
            self._lasting[name] = self._lasting[name] + 1 if shares[name] >= self._settings.share else 0
            if self._lasting[name] == self._settings.steps:
                self._say(f"step {step}: the policy is collapsing, {what} for {self._settings.steps} steps")
            if self._lasting[name] >= self._settings.patience:
                raise CheckFailedError(
                    f"The policy has collapsed: at step {step} {what}, for {self._lasting[name]} steps in a row "
                    f"(training.watch.patience); {_ADVICE}."
                )
