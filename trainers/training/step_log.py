"""Monitoring of training: the figures of each step as jsonl, and the collapse detector, which warns
of a collapsing policy and then stops the stage.

Nothing here changes what is learned. A loss that is NaN or infinite stops the stage.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from cogr.errors import CheckFailedError, TrainingError
from cogr.records import Advance, Say
from indexers.telemetry.terminal import progress_bar
from trainers.training import ranks


@dataclass
class Tally:
    """Statistics of one step's completions.

    Attributes:
        generations: completions a prompt, one after another.
    """

    generations: int
    started: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    rewards: list[float] = field(default_factory=list)
    sets: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    over_budget: int = 0
    unfinished: int = 0

    @classmethod
    def together(cls, tallies: Sequence[Tally]) -> Tally:
        """The tallies of all processes joined in the order of ranks, as TRL orders the completions;
        times are those of the first.
        """
        return replace(
            tallies[0],
            tokens=sum(tally.tokens for tally in tallies),
            rewards=[reward for tally in tallies for reward in tally.rewards],
            sets=[one for tally in tallies for one in tally.sets],
            over_budget=sum(tally.over_budget for tally in tallies),
            unfinished=sum(tally.unfinished for tally in tallies),
        )

    @property
    def equal_groups(self) -> float:
        """Share of prompts whose completions have equal rewards."""
        starts = range(0, len(self.rewards), self.generations)
        groups = [self.rewards[at : at + self.generations] for at in starts]
        return sum(max(group) - min(group) < 1e-12 for group in groups) / max(1, len(groups))


def step_shares(tally: Tally, known: Collection[str]) -> dict[str, float]:
    """Means and shares of one step's completions."""
    count = max(1, len(tally.rewards))
    words = [word for _, keywords in tally.sets for word in keywords]
    return {
        "reward": float(np.mean(tally.rewards)) if tally.rewards else 0.0,
        "reward_std": float(np.std(tally.rewards)) if tally.rewards else 0.0,
        "equal_groups": tally.equal_groups,
        "over_budget": tally.over_budget / count,
        "unfinished": tally.unfinished / count,
        "empty": sum(not keywords for _, keywords in tally.sets) / count,
        "one_list": commonest_share(tally.sets),
        "keywords": len(words) / count,
        "new_keywords": sum(word not in known for word in words) / max(1, len(words)),
    }


def commonest_share(sets: Sequence[tuple[str, tuple[str, ...]]]) -> float:
    """Largest share of entities that got the same non-empty set at least once; 1: one
    set for all.
    """
    entities = {id_ for id_, _ in sets}
    seen = Counter(words for _, words in {(id_, frozenset(words)) for id_, words in sets} if words)
    return max(seen.values(), default=0) / len(entities) if len(entities) > 1 else 0.0


# The collapse detector

_COLLAPSES = {
    "empty": "the lists are empty",
    "one_list": "all entities get one list",
    "over_budget": "the lists are over the budget",
    "unfinished": "the lists don't end before the length limit",
    "equal_groups": "all rewards of a group are equal, so that there is nothing to learn from",
}
_ADVICE = (
    "lower the learning rate, train SFT longer, or look at the prompts; the step log has the "
    "figures"
)


@dataclass(frozen=True)
class CollapseLimits:
    """Thresholds of a collapse for all data. A policy past them does not recover.

    Attributes:
        share: share of completions (of groups, for equal rewards) from which a step counts as
            collapsed.
        steps: collapsed steps in a row before a warning.
        patience: collapsed steps in a row before the stage stops.
    """

    share: float = 0.95
    steps: int = 10
    patience: int = 30


LIMITS = CollapseLimits()


class CollapseDetector:
    """Warns of a collapse that lasts, and stops the stage when it goes on.

    Args:
        say: gets the warning.
        limits: `LIMITS`, but for tests.
    """

    def __init__(self, say: Say, limits: CollapseLimits | None = None) -> None:
        self._say = say
        self._limits = limits or LIMITS
        self._streaks = dict.fromkeys(_COLLAPSES, 0)

    def see(self, step: int, shares: Mapping[str, float]) -> list[str]:
        """Take one step's figures. Returns the warnings of collapses that have lasted
        long enough.
        """
        for name, what in _COLLAPSES.items():
            self._streaks[name] = (
                self._streaks[name] + 1 if shares[name] >= self._limits.share else 0
            )
            if self._streaks[name] == self._limits.steps:
                self._say(
                    f"step {step}: the policy is collapsing, {what} for {self._limits.steps} steps"
                )
        return [name for name, steps in self._streaks.items() if steps >= self._limits.steps]

    def stop(self, step: int) -> None:
        """Raise CheckFailedError when a collapse has lasted for `patience` steps."""
        for name, steps in self._streaks.items():
            if steps >= self._limits.patience:
                raise CheckFailedError(
                    f"The policy has collapsed: at step {step} {_COLLAPSES[name]}, for {steps} "
                    f"steps in a row; {_ADVICE}."
                )


# The log


class StepLog:
    """Writes one line a step and shows progress. It begins anew, or goes on after the checkpoint
    from which the stage resumes. `as_callback` connects it to a trainer.

    Of several processes the first one writes. Used as a context around the training, so that
    progress ends with it.

    Args:
        path: the jsonl file.
        goes_on_after: the step up to which its lines are kept.
    """

    def __init__(self, path: Path, *, goes_on_after: int = 0) -> None:
        self.losses: list[float] = []
        self._began = self._ended = 0.0
        self._file: TextIO | None = None
        self._shown = ExitStack()
        self._advance: Advance = lambda _: None
        self._what = f"training, {path.stem.rpartition('-')[2]} side"
        self._done = goes_on_after
        if not ranks.is_first():
            return
        for record in (kept := _until(path, goes_on_after)):
            self._seen(record)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._file.writelines(_line(record) for record in kept)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._shown.close()
        if self._file is not None:
            self._file.close()

    def begins(self, steps: int) -> None:
        """Training begins, of so many steps."""
        if self._file is not None:
            self._advance = self._shown.enter_context(progress_bar(self._what, steps))
            self._advance(self._done)

    def step_begins(self) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def step_ends(self) -> None:
        """A step has ended; its figures follow."""
        self._ended = time.perf_counter()

    def logged(self, step: int, logs: Mapping[str, Any]) -> None:
        """The trainer's own figures of a step: loss, gradient, learning rate, entropy.

        Raises:
            TrainingError: the loss or the gradient is NaN or infinite.
            CheckFailedError: the policy has collapsed.
        """
        raise NotImplementedError

    def _seen(self, record: Mapping[str, Any]) -> None:
        """Take a step's figures into the notes."""
        self.losses.append(float(record["loss"]))

    def write(self, record: Mapping[str, Any]) -> None:
        """Keep a step's figures, and write them."""
        self._seen(record)
        self._advance(1)
        if self._file is not None:
            self._file.write(_line(record))

    def check_loss(self, logs: Mapping[str, Any], step: int) -> None:
        """Raise TrainingError when the loss or the gradient is NaN or infinite."""
        for name in ("loss", "grad_norm"):
            value = logs.get(name)
            if value is not None and not math.isfinite(float(value)):
                raise TrainingError(
                    f"The {name} of step {step} is {float(value)}: the training has diverged; "
                    "lower the learning rate, or set training.dtype to float32."
                )


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _until(path: Path, step: int) -> list[Mapping[str, Any]]:
    """The lines of a log up to a step; none without a log."""
    if not step or not path.exists():
        return []
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()[:step]]
    return [record for record in records if record["step"] <= step]


class SftLog(StepLog):
    """Loss, learning rate and seconds of each SFT step."""

    def logged(self, step: int, logs: Mapping[str, Any]) -> None:
        self.check_loss(logs, step)
        self.write(
            {
                "step": step,
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


class GrpoLog(StepLog):
    """The figures of each GRPO step, from the scorer's tally and the trainer's own log.

    Args:
        path: the jsonl file.
        tally: counts of the step by the trainer's reward callable. Each process has its own; the
            log joins them.
        known: keywords of the side's snapshot before; others are new.
        say: where a collapse is named.
        goes_on_after: as of `StepLog`; the collapse detector has seen those steps.
    """

    def __init__(
        self,
        path: Path,
        tally: Callable[[], Tally],
        known: Collection[str],
        say: Say,
        *,
        goes_on_after: int = 0,
    ) -> None:
        self._tally = tally
        self._known = known
        self._detector = CollapseDetector(say)
        self.rewards: list[float] = []
        self.seconds = {"rollout": 0.0, "reward": 0.0, "update": 0.0}
        super().__init__(path, goes_on_after=goes_on_after)

    def logged(self, step: int, logs: Mapping[str, Any]) -> None:
        self.check_loss(logs, step)
        tally = Tally.together(ranks.gather(self._tally()))
        times = {
            "rollout": tally.started - self._began,
            "reward": tally.ended - tally.started,
            "update": self._ended - tally.ended,
        }
        shares = step_shares(tally, self._known)
        self.write(
            {
                "step": step,
                **{name: round(value, 6) for name, value in shares.items()},
                "tokens_per_second": round(tally.tokens / max(times["rollout"], 1e-9), 1),
                "seconds": {name: round(seconds, 5) for name, seconds in times.items()},
                **{
                    name: logs[name]
                    for name in ("loss", "grad_norm", "learning_rate", "entropy")
                    if name in logs
                },
                "collapsing": self._detector.see(step, shares),
            }
        )
        self._detector.stop(step)

    def _seen(self, record: Mapping[str, Any]) -> None:
        super()._seen(record)
        self.rewards.append(record["reward"])
        for name, seconds in record["seconds"].items():
            self.seconds[name] += seconds
        if record["step"] <= self._done:
            self._detector.see(record["step"], record)

    @property
    def notes(self) -> Mapping[str, Any]:
        """First and last reward, and the seconds by activity, for the record of the stage."""
        tenth = max(1, len(self.rewards) // 10)
        ends = (self.rewards[:tenth], self.rewards[-tenth:])
        return {
            "steps": len(self.rewards),
            "reward": [round(float(np.mean(values)), 4) for values in ends if values],
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
        }


def as_callback(log: StepLog) -> Any:
    """A trainer's callback that passes its steps to a log."""
    from transformers import TrainerCallback

    class Callback(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            log.begins(state.max_steps)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            log.step_begins()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            log.step_ends()

        def on_log(self, _a: Any, state: Any, _c: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                log.logged(state.global_step, logs)

    return Callback()
