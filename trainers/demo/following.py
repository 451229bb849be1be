"""How far a training stage is: its step log, read while another process writes it.

It looks on and changes nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cogr.progress import Say
from cogr.settings.training import TrainingSettings
from trainers.training.runs import Run
from trainers.training.state import Round, StageName

_EVERY = 0.5

DOING: dict[StageName, str] = {
    "targets": "choosing what to learn",
    "train-item": "training the item side",
    "train-query": "training the query side",
    "index-item": "writing keywords of all items",
    "index-query": "writing keywords of all queries",
    "accept-items": "taking the new sets that pay",
    "evaluate": "measuring",
}


@dataclass(frozen=True)
class Stage:
    """A stage under way.

    Attributes:
        log: its step log; None where it has no steps.
        steps: how many it will have; None where that is not known.
    """

    name: str
    log: Path | None
    steps: int | None


def stage_under_way(run: Run, settings: TrainingSettings) -> Stage | None:
    """The stage that a run is at; None between rounds."""
    now = run.state().unfinished
    if now is None or now.next_stage is None:
        return None
    name = f"{f'round {now.number}' if now.number else 'sft'}: {DOING[now.next_stage]}"
    if not now.next_stage.startswith("train-"):
        return Stage(name, None, None)
    log = run.folder("logs") / f"r{now.number:03d}-{now.next_stage.removeprefix('train-')}.jsonl"
    return Stage(name, log, _steps(now, now.next_stage, settings))


def _steps(now: Round, stage: StageName, settings: TrainingSettings) -> int | None:
    """How many steps a training stage has: SFT's by its examples, GRPO's where the settings name
    them.
    """
    side = stage.removeprefix("train-")
    if now.number:
        return (settings.item if side == "item" else settings.query).max_steps
    targets = now.stage("targets")
    if targets is None:
        return None
    examples = int(targets.notes["items" if side == "item" else "queries"])
    epochs = settings.sft.item_epochs if side == "item" else settings.sft.query_epochs
    return math.ceil(math.ceil(examples / settings.sft.batch_size) * epochs)


def how_far(stage: Stage, done: int, rate: float | None = None) -> str:
    """One line: stage, steps, rate, time left as far as it is known.

    Args:
        done: steps so far.
        rate: steps a second; None while it is not known.
    """
    line = f"{stage.name}, step {done:,}" + (f" of {stage.steps:,}" if stage.steps else "")
    if not rate:
        return line
    line += f", {rate:.1f} steps/s" if rate >= 1 else f", {1 / rate:.1f} s a step"
    if stage.steps is None:
        return line
    left = round(max(0, stage.steps - done) / rate)
    return f"{line}, {left // 60}:{left % 60:02d} left"


@contextmanager
def followed(say: Say) -> Iterator[Callable[[Stage | None], None]]:
    """Inside the block, `say` hears twice a second how far the stage is that was last given to the
    yielded function.
    """
    follower = _Follower(say)
    thread = threading.Thread(target=follower.run, daemon=True, name="following")
    thread.start()
    try:
        yield follower.follow
    finally:
        follower.ended.set()
        thread.join()


class _Follower:
    def __init__(self, say: Say) -> None:
        self._say = say
        self._stage: Stage | None = None
        self._since = time.time()
        self._first: tuple[float, int] | None = None
        self.ended = threading.Event()

    def follow(self, stage: Stage | None) -> None:
        self._stage, self._since, self._first = stage, time.time(), None

    def run(self) -> None:
        while not self.ended.wait(_EVERY):
            stage = self._stage
            if stage is not None and stage.log is not None:
                self._look(stage, stage.log)

    def _look(self, stage: Stage, log: Path) -> None:
        # The log of an earlier attempt is replaced when the stage begins its first step.
        if not log.exists() or log.stat().st_mtime < self._since:
            return
        done, now = log.read_bytes().count(b"\n"), time.monotonic()
        if not done:
            return
        if self._first is None:
            self._first = now, done
        began, before = self._first
        self._say(how_far(stage, done, (done - before) / (now - began) if done > before else None))
