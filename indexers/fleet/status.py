"""How a distributed rebuild stands, from its files alone: the broker is not asked.

Changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cogr.records import Side
from cogr.store import Store
from indexers.build.lease import Holding, read_lease
from indexers.fleet.pace import living_rate
from indexers.fleet.records import (
    Attempt,
    Done,
    GivenUp,
    Progress,
    Run,
    RunFolder,
    entities_of,
    open_run,
)

State = Literal[
    "running", "silent", "interrupted", "cancelling", "finished", "cancelled", "superseded"
]
"""running: its coordinator lives. silent: its coordinator has not renewed its lease. interrupted:
the coordinator ended
before the rebuild did, and the same command goes on."""

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
    opened = open_run(store, side)
    return None if opened is None else _Reading(store, *opened, lost_seconds).overview()


class _Reading:
    """The files of one run, read once."""

    def __init__(self, store: Store, folder: RunFolder, run: Run, lost_seconds: float) -> None:
        self._folder = folder
        self._run = run
        self._lost = lost_seconds
        self._lease = read_lease(store, folder.side)
        self._end = folder.ended
        self._done = folder.names("done")
        self._given_up = [
            record
            for name in folder.names("given_up")
            if (record := folder.read(GivenUp, f"given_up/{name}"))
        ]
        over = {*self._done, *(record.shard for record in self._given_up)}
        self._open = [name for name in folder.names("shards") if name not in over]
        attempts = (folder.read(Attempt, f"attempts/{name}") for name in folder.names("attempts"))
        self._attempts = [attempt for attempt in attempts if attempt is not None]
        self._progress = folder.read(Progress, "progress")

    def overview(self) -> Overview:
        living = self._living()
        results = [done for name in self._done if (done := self._folder.read(Done, f"done/{name}"))]
        items, tokens = living_rate(living) if living else _past_rate(results)
        split = sum(entities_of(record.shard) for record in self._given_up if record.parts)
        kept = sum(entities_of(part) for record in self._given_up for part in record.parts)
        aside = {
            id_: reason for record in self._given_up for id_, reason in record.set_aside.items()
        }
        passing = {id_: reason for done in results for id_, reason in done.passing.items()}
        answered = sum(done.entities for done in results) + max(0, split - kept) + len(aside)
        answered += sum(min(attempt.items, attempt.entities) for attempt in living)
        answered = min(answered, self._run.to_generate)
        held = {attempt.shard for attempt in living}
        state = self._state()
        left = self._run.to_generate - answered
        return Overview(
            side=self._run.side,
            run=self._run.id,
            state=state,
            coordinator=self._lease.holder if self._lease else "",
            note=(self._end.reason if self._end else "")
            or (self._progress.note if self._progress else ""),
            entities=self._run.entities,
            to_generate=self._run.to_generate,
            answered=answered,
            done=len(self._done),
            running=len(held),
            waiting=len(self._open) - len(held) if self._end is None else 0,
            failed=len(self._given_up),
            unplanned=self._progress.unplanned if self._progress and self._end is None else 0,
            items_per_second=round(items, 3),
            tokens_per_second=round(tokens, 3),
            seconds_left=round(left / items, 1) if items > 0 and self._end is None else None,
            snapshot=self._end.snapshot if self._end else None,
            held=tuple(_held(attempt) for attempt in living),
            troubles=self._troubles(),
            set_aside={**passing, **aside},
        )

    def _living(self) -> list[Attempt]:
        """One attempt for each open shard that a worker has written about lately."""
        if self._end is not None:
            return []
        now = time.time()
        fresh = (
            attempt
            for attempt in self._attempts
            if attempt.shard in self._open and not attempt.final
        )
        by_shard = {
            attempt.shard: attempt for attempt in fresh if abs(now - attempt.updated) < self._lost
        }
        return sorted(by_shard.values(), key=lambda attempt: attempt.shard)

    def _state(self) -> State:
        if self._end is not None:
            return self._end.state
        lease = self._lease
        if lease is None or lease.released:
            return "interrupted"
        if self._folder.cancelled:
            return "cancelling"
        return "running" if _fresh(lease) else "silent"

    def _troubles(self) -> tuple[Trouble, ...]:
        """Attempts that failed, were declined, or fell silent at a shard that is still open or was
        given up.
        """
        given_up = {record.shard for record in self._given_up}
        now = time.time()
        found = []
        for attempt in sorted(self._attempts, key=lambda attempt: attempt.updated):
            if attempt.state in ("failed", "declined", "away"):
                found.append(Trouble(attempt.shard, attempt.worker, attempt.state, attempt.reason))
            elif (
                not attempt.final
                and attempt.shard in {*given_up, *self._open}
                and now - attempt.updated > self._lost
            ):
                found.append(
                    Trouble(
                        attempt.shard,
                        attempt.worker,
                        "silent",
                        f"fell silent while {attempt.state}",
                    )
                )
        return tuple(found[-50:])


def _fresh(lease: Holding) -> bool:
    return abs(time.time() - lease.renewed) < lease.seconds


def _held(attempt: Attempt) -> Held:
    seconds = attempt.seconds or 1.0
    return Held(
        attempt.shard,
        attempt.worker,
        attempt.state,
        attempt.started,
        round(max(0.0, time.time() - attempt.updated), 1),
        attempt.items,
        attempt.entities,
        round(attempt.items / seconds, 3),
        round(attempt.tokens / seconds, 3),
    )


def _past_rate(results: list[Done]) -> tuple[float, float]:
    """The rate of one worker over the latest finished shards."""
    latest = sorted(results, key=lambda done: done.finished)[-_LATEST:]
    seconds = sum(done.seconds for done in latest)
    if seconds <= 0:
        return 0.0, 0.0
    return sum(done.items for done in latest) / seconds, sum(
        done.tokens for done in latest
    ) / seconds
