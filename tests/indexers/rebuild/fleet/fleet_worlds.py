"""A small shop that is rebuilt by real workers: its files, and the processes that tests start, kill
and wait for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cogr.settings.indexing import RedisSettings
from cogr.store import Store
from indexers.rebuild.fleet.run_files import Attempt, FleetRun, RunFolder
from indexers.workspace import Workspace
from tests.commands import sets
from tests.shops import rebuild_here, write_thing_shop

MIN_SHARD = "indexers.rebuild.fleet.coordinator.MIN_SHARD"
LAST_DEATHS = "indexers.rebuild.fleet.coordinator.LAST_DEATHS"
CONSTANTS = {
    MIN_SHARD: 16,
    LAST_DEATHS: 3,
    "indexers.rebuild.fleet.coordinator.POLL_SECONDS": 0.1,
    "indexers.rebuild.fleet.coordinator.LOOK_SECONDS": 0.5,
    "indexers.rebuild.fleet.broker.INSPECT_SECONDS": 1,
    "indexers.rebuild.fleet.worker.SHARD_SECONDS": 180,
    "indexers.lease.REBUILD_SECONDS": 3,
    "indexers.generators.cache.FLUSH_ANSWERS": 8,
}
"""Constants that a test may set like settings, and their values here."""
FAULTS = ("accidents", "delay")
"""Arguments of `Faulty` that a test may set like settings."""


@dataclass
class Fleet:
    """One shop, one broker, and the processes that were started for them."""

    folder: Path
    redis: RedisSettings
    settings: Mapping[str, Any] = field(default_factory=dict)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    prefix: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:8]}")

    @property
    def store(self) -> Store:
        return Store(self.settings.get("store") or self.folder / ".cogr")

    def command(self, module: str, *arguments: str, **more: Any) -> list[str]:
        """A command line; `more` are settings without a table, or in place of those of the
        fleet.
        """
        values = {"redis.url": str(self.redis.url), **self.settings, **more}
        constants = {name: values.pop(name, usual) for name, usual in CONSTANTS.items()}
        constants["indexers.rebuild.fleet.broker.KEY_PREFIX"] = self.prefix
        faults = {name: values.pop(name) for name in FAULTS if name in values}
        faulty = ("tests.indexers.faulty", json.dumps(faults)) if faults else ()
        given = sets(*(f"{key}={value}" for key, value in values.items()))
        config = ("-c", str(self.folder / "cogr.toml"))
        altered = (sys.executable, "-m", "tests.altered", json.dumps(constants))
        return [*altered, *faulty, module, *arguments, *config, *given]

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with (self.folder / f"process-{len(self.processes)}.log").open("w") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                preexec_fn=listening,
            )
        self.processes.append(process)
        return process

    def worker(self, **more: Any) -> subprocess.Popen[str]:
        return self.start(self.command("ops.cli", "worker", "--side", "item", "-v", **more))

    def rebuild(self, **more: Any) -> subprocess.Popen[str]:
        """A coordinator."""
        arguments = ("rebuild", "--side", "item", "--workers", "celery", "--json", "-v")
        return self.start(self.command("indexers.cli", *arguments, **more))

    def workspace(self, redis: str) -> Workspace:
        """For a coordinator in this process."""
        return Workspace.open(self.folder / "cogr.toml", [f"redis.url={redis}"])

    def calm(self) -> str:
        """The snapshot of an undisturbed local rebuild with a store of its own, in this process."""
        values = {**self.settings, "store": self.folder / "calm"}
        given = [
            f"{key}={value}" for key, value in values.items() if key not in (*CONSTANTS, *FAULTS)
        ]
        return rebuild_here(Workspace.open(self.folder / "cogr.toml", given)).snapshot.id

    def log_of(self, process: subprocess.Popen[str]) -> str:
        return (self.folder / f"process-{self.processes.index(process)}.log").read_text()

    def outcome(self, process: subprocess.Popen[str], seconds: float = 300.0) -> dict[str, Any]:
        """What a coordinator said in the end, which was well."""
        out, _ = process.communicate(timeout=seconds)
        assert process.returncode == 0, self.log_of(process)
        answer: dict[str, Any] = json.loads(out)
        return answer

    def wait_until(self, true: Callable[[FleetRun], object]) -> FleetRun:
        """Wait for a state of the run, four minutes at most."""
        deadline = time.monotonic() + 240
        while (run := run_in(self.store)) is None or not true(run):
            assert time.monotonic() < deadline, f"it did not come in time: {run}"
            time.sleep(0.15)
        return run


def run_in(store: Store) -> FleetRun | None:
    """The latest rebuild of items on workers."""
    folder = _latest(store)
    return folder.read(FleetRun, "run") if folder else None


def attempts_in(store: Store) -> list[Attempt]:
    """Its attempts."""
    folder = _latest(store)
    return attempts_of(folder) if folder else []


def attempts_of(folder: RunFolder) -> list[Attempt]:
    """The attempts of a run that can be read."""
    read = (folder.read(Attempt, f"attempts/{name}") for name in folder.names("attempts"))
    return [one for one in read if one is not None]


def _latest(store: Store) -> RunFolder | None:
    runs = store.list("fleet/item/runs")
    return RunFolder(store, "item", runs[-1]) if runs else None


def ended(process: subprocess.Popen[str], by: signal.Signals) -> int:
    """The status of a process that gets a signal."""
    process.send_signal(by)
    return process.wait(300)


def listening() -> None:
    """Ctrl-C is heard again where this suite was started in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def fleet_in(
    folder: Path, redis: RedisSettings, items: int = 240, settings: Mapping[str, Any] | None = None
) -> Iterator[Fleet]:
    """A shop with a fleet; every process that was started ends with the block."""
    write_thing_shop(folder, items)
    fleet = Fleet(folder, redis, settings or {})
    try:
        yield fleet
    finally:
        for process in fleet.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
