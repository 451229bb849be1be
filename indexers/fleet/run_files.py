"""The files of a rebuild on workers, and the state that follows from them (`cogr-index status`).
No decision is made here.

    fleet/<side>/runs/<run>/run.json    what is rebuilt, by which generator, and how far it is
      shards/<shard>.json.gz            the requests of a shard that is not over
      attempts/<shard>.json             a worker at a shard: claimed by creating the file
      cancel.json                       the run shall stop

A shard's file is there until the shard is over. Every file is written by one process: the
coordinator, or the worker of the attempt.
"""

from __future__ import annotations

import gzip
import json
import logging
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field

from cogr.errors import UserError
from cogr.prompts import Prompt
from cogr.records import Item, Query, Side
from cogr.settings.indexing import GeneratorSettings
from cogr.store import Store
from indexers.generators import Request
from indexers.lease import read_lease
from indexers.rebuild.cache import Keyed

log = logging.getLogger(__name__)

R = TypeVar("R", bound="Record")

_PUBLIC = {"name", "model", "dtype", "sampling", "statistical"}


class Record(BaseModel):
    """One JSON file."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class FleetRun(Record):
    """What is rebuilt, and how far the coordinator is."""

    id: str
    side: Side
    fingerprint: Mapping[str, Any] = Field(repr=False)
    generator: Mapping[str, Any] = Field(repr=False)
    entities: int
    to_generate: int
    state: Literal["running", "finished", "cancelled", "superseded"] = "running"
    note: str = ""
    answered: int = 0
    per_second: float = 0.0
    set_aside: Mapping[str, str] = {}
    snapshot: str | None = None


AttemptState = Literal["loading", "running", "done", "stopped", "failed", "declined", "away"]
"""stopped: the worker was asked to end, or the shard's time is over. failed: an error was raised.
declined: this worker can't do the shard. away: the generator's service can't be reached. An attempt
that stays at loading or running is that of a worker that died.
"""


class Attempt(Record):
    """One worker at one shard.

    Attributes:
        items, tokens, seconds: what it generated, and how long that took.
        transient: failures that the cache does not remember, by entity id.
    """

    shard: str
    worker: str
    state: AttemptState = "loading"
    reason: str = ""
    started: float = Field(default_factory=time.time)
    items: int = 0
    tokens: int = 0
    seconds: float = 0.0
    transient: Mapping[str, str] = {}

    @property
    def why(self) -> str:
        """Why it brought no result, with the worker's name."""
        return f"worker {self.worker}: {self.reason or f'died while {self.state}'}"

    @property
    def logged_reason(self) -> str:
        """The reason without the text of an unexpected error, which may quote items."""
        return self.reason.partition(":")[0] if self.state == "failed" else self.reason


class Cancel(Record):
    """A request to stop the run."""

    by: str


class RunFolder:
    """The files of one run."""

    def __init__(self, store: Store, side: Side, run: str) -> None:
        self.store, self.side, self.run = store, side, run
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

    def attempts(self) -> list[Attempt]:
        """All attempts, without damaged ones."""
        found = (self.read(Attempt, f"attempts/{name}") for name in self.names("attempts"))
        return [record for record in found if record is not None]

    def write(self, record: Record, name: str) -> None:
        """Write a record, or replace it."""
        self.store.write(f"{self.path}/{name}.json", record.model_dump_json(indent=1).encode())

    def create(self, record: Record, name: str) -> bool:
        """Write a record unless it exists. Of several writers only one gets True."""
        return self.store.create(f"{self.path}/{name}.json", record.model_dump_json().encode())

    def end(self, **facts: Any) -> None:
        """Write how the run ended."""
        if (run := self.read(FleetRun, "run")) is not None:
            self.write(run.model_copy(update=facts), "run")

    def names(self, folder: str) -> list[str]:
        """Names of the records (or shards) in one of the folders, without suffix."""
        names = self.store.list(f"{self.path}/{folder}")
        return [name.removesuffix(".gz").rsplit(".", 1)[0] for name in names]

    def write_shard(self, shard: str, keyed: Sequence[Keyed]) -> None:
        """Write the requests of a shard, in their order; without any it is over."""
        path = f"{self.path}/shards/{shard}.json.gz"
        if not keyed:
            self.store.remove(path)
            return
        lines = [(key.hex(), asdict(one.entity), asdict(one.prompt)) for key, one in keyed]
        # Gzip's checksum tells whether the file is damaged.
        self.store.write(path, gzip.compress(json.dumps(lines).encode(), compresslevel=1))

    def read_shard(self, shard: str) -> list[Keyed] | None:
        """The requests of a shard; None when there is no such file, or a damaged one."""
        try:
            data = self.store.read(f"{self.path}/shards/{shard}.json.gz")
            lines = json.loads(gzip.decompress(data))
        except (FileNotFoundError, EOFError, ValueError, gzip.BadGzipFile, zlib.error):
            return None
        kind = Item if self.side == "item" else Query
        return [
            (bytes.fromhex(key), Request(entity["id"], kind(**entity), Prompt(**prompt)))
            for key, entity, prompt in lines
        ]

    @property
    def over(self) -> bool:
        """Whether the run has ended or was asked to stop."""
        run = self.read(FleetRun, "run")
        cancelled = self.store.exists(f"{self.path}/cancel.json")
        return cancelled or (run is not None and run.state != "running")


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


def public_settings(settings: GeneratorSettings) -> dict[str, Any]:
    """Settings that decide what a generator writes: no secrets, addresses or GPU sizes."""
    return settings.model_dump(mode="json", include=_PUBLIC)


def with_public_settings(own: GeneratorSettings, public: Mapping[str, Any]) -> GeneratorSettings:
    """A worker's settings, with the public settings replaced by those of a run."""
    known = {name: value for name, value in public.items() if name in _PUBLIC}
    return GeneratorSettings.model_validate({**own.model_dump(), **known})


class Overview(FleetRun):
    """A run as `cogr-index status` shows it.

    Attributes:
        state: silent: the coordinator has not renewed its lease. interrupted: it ended before the
            rebuild was complete; the same command goes on.
        held: what workers are at.
        set_aside: also those of transient failures.
    """

    state: str  # type: ignore[assignment]
    coordinator: str
    shards: int
    done: int
    held: Sequence[Attempt]
    troubles: Sequence[str]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def seconds_left(self) -> float | None:
        """By the present rate; None when there is none."""
        rest, rate = self.to_generate - self.answered, self.per_second
        return round(rest / rate, 1) if rate and self.shards else None


def overview(store: Store, side: Side) -> Overview | None:
    """The latest run of a side; None when there has been none."""
    if (opened := latest_run(store, side)) is None:
        return None
    (folder, run), lease = opened, read_lease(store, side)
    attempts, state = folder.attempts(), run.state
    left = folder.names("shards") if state == "running" else ()
    transient = {id_: why for one in attempts for id_, why in one.transient.items()}
    bad = [one for one in attempts if one.state in ("failed", "declined", "away")]
    facts: dict[str, Any] = run.model_dump()
    if state == "running":
        facts["state"] = _state(folder)
    return Overview(
        **facts | {"set_aside": transient | dict(run.set_aside)},
        coordinator=lease.holder if lease else "",
        shards=len(left),
        done=sum(one.state == "done" for one in attempts),
        held=[one for one in attempts if one.shard in left and one.state in ("loading", "running")],
        troubles=[f"{one.shard}, {one.state}, {one.why}" for one in bad[-50:]],
    )


def _state(folder: RunFolder) -> str:
    lease = read_lease(folder.store, folder.side)
    if lease is None or lease.released:
        return "interrupted"
    if abs(time.time() - lease.renewed) > lease.seconds:
        return "silent"
    return "cancelling" if folder.over else "running"


def cancel(store: Store, side: Side, by: str) -> None:
    """Ask the rebuild of a side to stop; what was generated is kept. Raises UserError."""
    opened = latest_run(store, side)
    if opened is None or opened[1].state != "running":
        raise UserError(
            f"No rebuild of {side}s on workers is under way in {store.url}; see cogr-index status."
        )
    folder, _ = opened
    folder.write(Cancel(by=by), "cancel")
    if _state(folder) in ("interrupted", "silent"):
        # Nobody coordinates it: workers see that it has ended and leave its shards alone.
        folder.end(state="cancelled", note=f"cancelled by {by}")
