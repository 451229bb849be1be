"""A worker: takes messages from Celery, and generates the answers of a shard.

Celery's pool of one thread leaves the main thread free to say what the worker is at, and to end it.
A shard is claimed by creating the file of the attempt. Importing this loads neither Celery nor a
model.
"""

from __future__ import annotations

import contextvars
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from cogr.errors import CogrError, GeneratorError, ServiceError
from cogr.settings.indexing import GeneratorSettings
from indexers.fleet.broker import TASK, Message, make_app
from indexers.fleet.run_files import (
    Attempt,
    AttemptState,
    FleetRun,
    RunFolder,
    with_public_settings,
)
from indexers.generators import (
    Answer,
    Completion,
    Failure,
    Generator,
    fingerprint_hash,
    make_generator,
)
from indexers.rebuild.cache import CacheWriter, GenerationCache, Keyed, generate_into
from indexers.telemetry import logs, prometheus
from indexers.workspace import Workspace, generator_options

log = logging.getLogger(__name__)

ONE_PER_PROCESS = {"vllm"}
"""Generators that free their memory only when their process ends."""
SHARD_SECONDS = 180.0
"""After this time a worker leaves the rest of its shard to the next round, so that others help."""
STUCK_SECONDS = 1800.0
"""Seconds without an answer after which a worker gives up: no model needs that long."""
STUCK = 70
"""Exit status of a worker whose generator hung."""
LOOK_SECONDS = 1.0
"""How often a worker looks whether its run is over."""


def kill_process() -> None:
    """End this process although a thread of it hangs, perhaps where no signal interrupts it."""
    logging.shutdown()
    os._exit(STUCK)


class RestartNeededError(Exception):
    """Only a new process can load another generator."""


class LoadedGenerator:
    """The generator of a worker, kept until a shard needs another one."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._generator: Generator | None = None
        self._fingerprint = ""

    def get(self, run: FleetRun) -> Generator:
        """The generator of a run. Raises GeneratorError, CogrError and RestartNeededError."""
        wanted, loaded = fingerprint_hash(run.fingerprint), self._generator
        if loaded is not None and self._fingerprint == wanted:
            return loaded
        if loaded is not None and loaded.fingerprint.get("kind") in ONE_PER_PROCESS:
            raise RestartNeededError
        self.close()
        own, differs = self._workspace.settings.generator.of(run.side), ""
        asked = with_public_settings(own, run.generator)
        # The worker's own settings come first, since its model may have another path.
        for settings in [own, asked] if own.name == asked.name and own != asked else [asked]:
            generator = self._make(run, settings)
            differs = _difference(run.fingerprint, generator.fingerprint)
            if not differs:
                self._generator, self._fingerprint = generator, wanted
                return generator
            generator.close()
        raise GeneratorError(f"This worker's generator is not the one of the rebuild: {differs}.")

    def close(self) -> None:
        """Close the loaded generator."""
        if self._generator is not None:
            self._generator.close()
        self._generator, self._fingerprint = None, ""

    def _make(self, run: FleetRun, settings: GeneratorSettings) -> Generator:
        reads_it = settings.name in ("extractive", "statistical")
        dataset = self._workspace.dataset if reads_it else None
        # The coordinator chose the item snapshot for which queries are written.
        vocabulary, k_max = run.fingerprint.get("vocabulary"), int(run.fingerprint.get("k_max", 30))
        options = generator_options(settings, vocabulary, k_max)
        return make_generator(options, run.side, dataset, self._workspace.store)


def _difference(wanted: Mapping[str, Any], have: Mapping[str, Any]) -> str:
    keys = sorted({*wanted, *have} - {"endpoint"})
    return ", ".join(
        f"{key} is {have.get(key)!r} here and {wanted.get(key)!r} there"
        for key in keys
        if fingerprint_hash({key: wanted.get(key)}) != fingerprint_hash({key: have.get(key)})
    )


class Worker:
    """Does shards, one after another."""

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        stopping: Callable[[], bool] = lambda: False,
        abandon: Callable[[], None] = kill_process,
    ) -> None:
        self._store, self._name = workspace.store, name
        self._stopping, self._abandon = stopping, abandon
        self.generator = LoadedGenerator(workspace)
        self.restart_needed = False

    def take(self, task: Mapping[str, Any]) -> str:
        """Do one task, or refuse it. Returns one line for the log. Raises StorageError."""
        try:
            message = Message.model_validate(dict(task))
        except ValidationError as error:
            return refuse(f"the task can't be read ({error.errors()[0]['msg']})")
        folder = RunFolder(self._store, message.side, message.run)
        run = folder.read(FleetRun, "run")
        if run is None:
            return refuse(
                f"there is no run {message.run} in {self._store.url}; does the coordinator use "
                "another store?"
            )
        attempt = RunningAttempt(folder, message, self._name, self._stopping)
        over = folder.over
        if over or not attempt.claim():
            why = "the rebuild has ended" if over else "a worker has it"
            return f"{message.shard} of {run.id} is left alone: {why}"
        side, names = run.side, {"run": run.id, "shard": message.shard, "worker": self._name}
        with (
            logs.bound(side=side, **names),
            prometheus.WORKER_BUSY.labels(side).track_inprogress(),
            prometheus.WORKER_SHARD_SECONDS.labels(side).time(),
        ):
            self._try(run, attempt)
            one = attempt.record
        prometheus.WORKER_SHARDS.labels(side, one.state).inc()
        line = f"{one.shard}: {one.state}, {one.items} generated in {one.seconds:.1f} s"
        return f"{line} ({one.logged_reason})" if one.reason else line

    def _try(self, run: FleetRun, attempt: RunningAttempt) -> None:
        try:
            generator = self.generator.get(run)
            keyed = attempt.folder.read_shard(attempt.record.shard)
            if keyed is None:
                attempt.end("declined", "the file of its requests is gone or damaged")
                return
            with attempt.watched(self._abandon):
                self._generate(run, generator, keyed, attempt)
        except RestartNeededError:
            self.restart_needed = True
            attempt.end("stopped", "this worker starts anew with another generator")
        except (ServiceError, OSError) as error:
            attempt.end("away", str(error))
        except CogrError as error:
            attempt.end("declined", str(error))
        except Exception as error:
            # The error's text may quote an item, so the log leaves it out.
            log.exception("Shard %s failed", attempt.record.shard)
            attempt.end("failed", f"{type(error).__name__}: {error}".splitlines()[0][:500])

    def _generate(
        self, run: FleetRun, generator: Generator, keyed: list[Keyed], attempt: RunningAttempt
    ) -> None:
        last, left = prometheus.LAST_ANSWER.labels(run.side), len(keyed)

        def each(answer: Answer) -> None:
            nonlocal left
            left -= 1
            attempt.count(answer)
            last.set_to_current_time()

        writer = CacheWriter(GenerationCache(self._store, run.fingerprint), run.side)
        transient = generate_into(writer, generator, keyed, len(keyed), each, attempt.stopping)
        attempt.end("stopped" if left else "done", "the rest is left" if left else "", transient)


def refuse(why: str) -> str:
    """Log a message that can't be worked on. Returns the line."""
    line = f"A message is refused: {why}"
    log.warning("%s", line)
    return line


class RunningAttempt:
    """An attempt from its claim to its result."""

    def __init__(
        self, folder: RunFolder, message: Message, worker: str, stopping: Callable[[], bool]
    ) -> None:
        self.folder = folder
        self.record = Attempt(shard=message.shard, worker=worker)
        self._stopping = stopping
        self._name = f"attempts/{message.shard}"
        self._items = self._tokens = 0
        self._began = self._answered = self._looked = time.monotonic()
        self._ended = threading.Event()

    def claim(self) -> bool:
        """Take the shard. False when it was taken before, since messages may come twice."""
        return self.folder.create(self.record, self._name)

    def count(self, answer: Answer) -> None:
        """Count an answer."""
        self._items += 1
        self._tokens += answer.tokens if isinstance(answer, Completion) else 0
        self._answered = time.monotonic()

    def stopping(self) -> bool:
        """Whether to stop now: the worker shall end, the shard's time or the run is over."""
        now = time.monotonic()
        if self._stopping() or now - self._began > SHARD_SECONDS:
            return True
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        return self.folder.over

    @contextmanager
    def watched(self, abandon: Callable[[], None]) -> Iterator[None]:
        """For the time of the block a death counts against the shard, and a thread ends a process
        that hangs.
        """
        self._began = self._answered = time.monotonic()
        self._write(state="running")
        watch = contextvars.copy_context().run
        thread = threading.Thread(target=watch, args=(self._watch, abandon), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self, abandon: Callable[[], None]) -> None:
        while not self._ended.wait(STUCK_SECONDS / 10):
            if time.monotonic() - self._answered > STUCK_SECONDS:
                reason = f"no answer for {STUCK_SECONDS:g} s; this worker ends"
                log.error("Shard %s is given up: %s", self.record.shard, reason)
                try:
                    self.end("failed", reason)
                finally:
                    abandon()
                return

    def end(
        self, state: AttemptState, reason: str = "", transient: Mapping[str, Failure] | None = None
    ) -> None:
        """Write the result; the shard is over."""
        reasons = {id_: failure.reason for id_, failure in (transient or {}).items()}
        self._write(state=state, reason=reason, transient=reasons)
        self.folder.write_shard(self.record.shard, ())

    def _write(self, **changes: Any) -> None:
        seconds = round(time.monotonic() - self._began, 3)
        figures = {"items": self._items, "tokens": self._tokens, "seconds": seconds}
        self.record = self.record.model_copy(update=figures | changes)
        self.folder.write(self.record, self._name)


def serve(workspace: Workspace, queues: Sequence[str]) -> bool:
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
    setup_logging.connect(_nothing)
    logs.adopt("celery")
    worker_ready.connect(_end_softly_by_ctrl_c)
    app = make_app(workspace.settings.redis)
    name = f"{socket.gethostname()}-{os.getpid()}"
    worker = Worker(workspace, name, _asked_to_stop)

    def shard(**task: Any) -> None:
        log.info("%s", worker.take(task))
        if worker.restart_needed:
            state.should_stop = 0

    app.task(name=TASK)(shard)
    alone = dict.fromkeys(("without_gossip", "without_mingle", "without_heartbeat", "quiet"), True)
    one = {"hostname": f"{name}@cogr", "pool": "threads", "concurrency": 1, "queues": [*queues]}
    process = app.Worker(**one, **alone)
    try:
        process.start()
    finally:
        worker.generator.close()
    if process.exitcode:
        log.error("The worker ends by a fault, which Celery has logged above.")
        sys.exit(process.exitcode)
    return worker.restart_needed


def _nothing(**_: Any) -> None:
    """A receiver of a signal that does nothing."""


def _end_softly_by_ctrl_c(**_: Any) -> None:
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))


def _asked_to_stop() -> bool:
    from celery.worker import state

    asked = (state.should_stop, state.should_terminate)
    return any(one is not None and one is not False for one in asked)
