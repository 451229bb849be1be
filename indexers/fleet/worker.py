"""A worker: takes messages from Celery, and generates the answers of a shard that the cache lacks.

Celery's solo pool runs one message at a time in the worker's main process, where an engine may
start processes of its own. A `RunningAttempt` is one worker's attempt at one shard: claim,
heartbeats, result. Importing this loads neither Celery nor a model.
"""

from __future__ import annotations

import contextvars
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from pydantic import ValidationError

from cogr.errors import CogrError, GeneratorError, ServiceError, StorageError
from cogr.settings import GeneratorSettings
from cogr.settings.fleet import FleetSettings
from indexers.fleet.broker import TASK, Message, make_app
from indexers.fleet.run_files import (
    FORMAT,
    Attempt,
    AttemptState,
    FleetRun,
    RunFolder,
    entities_of,
    with_public_settings,
)
from indexers.fleet.shards import read_requests
from indexers.generators import Answer, Completion, Failure, Generator, make_generator
from indexers.rebuild.cache import GenerationCache, Keys, fingerprint_hash
from indexers.rebuild.plan import CacheWriter, generate_into
from indexers.telemetry import logs, prometheus, traces
from indexers.workspace import Workspace, generator_options

log = logging.getLogger(__name__)

ONE_PER_PROCESS = {"vllm"}
"""Generators that free their memory only when their process ends."""


def kill_process() -> None:
    """End this process although its main thread hangs, perhaps where no signal interrupts it."""
    traces.flush()
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
        """The generator of a run.

        Raises:
            GeneratorError: this worker's generator differs from the run's.
            CogrError: the generator can't be made here.
            RestartNeededError: this process has to end first.
        """
        wanted, loaded = fingerprint_hash(run.fingerprint), self._generator
        if loaded is not None and self._fingerprint == wanted:
            return loaded
        if loaded is not None and loaded.fingerprint.get("kind") in ONE_PER_PROCESS:
            raise RestartNeededError
        self.close()
        differs = ""
        for settings in self._candidates(run):
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

    def _candidates(self, run: FleetRun) -> list[GeneratorSettings]:
        """The worker's own settings come first, since its model may have another path."""
        own = self._workspace.settings.generator.of(run.side)
        asked = with_public_settings(own, run.generator)
        return [own, asked] if own.name == asked.name and own != asked else [asked]

    def _make(self, run: FleetRun, settings: GeneratorSettings) -> Generator:
        reads_it = settings.name in ("extractive", "statistical")
        dataset = self._workspace.dataset if reads_it else None
        # The coordinator chose the item snapshot for which queries are written.
        vocabulary, k_max = run.fingerprint.get("vocabulary"), int(run.fingerprint.get("k_max", 30))
        options = generator_options(settings, vocabulary, k_max)
        return make_generator(options, run.side, dataset, self._workspace.store)


def _difference(wanted: Mapping[str, Any], have: Mapping[str, Any]) -> str:
    """The difference of two fingerprints, "" for none. Each worker may have its own endpoint."""
    keys = sorted({*wanted, *have} - {"endpoint"})
    return ", ".join(
        f"{key} is {have.get(key)!r} here and {wanted.get(key)!r} there"
        for key in keys
        if fingerprint_hash({key: wanted.get(key)}) != fingerprint_hash({key: have.get(key)})
    )


class Worker:
    """Does shards, one after another.

    Args:
        stopping: called between answers; True ends the shard and leaves the rest to other workers.
        abandon: called, in a thread of its own, when the generator hangs.

    Attributes:
        restart_needed: whether a shard needs a generator that only a new process can load.
    """

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        stopping: Callable[[], bool] = lambda: False,
        abandon: Callable[[], None] = kill_process,
    ) -> None:
        self._workspace = workspace
        self._name = name
        self._stopping = stopping
        self._abandon = abandon
        self._cache: tuple[str, GenerationCache] | None = None
        self.generator = LoadedGenerator(workspace)
        self.restart_needed = False

    def take(self, task: Mapping[str, Any]) -> str:
        """Do one task, or refuse it. Returns one line for the log. Raises StorageError."""
        try:
            message = Message.model_validate(dict(task))
        except ValidationError as error:
            return _warned(f"refused: the task can't be read ({error.errors()[0]['msg']})")
        if message.format != FORMAT:
            return _warned(
                f"refused: this worker reads task format {FORMAT}, the task has {message.format}; "
                "run the same version of cogr everywhere"
            )
        folder = RunFolder(self._workspace.store, message.side, message.run)
        run = folder.read(FleetRun, "run")
        if run is None:
            return _warned(
                f"no run {message.run} in {self._workspace.store.url}: does the coordinator use "
                "another store?"
            )
        shard, number, fleet = message.shard, message.attempt, self._workspace.settings.fleet
        record = Attempt(shard=shard, number=number, worker=self._name, entities=entities_of(shard))
        attempt = RunningAttempt(folder, record, fleet, self._abandon)
        over = folder.ended is not None or folder.cancelled
        if over or not attempt.claim():
            why = "the rebuild has ended" if over else f"a worker has attempt {number}"
            return f"{shard} of {run.id} is left alone: {why}"
        with logs.bound(side=run.side, run=run.id, shard=shard, worker=self._name):
            return self._work(run, attempt, message.trace)

    def _work(self, run: FleetRun, attempt: RunningAttempt, trace: Mapping[str, str]) -> str:
        """One attempt, with its metrics, and a span below the shard's own."""
        side, names = run.side, {"shard": attempt.record.shard, "worker": self._name}
        duration = prometheus.WORKER_SHARD_SECONDS.labels(side).time()
        busy = prometheus.WORKER_BUSY.labels(side).track_inprogress()
        spanned = traces.span("shard.generate", trace, side=side, run=run.id, **names)
        with busy, duration, spanned as span:
            with attempt:
                self._try(run, attempt)
            one = attempt.record
            span.set_attributes(
                {"cogr.outcome": one.state, "cogr.items": one.items, "cogr.tokens": one.tokens}
            )
        prometheus.WORKER_SHARDS.labels(side, one.state).inc()
        return attempt.summary()

    def _try(self, run: FleetRun, attempt: RunningAttempt) -> None:
        try:
            self._generate(run, attempt)
        except RestartNeededError:
            self.restart_needed = True
            attempt.end("stopped", "this worker starts anew with another generator")
        except (ServiceError, OSError) as error:
            attempt.end("away", str(error))
        except CogrError as error:
            attempt.end("declined", str(error))
        except Exception as error:
            # The error's text may quote an item, so only the level debug logs it.
            log.exception("Shard %s failed", attempt.record.shard)
            attempt.end("failed", f"{type(error).__name__}: {error}".splitlines()[0][:500])

    def _generate(self, run: FleetRun, attempt: RunningAttempt) -> None:
        """Generate the answers that the cache lacks, and write the result."""
        generator = self.generator.get(run)
        keyed = read_requests(attempt.folder, attempt.record.shard)
        if keyed is None:
            where = f"{attempt.folder.path}/shards/{attempt.record.shard}.json.gz"
            attempt.end("declined", f"there are no requests in {where}")
            return
        attempt.begin()
        cache = self._cache_of(run)
        missing = [keyed[i] for i in cache.missing(Keys.of(key for key, _ in keyed))]
        writer = CacheWriter(cache, run.side)
        last = prometheus.LAST_ANSWER.labels(run.side)

        def each(answer: Answer) -> None:
            attempt.count(answer)
            last.set_to_current_time()

        def stopping() -> bool:
            return attempt.unwanted.is_set() or self._stopping()

        generated = generate_into(writer, generator, missing, len(missing), each, stopping)
        if generated.left:
            attempt.end("stopped", "the worker or the rebuild was asked to stop")
        else:
            attempt.end("done", transient=generated.transient)

    def _cache_of(self, run: FleetRun) -> GenerationCache:
        """The cache in which the coordinator looks for answers. Its keys are kept in memory from
        shard to shard.
        """
        name = fingerprint_hash(run.fingerprint)
        if self._cache is None or self._cache[0] != name:
            self._cache = name, GenerationCache(self._workspace.store, run.fingerprint)
        return self._cache[1]


def _warned(line: str) -> str:
    log.warning("%s", line)
    return line


def serve(workspace: Workspace, queues: Sequence[str], *, name: str | None = None) -> bool:
    """Work until SIGTERM or Ctrl-C. Returns whether to start a new process, for another
    generator.
    """
    from celery.platforms import SecurityWarning
    from celery.signals import setup_logging, worker_ready
    from celery.worker import state

    # Celery warns when root may unpickle, and a container's user is often root; but only JSON is
    # read.
    warnings.simplefilter("ignore", SecurityWarning)
    # The command has configured logging; Celery would add its own handlers.
    setup_logging.connect(lambda **_: None, weak=False)
    worker_ready.connect(_end_softly_by_ctrl_c)
    app = make_app(workspace.settings.redis)
    # No events between workers, and no remote control by broadcast.
    app.conf.update(worker_enable_remote_control=False, worker_send_task_events=False)
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    worker = Worker(workspace, name, _asked_to_stop)

    def shard(**task: Any) -> None:
        log.info("%s", worker.take(task))
        if worker.restart_needed:
            state.should_stop = 0

    app.task(name=TASK)(shard)
    alone = dict.fromkeys(("without_gossip", "without_mingle", "without_heartbeat", "quiet"), True)
    one = {"hostname": f"{name}@cogr", "pool": "solo", "concurrency": 1, "queues": [*queues]}
    process = app.Worker(**one, **alone)
    try:
        process.start()
    finally:
        worker.generator.close()
    return worker.restart_needed


def _end_softly_by_ctrl_c(**_: Any) -> None:
    """Make the first Ctrl-C act like SIGTERM: end between two answers."""
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))


def _asked_to_stop() -> bool:
    """Whether this worker was asked to end by a signal (the value 0 is a request, too)."""
    from celery.worker import state

    asked = (state.should_stop, state.should_terminate)
    return any(one is not None and one is not False for one in asked)


STUCK_SECONDS = 1800.0
"""Seconds without an answer after which a worker gives up: no model needs that long."""
STUCK = 70
"""Exit status of a worker whose generator hung."""


class RunningAttempt:
    """An attempt from its claim to its result. Inside the block a thread writes heartbeats.

    Args:
        abandon: called in that thread when no answer has come for `STUCK_SECONDS`.

    Attributes:
        items, tokens: generated so far; written with each heartbeat.
        unwanted: set when the run was cancelled or has ended.
    """

    def __init__(
        self,
        folder: RunFolder,
        record: Attempt,
        settings: FleetSettings,
        abandon: Callable[[], None],
    ) -> None:
        self.folder = folder
        self.record = record
        self._name = f"attempts/{record.shard}.{record.number}"
        self.items = self.tokens = 0
        self.unwanted = threading.Event()
        self._settings = settings
        self._abandon = abandon
        self._began: float | None = None
        self._writing = threading.Lock()
        self._over = threading.Event()
        beat = contextvars.copy_context().run
        self._thread = threading.Thread(target=beat, args=(self._beat,), daemon=True)

    def claim(self) -> bool:
        """Take the attempt. False when it was taken before, since messages may come twice."""
        return self.folder.create(self.record, self._name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Leaving without a result, as by SystemExit, counts as a stop: nothing is wrong with the
        # shard.
        if not self._over.is_set():
            how = "" if kind is None else f" by {kind.__name__}"
            self.end("stopped", f"the worker ended{how}")
        self._thread.join()

    def begin(self) -> None:
        """The generator is loaded; from now on a death counts against the shard."""
        self._began = time.monotonic()
        self._write(state="running")

    def count(self, answer: Answer) -> None:
        """Count an answer."""
        self.items += 1
        self.tokens += answer.tokens if isinstance(answer, Completion) else 0

    def end(
        self, state: AttemptState, reason: str = "", transient: Mapping[str, Failure] | None = None
    ) -> None:
        """Write the result of this attempt."""
        self._over.set()
        reasons = {id_: failure.reason for id_, failure in (transient or {}).items()}
        self._write(state=state, reason=reason, transient=reasons)

    def summary(self) -> str:
        """One line for the log."""
        one = self.record
        line = f"{one.shard}: {one.state}, {one.items} generated in {one.seconds:.1f} s"
        return f"{line} ({one.logged_reason})" if one.reason else line

    def _beat(self) -> None:
        seen, since = (self.record.state, self.items), time.monotonic()
        while not self._over.wait(self._settings.heartbeat_seconds):
            if seen != (self.record.state, self.items):
                seen, since = (self.record.state, self.items), time.monotonic()
            elif time.monotonic() - since > STUCK_SECONDS:
                self._give_up()
                return
            try:
                if self.folder.cancelled or self.folder.ended is not None:
                    self.unwanted.set()
                self._write(beating=True)
            except (StorageError, ServiceError, OSError) as error:
                log.warning("The heartbeat can't be written: %s", error)

    def _give_up(self) -> None:
        """The generator hangs; another worker may succeed."""
        reason = f"no answer for {STUCK_SECONDS:g} s while {self.record.state}; this worker ends"
        log.error("Shard %s is given up: %s", self.record.shard, reason)
        try:
            self.end("failed" if self.record.state == "running" else "stopped", reason)
        finally:
            self._abandon()

    def _write(self, *, beating: bool = False, **changes: Any) -> None:
        with self._writing:
            if beating and self._over.is_set():
                return
            update = {
                "updated": time.time(),
                "items": self.items,
                "tokens": self.tokens,
                "seconds": round(time.monotonic() - self._began, 3) if self._began else 0.0,
                **changes,
            }
            self.record = self.record.model_copy(update=update)
            self.folder.write(self.record, self._name)
