"""The files of a rebuild on workers. No decision is made here.

    fleet/<side>/runs/<run>/run.json    what is rebuilt, by which generator, and how far it is
      shards/<shard>.json.gz            the requests of a shard that is not over
      attempts/<shard>.json             a worker at a shard: claimed by creating the file

A shard's file is there until the shard is over. Every file is written by one process: the
coordinator, or the worker of the attempt. A new run removes the files of earlier ones.
"""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from cogr.prompts import Prompt
from cogr.records import Item, Query, Side
from cogr.store import Store
from indexers.generators import Request
from indexers.generators.cache import Keyed

R = TypeVar("R", bound=BaseModel)


class FleetRun(BaseModel):
    """What is rebuilt, and how far the coordinator is.

    Attributes:
        set_aside: entity id -> reason, of those that took down workers or failed for now.
    """

    id: str
    side: Side
    fingerprint: Mapping[str, Any] = Field(repr=False)
    to_generate: int
    answered: int = 0
    state: Literal["running", "finished", "stopped"] = "running"
    set_aside: Mapping[str, str] = {}


AttemptState = Literal["loading", "running", "done", "stopped", "failed", "declined"]
"""stopped: the worker was asked to end, or the shard's time is over. failed: an error was raised.
declined: this worker can't do the shard now. An attempt that stays at loading or running is that of
a worker that died.
"""


class Attempt(BaseModel):
    """One worker at one shard.

    Attributes:
        started: when it took the shard, in seconds of the epoch.
        items, seconds: how many answers it generated, and how long that took.
        transient: failures that the cache does not remember, by entity id.
    """

    shard: str
    worker: str
    state: AttemptState = "loading"
    reason: str = ""
    started: float = Field(default_factory=time.time)
    items: int = 0
    seconds: float = 0.0
    transient: Mapping[str, str] = {}

    @property
    def why(self) -> str:
        """Why it brought no result, with the worker's name."""
        return f"worker {self.worker}: {self.reason or f'died while {self.state}'}"


class RunFolder:
    """The folder of one run: its plan, shards, claims and attempts."""

    def __init__(self, store: Store, side: Side, run: str) -> None:
        self.store, self.side, self.run = store, side, run
        self.path = f"fleet/{side}/runs/{run}"

    def read(self, kind: type[R], name: str) -> R | None:
        """A record; None when there is none, or a damaged one."""
        try:
            return kind.model_validate_json(self.store.read(f"{self.path}/{name}.json"))
        except (FileNotFoundError, ValidationError):
            return None

    def write(self, record: BaseModel, name: str) -> None:
        """Write a record, or replace it."""
        self.store.write(f"{self.path}/{name}.json", record.model_dump_json(indent=1).encode())

    def claim(self, attempt: Attempt) -> bool:
        """Take a shard for an attempt. False when it was taken before: messages may come twice."""
        path = f"{self.path}/attempts/{attempt.shard}.json"
        return self.store.create(path, attempt.model_dump_json().encode())

    def names(self, folder: str) -> list[str]:
        """Names of the shards that have a file in one of the folders."""
        return [name.partition(".")[0] for name in self.store.list(f"{self.path}/{folder}")]

    def write_shard(self, shard: str, keyed: Sequence[Keyed]) -> None:
        """Write the requests of a shard, in their order."""
        lines = [(key.hex(), asdict(one.entity), asdict(one.prompt)) for key, one in keyed]
        # Gzip's checksum tells whether the file is damaged.
        data = gzip.compress(json.dumps(lines).encode(), compresslevel=1)
        self.store.write(f"{self.path}/shards/{shard}.json.gz", data)

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

    def remove_shard(self, shard: str) -> None:
        """Remove the files of a shard that is over."""
        self.store.remove(f"{self.path}/shards/{shard}.json.gz")


def new_run(store: Store, side: Side) -> RunFolder:
    """The folder of a new run. Those of earlier runs are removed: workers see that and stop."""
    # A worker may still write there; what it leaves, the next run removes.
    with suppress(OSError):
        store.remove(f"fleet/{side}/runs")
    return RunFolder(store, side, str(time.time_ns()))
