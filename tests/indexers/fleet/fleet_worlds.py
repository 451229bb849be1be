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

from cogr.records import Advance, Side
from cogr.settings.indexing import RedisSettings
from cogr.store import Store
from indexers.fleet.run_files import Overview, overview
from indexers.rebuild.run import RebuildRequest, rebuild_side
from indexers.workspace import Workspace
from tests.shops import write_thing_shop

FIXED = {
    "fleet.least": ("indexers.fleet.coordinator.LEAST", 16),
    "fleet.poll_seconds": ("indexers.fleet.coordinator.POLL_SECONDS", 0.1),
    "fleet.look_seconds": ("indexers.fleet.coordinator.LOOK_SECONDS", 0.5),
    "fleet.last_deaths": ("indexers.fleet.coordinator.LAST_DEATHS", 3),
    "fleet.inspect_seconds": ("indexers.fleet.broker.INSPECT_SECONDS", 1),
    "fleet.shard_seconds": ("indexers.fleet.worker.SHARD_SECONDS", 180),
    "fleet.lease_seconds": ("indexers.lease.REBUILD_SECONDS", 3),
    "fleet.prefix": ("indexers.fleet.broker.PREFIX", "cogr"),
    "rebuild.flush_answers": ("indexers.rebuild.cache.FLUSH_ANSWERS", 8),
}
"""Constants that a test may set like settings, and their values here."""
DELAY = "delay"
"""Seconds before each answer, named like a setting too."""


@dataclass
class Fleet:
    """One shop, one broker, and the processes that were started for them."""

    folder: Path
    redis: RedisSettings
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    accidents: Mapping[str, str] = field(default_factory=dict)
    prefix: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:8]}")

    @property
    def store(self) -> Store:
        return Store(self.settings.get("store") or self.folder / ".cogr")

    def command(self, module: str, *arguments: str, **settings: str) -> list[str]:
        values = {"redis.url": str(self.redis.url), **self.settings}
        values |= {key.replace("__", "."): value for key, value in settings.items()}
        given = {key: json.loads(values.pop(key)) for key in FIXED if key in values}
        given["fleet.prefix"] = self.prefix
        fixed = {constant: given.get(key, usual) for key, (constant, usual) in FIXED.items()}
        faults: dict[str, Any] = {"accidents": self.accidents} if self.accidents else {}
        if delay := values.pop(DELAY, None):
            faults["delay"] = float(delay)
        sets = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        return [
            sys.executable,
            "-m",
            *("tests.altered", json.dumps(fixed)),
            *(["tests.indexers.faulty", json.dumps(faults)] if faults else []),
            module,
            *arguments,
            "-c",
            str(self.folder / "cogr.toml"),
            *sets,
        ]

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        log = (self.folder / f"process-{len(self.processes)}.log").open("w")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **self.environment,
        }
        with log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                preexec_fn=_listening,
            )
        self.processes.append(process)
        return process

    def worker(self, **settings: str) -> subprocess.Popen[str]:
        return self.start(self.command("ops.cli", "worker", "--side", "item", "-v", **settings))

    def rebuild(self, **settings: str) -> subprocess.Popen[str]:
        """A coordinator."""
        arguments = ("rebuild", "--side", "item", "--workers", "celery", "--json", "-v")
        return self.start(self.command("indexers.cli", *arguments, **settings))

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """`cogr-index` with arguments, to its end."""
        command = self.command("indexers.cli", *arguments, **settings)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    def calm(self, **settings: str) -> str:
        """The snapshot of an undisturbed local rebuild with a store of its own, in this process."""
        values = {
            **self.settings,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        values["store"] = str(self.folder / "calm")
        for key in (*FIXED, DELAY):
            values.pop(key, None)
        sets = [f"{key}={value}" for key, value in values.items()]
        workspace = Workspace.open(self.folder / "cogr.toml", sets)
        outcome = rebuild_side(
            workspace,
            RebuildRequest("item"),
            no_bar,
            print,
        )
        return outcome.snapshot.id

    def log_of(self, process: subprocess.Popen[str]) -> str:
        return (self.folder / f"process-{self.processes.index(process)}.log").read_text()

    def outcome(self, process: subprocess.Popen[str], seconds: float = 300.0) -> dict[str, Any]:
        """What a coordinator said in the end, which was well."""
        out, _ = process.communicate(timeout=seconds)
        assert process.returncode == 0, self.log_of(process)
        answer: dict[str, Any] = json.loads(out)
        return answer

    def status(self, side: Side = "item") -> Overview | None:
        return overview(self.store, side)

    def wait_until(self, true: Callable[[Overview], object], seconds: float = 240.0) -> Overview:
        """Wait for a state of the run."""
        deadline = time.monotonic() + seconds
        while True:
            run = self.status()
            if run is not None and true(run):
                return run
            assert time.monotonic() < deadline, f"it did not come in time: {run}"
            time.sleep(0.15)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    """End it as a power cut would."""
    process.send_signal(signal.SIGKILL)
    process.wait(30)


def _listening() -> None:
    """Ctrl-C is heard again where this suite was started in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def fleet_in(
    folder: Path,
    redis: RedisSettings,
    items: int = 240,
    accidents: Mapping[str, str] | None = None,
    **settings: str,
) -> Iterator[Fleet]:
    """A shop with a fleet; every process that was started ends with the block."""
    write_thing_shop(folder, items)
    values = {key.replace("__", "."): value for key, value in settings.items()}
    fleet = Fleet(folder, redis, values, accidents=accidents or {})
    try:
        yield fleet
    finally:
        fleet.end()


@contextmanager
def no_bar(what: str, total: int) -> Iterator[Advance]:
    """No progress is shown."""
    yield lambda _: None
