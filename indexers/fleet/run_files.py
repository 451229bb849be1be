"""The JSON files of a distributed rebuild: their contents and places, and the status that follows
from them (`cogr-index status`). No decision is made here.

    fleet/<side>/lease/000001.json      who coordinates (indexers.lease)
    fleet/<side>/runs/<run>/run.json    what is rebuilt, by which generator
      shards/<shard>.json.gz            the requests of a shard (indexers.fleet.shards)
      attempts/<shard>.<number>.json    one worker at one shard; every heartbeat writes it again
      given_up/<shard>.json             a shard that was split, or whose entity was set aside
      progress.json                     what the coordinator has not planned yet
      cancel.json                       the run shall stop
      end.json                          how the run ended

Each file has one writer: the coordinator, or the worker of the attempt. A run has one coordinator;
another coordinator begins another run. A shard is named <number>-<entities>.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cogr.records import Side
from cogr.settings import GeneratorSettings
from cogr.store import Store
from indexers.lease import read_lease

log = logging.getLogger(__name__)

FORMAT = 2
"""Version of messages and files. It is part of a queue's name, so a worker gets only messages of
its own version.
"""

R = TypeVar("R", bound="Record")


_PUBLIC = {"name", "model", "dtype", "max_model_len", "sampling", "scripted", "statistical"}


class Record(BaseModel):
    """One JSON file. Keys of other versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class FleetRun(Record):
    """What is rebuilt. `generator` are the public settings of its generator."""

    id: str
    side: Side
    fingerprint: Mapping[str, Any]
    generator: Mapping[str, Any]
    entities: int
    to_generate: int


AttemptState = Literal["loading", "running", "done", "stopped", "failed", "declined", "away"]
"""stopped: the worker was asked to end. failed: the shard raised an error. declined: this worker
can't do the shard. away: the generator's service can't be reached. Readers show `silent` for a
worker that has written nothing for too long.
"""


class Attempt(Record):
    """One worker at one shard.

    Attributes:
        items, tokens: what it has generated so far.
        entities: entities of the whole shard; those that it did not generate were in the cache.
        seconds: seconds since the generator was loaded.
        transient: failures that the cache does not remember, by entity id.
    """

    shard: str
    number: int = 0
    worker: str
    state: AttemptState | Literal["silent"] = "loading"
    reason: str = ""
    started: float = Field(default_factory=time.time)
    updated: float = Field(default_factory=time.time)
    items: int = 0
    tokens: int = 0
    entities: int = 0
    seconds: float = 0.0
    transient: Mapping[str, str] = {}

    @property
    def final(self) -> bool:
        return self.state not in ("loading", "running")

    @property
    def silenced(self) -> Attempt:
        """The attempt, marked as that of a dead worker."""
        reason = f"fell silent while {self.state}"
        return self.model_copy(update={"state": "silent", "reason": reason})

    @property
    def full_reason(self) -> str:
        return f"worker {self.worker}: {self.reason}"

    @property
    def logged_reason(self) -> str:
        """The reason for the log. Without the text of an unexpected error: it may quote items."""
        return self.reason.partition(":")[0] if self.state == "failed" else self.reason


class GivenUp(Record):
    """A shard that killed workers: its parts, or why its one entity is set aside."""

    shard: str
    why: str
    parts: tuple[str, ...] = ()
    set_aside: Mapping[str, str] = {}


class Progress(Record):
    """Progress that only the coordinator knows."""

    unplanned: int = 0
    note: str = ""


class End(Record):
    """How a run ended."""

    state: Literal["finished", "cancelled", "superseded"]
    at: float = Field(default_factory=time.time)
    reason: str = ""
    snapshot: str | None = None


class Cancel(Record):
    """A request to stop the run."""

    by: str
    at: float = Field(default_factory=time.time)


class RunFolder:
    """The files of one run."""

    def __init__(self, store: Store, side: Side, run: str) -> None:
        self.store = store
        self.side = side
        self.run = run
        self.path = f"fleet/{side}/runs/{run}"
        self._damaged: set[str] = set()

    def read(self, kind: type[R], name: str) -> R | None:
        """A record; None when there is none, or a damaged one, with a warning."""
        path = f"{self.path}/{name}.json"
        try:
            return kind.model_validate_json(self.store.read(path))
        except FileNotFoundError:
            return None
        except ValidationError:
            if path not in self._damaged:
                self._damaged.add(path)
                log.warning("The file %s in %s is damaged, and passed over.", path, self.store.url)
            return None

    def read_all(self, kind: type[R], folder: str) -> list[R]:
        """The records in one of the folders, without damaged ones."""
        found = (self.read(kind, f"{folder}/{name}") for name in self.names(folder))
        return [record for record in found if record is not None]

    def write(self, record: Record, name: str) -> None:
        """Write a record, or replace it."""
        self.store.write(f"{self.path}/{name}.json", _json(record))

    def create(self, record: Record, name: str) -> bool:
        """Write a record unless it exists. Of several writers only one gets True."""
        return self.store.create(f"{self.path}/{name}.json", _json(record))

    def names(self, folder: str) -> list[str]:
        """Names of the records (or shards) in one of the folders, without suffix."""
        names = self.store.list(f"{self.path}/{folder}")
        return [name.removesuffix(".gz").rsplit(".", 1)[0] for name in names]

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop."""
        return self.store.exists(f"{self.path}/cancel.json")

    @property
    def ended(self) -> End | None:
        return self.read(End, "end")


def _json(record: Record) -> bytes:
    return record.model_dump_json(indent=1).encode()


def runs_of(store: Store, side: Side) -> list[RunFolder]:
    """The runs of a side, oldest first."""
    return [RunFolder(store, side, run) for run in store.list(f"fleet/{side}/runs")]


def latest_run(store: Store, side: Side) -> tuple[RunFolder, FleetRun] | None:
    """The latest run of a side; None when there has been none."""
    found = ((folder, folder.read(FleetRun, "run")) for folder in reversed(runs_of(store, side)))
    return next(((folder, run) for folder, run in found if run is not None), None)


def new_run_id() -> str:
    """A name that sorts by time, also where several runs begin within a second."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S}{now.microsecond:06d}-{uuid.uuid4().hex[:6]}"


def entities_of(shard: str) -> int:
    """How many entities a shard has, by its name; 0 when it is no shard's name."""
    count = shard.rpartition("-")[2]
    return int(count) if count.isdecimal() else 0


def public_settings(settings: GeneratorSettings) -> dict[str, Any]:
    """Settings that decide what a generator writes: no secrets, addresses or GPU sizes."""
    return settings.model_dump(mode="json", include=_PUBLIC)


def with_public_settings(own: GeneratorSettings, public: Mapping[str, Any]) -> GeneratorSettings:
    """A worker's settings, with the public settings replaced by those of a run."""
    known = {name: value for name, value in public.items() if name in _PUBLIC}
    return GeneratorSettings.model_validate({**own.model_dump(), **known})


def total_rates(attempts: Iterable[Attempt]) -> tuple[float, float]:
    """Entities and tokens a second of all attempts together."""
    rates = [(a.items / a.seconds, a.tokens / a.seconds) for a in attempts if a.seconds > 0]
    return sum(items for items, _ in rates), sum(tokens for _, tokens in rates)


State = Literal[
    "running", "silent", "interrupted", "cancelling", "finished", "cancelled", "superseded"
]
"""silent: the coordinator has not renewed its lease. interrupted: the coordinator ended before the
rebuild was complete; the same command goes on.
"""

_LATEST = 16
"""Finished shards that give the run's rate when no shard is under way."""


@dataclass(frozen=True)
class ShardHolder:
    """The worker of a shard, and since when."""

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
class FailedAttempt:
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
        set_aside: id -> reason, of entities during which workers died, and of transient failures.
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
    held: tuple[ShardHolder, ...] = ()
    troubles: tuple[FailedAttempt, ...] = ()
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
    """The fleet's work, for `report.json`; `tokens` and `items` are those of finished shards."""
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

    def __init__(self, store: Store, folder: RunFolder, run: FleetRun, lost_seconds: float) -> None:
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
        """The latest attempt of each open shard whose worker is not silent."""
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

    def _troubles(self) -> tuple[FailedAttempt, ...]:
        """Attempts that failed, were declined, or fell silent at a shard that is not done."""
        done = {one.shard for one in self._done}
        found = []
        for attempt in sorted(self._attempts, key=lambda attempt: attempt.updated):
            if not attempt.final and attempt.shard not in done and self._silent(attempt):
                attempt = attempt.silenced
            if attempt.state in ("failed", "declined", "away", "silent"):
                found.append(
                    FailedAttempt(attempt.shard, attempt.worker, attempt.state, attempt.reason)
                )
        return tuple(found[-50:])

    def _held(self, attempt: Attempt) -> ShardHolder:
        rates = [round(rate, 3) for rate in total_rates([attempt])]
        silent = round(max(0.0, self._now - attempt.updated), 1)
        names = attempt.shard, attempt.worker, attempt.state
        return ShardHolder(*names, attempt.started, silent, attempt.items, attempt.entities, *rates)


def _past_rates(done: Iterable[Attempt]) -> tuple[float, float]:
    """Entities and tokens a second of one worker, over the latest finished shards."""
    latest = sorted(done, key=lambda one: one.updated)[-_LATEST:]
    seconds = sum(one.seconds for one in latest) or math.inf
    return sum(one.items for one in latest) / seconds, sum(one.tokens for one in latest) / seconds
