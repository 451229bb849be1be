"""The JSON files of a distributed rebuild: what each of them says, and where it lies. No decision
is taken here.

    fleet/<side>/lease/000001.json      who coordinates (indexers.rebuild.lease)
    fleet/<side>/runs/<run>/run.json    what is rebuilt, by which generator
      shards/<shard>.json.gz            the requests of a shard (indexers.fleet.shards)
      attempts/<shard>.<number>.json    one worker at one shard; every heartbeat writes it again
      given_up/<shard>.json             a shard that was split, or whose entity was set aside
      progress.json                     what the coordinator has not planned yet
      cancel.json                       the run shall stop
      end.json                          how the run ended

A file has one writer: the coordinator, or the worker that made the attempt. A run has one
coordinator; the next one begins another run. A shard is named <number>-<entities>.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cogr.records import Side
from cogr.settings import GeneratorSettings
from cogr.store import Store

FORMAT = 2
"""Of messages and files. It is part of a queue's name, so no worker gets another format's."""

R = TypeVar("R", bound="Record")

log = logging.getLogger(__name__)

_PUBLIC = {"name", "model", "dtype", "max_model_len"}
_PUBLIC |= {"sampling", "scripted", "statistical"}


class Record(BaseModel):
    """One JSON file. Keys of other versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Run(Record):
    """What is rebuilt. `generator` are the public settings of its generator."""

    id: str
    side: Side
    fingerprint: Mapping[str, Any]
    generator: Mapping[str, Any]
    entities: int
    to_generate: int


AttemptState = Literal["loading", "running", "done", "stopped", "failed", "declined", "away"]
"""stopped: the worker was asked to end. failed: the shard raised an error. declined: this worker
can't do it. away: the generator's service is away. Readers call it `silent` when its worker has
written nothing for too long."""


class Attempt(Record):
    """One worker at one shard.

    Attributes:
        items, tokens: what it has generated so far.
        entities: of the whole shard; those that it did not generate were in the cache.
        seconds: since the generator was loaded.
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
        """As one whose worker died."""
        reason = f"fell silent while {self.state}"
        return self.model_copy(update={"state": "silent", "reason": reason})

    @property
    def full_reason(self) -> str:
        return f"worker {self.worker}: {self.reason}"

    @property
    def logged_reason(self) -> str:
        """Of an unexpected error its class alone, since its text may quote an item."""
        return self.reason.partition(":")[0] if self.state == "failed" else self.reason


class GivenUp(Record):
    """A shard that took too many workers down: its parts, or why its one entity is set aside."""

    shard: str
    why: str
    parts: tuple[str, ...] = ()
    set_aside: Mapping[str, str] = {}


class Progress(Record):
    """What only the coordinator knows."""

    unplanned: int = 0
    note: str = ""


class End(Record):
    """How a run ended."""

    state: Literal["finished", "cancelled", "superseded"]
    at: float = Field(default_factory=time.time)
    reason: str = ""
    snapshot: str | None = None


class Cancel(Record):
    """Somebody asked the run to stop."""

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
        """Write a record unless it exists; of several writers, one gets True."""
        return self.store.create(f"{self.path}/{name}.json", _json(record))

    def names(self, folder: str) -> list[str]:
        """Names of the records (or shards) in one of the folders, without suffix."""
        names = self.store.list(f"{self.path}/{folder}")
        return [name.removesuffix(".gz").rsplit(".", 1)[0] for name in names]

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked the run to stop."""
        return self.store.exists(f"{self.path}/cancel.json")

    @property
    def ended(self) -> End | None:
        return self.read(End, "end")


def _json(record: Record) -> bytes:
    return record.model_dump_json(indent=1).encode()


def runs_of(store: Store, side: Side) -> list[RunFolder]:
    """The runs of a side, oldest first."""
    return [RunFolder(store, side, run) for run in store.list(f"fleet/{side}/runs")]


def latest_run(store: Store, side: Side) -> tuple[RunFolder, Run] | None:
    """The latest run of a side; None when there has been none."""
    found = ((folder, folder.read(Run, "run")) for folder in reversed(runs_of(store, side)))
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
    """Those that decide what a generator writes: no secret, no server's address, no GPU's size."""
    return settings.model_dump(mode="json", include=_PUBLIC)


def with_public_settings(own: GeneratorSettings, public: Mapping[str, Any]) -> GeneratorSettings:
    """A worker's settings, with the public ones of a run in their place."""
    known = {name: value for name, value in public.items() if name in _PUBLIC}
    return GeneratorSettings.model_validate({**own.model_dump(), **known})


def total_rates(attempts: Iterable[Attempt]) -> tuple[float, float]:
    """Entities and tokens a second of all attempts together."""
    rates = [(a.items / a.seconds, a.tokens / a.seconds) for a in attempts if a.seconds > 0]
    return sum(items for items, _ in rates), sum(tokens for _, tokens in rates)
