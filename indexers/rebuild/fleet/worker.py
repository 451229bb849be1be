"""A worker: takes messages from Celery, and generates the answers of a shard.

Celery's pool of one thread leaves the main thread free to say what the worker is at, and to end it.
A shard is claimed by creating the file of the attempt. Importing this loads neither Celery nor a
model.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from cogr.errors import CogrError, GeneratorError
from cogr.records import Side
from cogr.settings.indexing import kind_of
from indexers.generators import Generator, fingerprint_hash, make_generator
from indexers.generators.cache import GenerationCache, generate_into
from indexers.rebuild.fleet.broker import (
    TASK,
    Message,
    check_writable,
    make_app,
    queue_of,
)
from indexers.rebuild.fleet.run_files import Attempt, AttemptState, FleetRun, RunFolder
from indexers.telemetry import logs, prometheus
from indexers.workspace import Workspace, generator_options

log = logging.getLogger(__name__)

SHARD_SECONDS = 180.0
"""After this time a worker leaves the rest of its shard to the next round, so that others help."""
STUCK_SECONDS = 1800.0
"""Seconds without an answer after which a worker's process ends: no model needs that long."""
WORKER_LOOK_SECONDS = 1.0
"""How often a worker looks whether its run is over."""

_STDERR = 2


class Worker:
    """Does shards, one after another, by the generator of its own settings.

    Args:
        generator: its kind, where it is not that of the settings.
        stopping: whether the process was asked to end.
    """

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        generator: str | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._workspace, self._store = workspace, workspace.store
        self._name, self._kind, self._stopping = name, generator, stopping
        self._generator: Generator | None = None
        self.restart_needed = False

    def take(self, task: Mapping[str, Any]) -> str:
        """Do one task, or refuse it. Returns one line for the log. Raises StorageError."""
        try:
            message = Message.model_validate(dict(task))
        except ValidationError as error:
            return _refusal(f"the task can't be read ({error.errors()[0]['msg']})")
        folder = RunFolder(self._store, message.side, message.run)
        run, shard = folder.read(FleetRun, "run"), message.shard
        if run is None:
            return _refusal(
                f"there is no run {message.run} in {self._store.url}; it is over, or the "
                "coordinator uses another store"
            )
        attempt = RunningAttempt(folder, shard, self._name, self._stopping)
        if run.state != "running" or not folder.claim(attempt.record):
            why = "a worker has it" if run.state == "running" else "the rebuild has ended"
            return f"{shard} of {run.id} is left alone: {why}"
        side = run.side
        with (
            logs.bound(side=side, run=run.id, shard=shard, worker=self._name),
            prometheus.WORKER_BUSY.labels(side).track_inprogress(),
        ):
            self._try(run, attempt)
        one = attempt.record
        prometheus.WORKER_SHARDS.labels(side, one.state).inc()
        # The text of an unexpected error may quote an item, so the log leaves it out.
        why = f" ({one.reason})" if one.reason and one.state != "failed" else ""
        return f"{shard}: {one.state}, {one.items} generated in {one.seconds:.1f} s{why}"

    def close(self) -> None:
        if self._generator is not None:
            self._generator.close()
        self._generator = None

    def generator_of(self, run: FleetRun) -> Generator:
        """The generator of a run, kept until another one is needed. Raises GeneratorError where
        this worker's is another one, and CogrError where it can't be loaded.
        """
        loaded = self._generator
        if loaded is not None:
            if not _difference(run.fingerprint, loaded.fingerprint):
                return loaded
            if loaded.keeps_memory:
                self.restart_needed = True
                raise GeneratorError("This worker restarts with another generator.")
            self.close()
        generator = self._load(run)
        if differs := _difference(run.fingerprint, generator.fingerprint):
            generator.close()
            raise GeneratorError(
                f"This worker's generator is not the one of the rebuild: {differs}."
            )
        self._generator = generator
        return generator

    def _load(self, run: FleetRun) -> Generator:
        # Opened anew, since the data set may have changed.
        workspace = Workspace(self._workspace.settings)
        settings = workspace.generator_settings(run.side, self._kind)
        dataset = workspace.dataset if kind_of(settings.name).reads_data else None
        return make_generator(generator_options(settings), run.side, dataset, self._store)

    def _try(self, run: FleetRun, attempt: RunningAttempt) -> None:
        try:
            self._generate(run, self.generator_of(run), attempt)
        except (CogrError, OSError) as error:
            attempt.end("declined", str(error))
        except Exception as error:
            log.exception("Shard %s failed", attempt.record.shard)
            attempt.end("failed", f"{type(error).__name__}: {error}".splitlines()[0][:500])

    def _generate(self, run: FleetRun, generator: Generator, attempt: RunningAttempt) -> None:
        keyed = attempt.folder.read_shard(attempt.record.shard)
        if keyed is None:
            attempt.end("declined", "the file of its requests is gone or damaged")
            return
        cache = GenerationCache(self._store, run.fingerprint)
        attempt.begin()
        try:
            transient = generate_into(cache, run.side, generator, keyed, attempt.answered)
        finally:
            faulthandler.cancel_dump_traceback_later()
        left = len(keyed) - attempt.items
        attempt.end("stopped" if left else "done", "the rest is left" if left else "", transient)


def _difference(wanted: Mapping[str, Any], have: Mapping[str, Any]) -> str:
    keys = sorted({*wanted, *have} - {"endpoint"})
    return ", ".join(
        f"{key} is {have.get(key)!r} here and {wanted.get(key)!r} there"
        for key in keys
        if fingerprint_hash({key: wanted.get(key)}) != fingerprint_hash({key: have.get(key)})
    )


def _refusal(why: str) -> str:
    line = f"A message is refused: {why}"
    log.warning("%s", line)
    return line


class RunningAttempt:
    """An attempt from its claim to its result."""

    def __init__(
        self, folder: RunFolder, shard: str, worker: str, stopping: Callable[[], bool]
    ) -> None:
        self.folder = folder
        self.record = Attempt(shard=shard, worker=worker)
        self.items = 0
        self._stopping = stopping
        self._began = self._looked = time.monotonic()

    def begin(self) -> None:
        """From now on a death counts against the shard, and a generator that hangs ends the
        process, which says in which calls it was.
        """
        # Without an answer it is 0, which an alert looks at.
        self._last = prometheus.LAST_ANSWER.labels(self.folder.side)
        self._began = time.monotonic()
        self._write(state="running")
        self._watch()

    def _watch(self) -> None:
        faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True, file=_STDERR)

    def answered(self) -> bool:
        """Count an answer. Returns whether to stop now: the worker shall end, the shard's time or
        the run is over.
        """
        self.items += 1
        self._last.set_to_current_time()
        now = time.monotonic()
        if self._stopping() or now - self._began > SHARD_SECONDS:
            return True
        if now - self._looked < WORKER_LOOK_SECONDS:
            return False
        self._looked = now
        self._watch()
        run = self.folder.read(FleetRun, "run")
        return run is None or run.state != "running"

    def end(
        self, state: AttemptState, reason: str = "", transient: Mapping[str, str] | None = None
    ) -> None:
        """Write the result; the shard is over."""
        self._write(state=state, reason=reason, transient=transient or {})
        self.folder.remove_shard(self.record.shard)

    def _write(self, **changes: Any) -> None:
        figures = {"items": self.items, "seconds": round(time.monotonic() - self._began, 3)}
        self.record = self.record.model_copy(update=figures | changes)
        self.folder.write(self.record, f"attempts/{self.record.shard}")


def serve_queues(workspace: Workspace, sides: Sequence[Side], generator: str | None) -> bool:
    """Work until SIGTERM or Ctrl-C. Returns whether to start a new process, for another
    generator. A fault of Celery's ends the process with status 1.
    """
    from celery.platforms import SecurityWarning
    from celery.signals import setup_logging, worker_ready
    from celery.worker import state

    # Celery warns when root may unpickle, and a container's user is often root; but only JSON is
    # read.
    warnings.simplefilter("ignore", SecurityWarning)
    # The command has configured logging; Celery would add its own handlers.
    setup_logging.connect(lambda **_: None, weak=False)
    logs.adopt("celery")
    worker_ready.connect(_end_softly_by_ctrl_c)
    queues = [queue_of(side, workspace.generator_settings(side, generator)) for side in sides]
    app = make_app(workspace.settings.redis)
    name = f"{socket.gethostname()}-{os.getpid()}"
    worker = Worker(workspace, name, generator, _asked_to_stop)

    def shard(**task: Any) -> None:
        log.info("%s", worker.take(task))
        if worker.restart_needed:
            state.should_stop = 0

    app.task(name=TASK)(shard)
    alone = dict.fromkeys(("without_gossip", "without_mingle", "without_heartbeat", "quiet"), True)
    one = {"hostname": f"{name}@cogr", "pool": "threads", "concurrency": 1, "queues": queues}
    process = app.Worker(**one, **alone, consumer_cls=_consumer())
    try:
        process.start()
    finally:
        worker.close()
    if process.exitcode:
        log.error("The worker ends by a fault, which Celery has logged above.")
        sys.exit(process.exitcode)
    return worker.restart_needed


def _consumer() -> type[Any]:
    """Celery's consumer, which waits for a broker that takes no writes, as at a failover."""
    from celery.worker.consumer import Consumer
    from celery.worker.state import maybe_shutdown
    from redis.exceptions import ReadOnlyError

    class Patient(Consumer):  # type: ignore[misc]
        def connect(self) -> Any:
            waits = False
            while True:
                try:
                    connection = super().connect()
                    check_writable(connection)
                    return connection
                except ReadOnlyError as error:
                    if not waits:
                        log.warning("The broker rejects writes (%s); waiting for it.", error)
                    waits = True
                    maybe_shutdown()
                    time.sleep(WORKER_LOOK_SECONDS)

    return Patient


def _end_softly_by_ctrl_c(**_: Any) -> None:
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))


def _asked_to_stop() -> bool:
    from celery.worker import state

    asked = (state.should_stop, state.should_terminate)
    return any(one is not None and one is not False for one in asked)
