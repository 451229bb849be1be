"""How a distributed rebuild stands, and what its workers did, from its files alone."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cogr.records import Side
from cogr.store import Store
from indexers.fleet.run_files import (
    Attempt,
    GivenUp,
    Progress,
    Run,
    RunFolder,
    entities_of,
    latest_run,
    total_rates,
)
from indexers.rebuild.lease import read_lease

State = Literal[
    "running", "silent", "interrupted", "cancelling", "finished", "cancelled", "superseded"
]
"""silent: its coordinator has not renewed its lease. interrupted: its coordinator ended before the
rebuild did, and the same command goes on."""

_LATEST = 16
"""Finished shards whose rate stands for the run's when nothing is under way."""


@dataclass(frozen=True)
class Held:
    """Who is at a shard, and since when."""

    shard: str
    worker: str
    state: str
    since: float
    silent_seconds: float
    items: int
    entities: int
    items_per_second: float
    tokens_per_second: float


@dataclass(frozen=True)
class Trouble:
    """An attempt that brought no result."""

    shard: str
    worker: str
    state: str
    reason: str


@dataclass(frozen=True)
class Overview:
    """One run.

    Attributes:
        done, running, waiting, failed: shards; failed are those given up (split or set aside).
        answered: entities with an answer or a reason, of `to_generate`.
        seconds_left: by the present rate; None when there is none.
        set_aside: id -> reason, of entities that took workers down or failed for the time being.
    """

    side: Side
    run: str
    state: State
    coordinator: str
    note: str
    entities: int
    to_generate: int
    answered: int
    done: int
    running: int
    waiting: int
    failed: int
    unplanned: int
    items_per_second: float
    tokens_per_second: float
    seconds_left: float | None
    snapshot: str | None
    held: tuple[Held, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    set_aside: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def overview(store: Store, side: Side, lost_seconds: float) -> Overview | None:
    """The latest run of a side; None when there has been none.

    Args:
        lost_seconds: a worker that was silent for longer is not counted as running.
    """
    opened = latest_run(store, side)
    return None if opened is None else _Reading(store, *opened, lost_seconds).overview()


def summary_of(folder: RunFolder) -> dict[str, Any]:
    """What a fleet did, for `report.json`; `tokens` and `items` are those of finished shards."""
    attempts, given_up = folder.read_all(Attempt, "attempts"), folder.read_all(GivenUp, "given_up")
    done = {one.shard: one for one in attempts if one.state == "done"}.values()
    workers: dict[str, dict[str, float]] = {}
    for one in done:
        figures = {"items": one.items, "tokens": one.tokens, "seconds": one.seconds}
        its = workers.setdefault(one.worker, {})
        for name, value in {"shards": 1, **figures}.items():
            its[name] = round(its.get(name, 0) + value, 3)
    return {
        "run": folder.run,
        "shards": {"done": len(done), "split": sum(bool(record.parts) for record in given_up)},
        "attempts": dict(Counter(attempt.state for attempt in attempts)),
        "items": sum(one.items for one in done),
        "tokens": sum(one.tokens for one in done),
        "set_aside": sum(len(record.set_aside) for record in given_up),
        "workers": workers,
    }


class _Reading:
    """The files of one run, read once."""

    def __init__(self, store: Store, folder: RunFolder, run: Run, lost_seconds: float) -> None:
        self._now = time.time()
        self._folder = folder
        self._run = run
        self._lost = lost_seconds
        self._lease = read_lease(store, folder.side)
        self._end = folder.ended
        self._given_up = folder.read_all(GivenUp, "given_up")
        self._attempts = folder.read_all(Attempt, "attempts")
        self._done = {one.shard: one for one in self._attempts if one.state == "done"}.values()
        closed = {*(one.shard for one in self._done), *folder.names("given_up")}
        self._open = set(folder.names("shards")) - closed
        self._progress = folder.read(Progress, "progress") or Progress()

    def overview(self) -> Overview:
        running, over = self._running(), self._end is not None
        items, tokens = total_rates(running) if running else _past_rates(self._done)
        answered = self._answered(running)
        left = self._run.to_generate - answered
        set_aside = [done.transient for done in self._done]
        set_aside += [record.set_aside for record in self._given_up]
        return Overview(
            side=self._run.side,
            run=self._run.id,
            state=self._state(),
            coordinator=self._lease.holder if self._lease else "",
            note=(self._end.reason if self._end else "") or self._progress.note,
            entities=self._run.entities,
            to_generate=self._run.to_generate,
            answered=answered,
            done=len(self._done),
            running=len(running),
            waiting=0 if over else len(self._open) - len(running),
            failed=len(self._given_up),
            unplanned=0 if over else self._progress.unplanned,
            items_per_second=round(items, 3),
            tokens_per_second=round(tokens, 3),
            seconds_left=round(left / items, 1) if items > 0 and not over else None,
            snapshot=self._end.snapshot if self._end else None,
            held=tuple(self._held(attempt) for attempt in running),
            troubles=self._troubles(),
            set_aside={id_: why for part in set_aside for id_, why in part.items()},
        )

    def _answered(self, running: list[Attempt]) -> int:
        answered = sum(done.entities for done in self._done)
        answered += sum(min(attempt.items, attempt.entities) for attempt in running)
        for record in self._given_up:
            left = sum(entities_of(part) for part in record.parts)
            answered += entities_of(record.shard) - left
        return min(answered, self._run.to_generate)

    def _running(self) -> list[Attempt]:
        """One attempt for each open shard that a worker has written about lately."""
        if self._end is not None:
            return []
        by_shard = {
            attempt.shard: attempt
            for attempt in self._attempts
            if attempt.shard in self._open and not attempt.final and not self._silent(attempt)
        }
        return [by_shard[shard] for shard in sorted(by_shard)]

    def _silent(self, attempt: Attempt) -> bool:
        return abs(self._now - attempt.updated) >= self._lost

    def _state(self) -> State:
        if self._end is not None:
            return self._end.state
        lease = self._lease
        if lease is None or lease.released:
            return "interrupted"
        if self._folder.cancelled:
            return "cancelling"
        return "running" if abs(self._now - lease.renewed) < lease.seconds else "silent"

    def _troubles(self) -> tuple[Trouble, ...]:
        """Attempts that failed, were declined, or fell silent at a shard that is not done."""
        done = {one.shard for one in self._done}
        found = []
        for attempt in sorted(self._attempts, key=lambda attempt: attempt.updated):
            if not attempt.final and attempt.shard not in done and self._silent(attempt):
                attempt = attempt.silenced
            if attempt.state in ("failed", "declined", "away", "silent"):
                found.append(Trouble(attempt.shard, attempt.worker, attempt.state, attempt.reason))
        return tuple(found[-50:])

    def _held(self, attempt: Attempt) -> Held:
        rates = [round(rate, 3) for rate in total_rates([attempt])]
        silent = round(max(0.0, self._now - attempt.updated), 1)
        names = attempt.shard, attempt.worker, attempt.state
        return Held(*names, attempt.started, silent, attempt.items, attempt.entities, *rates)


def _past_rates(done: Iterable[Attempt]) -> tuple[float, float]:
    """Of one worker, entities and tokens a second over the latest finished shards."""
    latest = sorted(done, key=lambda one: one.updated)[-_LATEST:]
    seconds = sum(one.seconds for one in latest) or math.inf
    return sum(one.items for one in latest) / seconds, sum(one.tokens for one in latest) / seconds
