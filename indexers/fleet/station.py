"""A worker's part: take a shard, generate what the cache lacks, leave answers, heartbeats and a result in the store.

It knows nothing of Celery: `indexers.fleet.tasks` gives it messages. It never decides that a shard is lost, split or set
aside; that is the coordinator's.
"""

from __future__ import annotations

import contextvars
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cogr.errors import CogrError, ServiceError, StorageError
from cogr.records import Side
from cogr.settings import Settings
from indexers.cache import GenerationCache, ReadCache, Segment
from indexers.fleet.engines import EngineHeldError, Engines
from indexers.fleet.records import (
    FORMAT,
    Attempt,
    AttemptState,
    Done,
    Run,
    RunFolder,
    SegmentRecord,
    entities_of,
)
from indexers.fleet.shards import Keyed, read_shard, read_trace
from indexers.generators.base import Answer, Completion, Failure, Generator
from indexers.keys import Keys
from indexers.telemetry import logs, metrics, traces
from indexers.telemetry.answers import AnswerCounts
from indexers.workspace import Workspace

log = logging.getLogger(__name__)

STUCK = 70
"""Exit status of a worker whose generator hung."""
NAME = r"^[A-Za-z0-9-]+$"
"""Names of runs and shards: nothing in a message leads out of the run's folder."""


class Message(BaseModel):
    """A task: which shard of which run. `dead` names attempts at it that the coordinator has given up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    side: Side
    run: str = Field(pattern=NAME)
    shard: str = Field(pattern=NAME)
    dead: tuple[str, ...] = ()


class Station:
    """A worker's engine and its place in the store.

    Args:
        workspace: the worker's own configuration.
        name: the worker's name in attempts and in `cogr-index status`.
        stopping: asked between answers; True ends the shard under way and leaves the rest of it to others.
        abandon: called, in a thread of its own, when no answer has come for fleet.stuck_seconds and the shard is given up.

    Attributes:
        changing_over: a shard wants another engine than the one that is held, and only a new process can load it.
    """

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        stopping: Callable[[], bool] = lambda: False,
        abandon: Callable[[], None] | None = None,
    ) -> None:
        self._workspace = workspace
        self._name = name
        self._stopping = stopping
        self._abandon = abandon or end_at_once
        self.engines = Engines(workspace)
        self.changing_over = False
        self._cache: tuple[Generator, GenerationCache] | None = None

    def take(self, task: Mapping[str, Any]) -> str:
        """Do one task, or say why not. Returns one line for the log.

        Raises:
            StorageError: not even an attempt could be written; the coordinator will send the shard again.
        """
        shard, run, number = (str(task.get(key, "?")) for key in ("shard", "run", "format"))
        if task.get("format") != FORMAT:
            reason = f"this worker reads task format {FORMAT}, the task has {number}: run the same version of cogr everywhere"
            return self._refuse(task, reason)
        try:
            message = Message.model_validate(dict(task))
        except ValidationError as error:
            return self._refuse(task, f"the task can't be read ({error.errors()[0]['msg']})")
        folder = RunFolder(self._workspace.store, message.side, message.run)
        opened = folder.read(Run, "run")
        if opened is None:
            return self._warned(f"no run {run} in {self._workspace.store.url}: does the coordinator use another store?")
        if why := self._needless(folder, message):
            return f"{shard} of {run} is left alone: {why}"
        with logs.bound(side=message.side, run=message.run, shard=message.shard, worker=self._name):
            return self._work(folder, opened, message)

    def _work(self, folder: RunFolder, run: Run, message: Message) -> str:
        """One attempt at a shard, told in metrics and as a span that continues the shard's own."""
        side, trace = message.side, read_trace(folder, message.shard)
        busy, started = metrics.WORKER_BUSY.labels(side), time.monotonic()
        busy.set(1)
        try:
            with traces.span("shard.generate", trace, side=side, shard=message.shard, worker=self._name) as span:
                with Work(folder, message.shard, self._name, self._workspace.settings, self._abandon) as work:
                    said = self._do(run, work)
                span.set(run=run.id, outcome=work.state, items=work.items, tokens=work.tokens)
        finally:
            busy.set(0)
        metrics.WORKER_SHARDS.labels(side, work.state).inc()
        metrics.WORKER_SHARD_SECONDS.labels(side).observe(time.monotonic() - started)
        return said

    def _refuse(self, task: Mapping[str, Any], reason: str) -> str:
        """Say so where the coordinator looks, whatever its version: side, run and shard are in every format."""
        side, run, shard = (task.get(key) for key in ("side", "run", "shard"))
        if side in ("item", "query") and all(isinstance(name, str) and re.match(NAME, name) for name in (run, shard)):
            folder = RunFolder(self._workspace.store, side, str(run))
            if self._workspace.store.exists(folder.path):
                with Work(folder, str(shard), self._name, self._workspace.settings) as work:
                    work.end("declined", reason)
        return self._warned(f"refused: {reason}")

    @staticmethod
    def _warned(line: str) -> str:
        log.warning("%s", line)
        return line

    def _needless(self, folder: RunFolder, message: Message) -> str:
        """Why nothing is to be done for a shard; "" when it is wanted."""
        if folder.ended is not None:
            return "the rebuild has ended"
        if self._workspace.store.exists(f"{folder.path}/done/{message.shard}.json"):
            return "it is done"
        if self._workspace.store.exists(f"{folder.path}/given_up/{message.shard}.json"):
            return "it was given up"
        if folder.cancelled:
            return "the rebuild was cancelled"
        patience = self._workspace.settings.fleet.lost_seconds
        for attempt in folder.attempts_of(message.shard):
            silent = abs(time.time() - attempt.updated)
            if not attempt.final and attempt.id not in message.dead and silent < patience:
                return f"{attempt.worker} is at it"
        return ""

    def _do(self, run: Run, work: Work) -> str:
        try:
            generator = self.engines.get(run)
            keyed = read_shard(work.folder, work.shard)
            if keyed is None:
                work.end("declined", f"there are no requests in {work.folder.path}/shards/{work.shard}.parquet")
                return f"{work.shard}: no requests"
            work.begin()
            finished = self._generate(generator, keyed, work)
        except EngineHeldError:
            self.changing_over = True
            work.end("stopped", "this worker starts anew with another engine")
        except (ServiceError, OSError) as error:
            work.end("away", str(error))
        except CogrError as error:
            work.end("declined", str(error))
        except Exception as error:
            # Its text may quote an item: the log leaves it out above the level debug.
            log.exception("Shard %s failed", work.shard)
            work.end("failed", f"{type(error).__name__}: {error}".splitlines()[0][:500])
        else:
            work.end(*(("done", "") if finished else ("stopped", "the worker or the rebuild was asked to stop")))
        return work.summary()

    def _cache_of(self, generator: Generator) -> GenerationCache:
        """The cache of the generator that is held, kept from shard to shard with what it has read."""
        if self._cache is None or self._cache[0] is not generator:
            self._cache = generator, ReadCache(self._workspace.store, generator.fingerprint)
        return self._cache[1]

    def _generate(self, generator: Generator, keyed: list[Keyed], work: Work) -> bool:
        """Answer what the cache lacks. Returns whether nothing is left to do."""
        cache = self._cache_of(generator)
        missing = cache.missing(Keys.of(key for key, _ in keyed))
        keys = {keyed[i][1].id: keyed[i][0] for i in missing}
        started = time.monotonic()
        flusher = _Flusher(cache, self._workspace.settings, work, AnswerCounts(work.folder.side))
        last = metrics.LAST_ANSWER.labels(work.folder.side)
        try:
            for answer in generator.generate([keyed[i][1] for i in missing]) if missing else ():
                flusher.add(keys.pop(answer.id), answer)
                last.set_to_current_time()
                if work.unwanted.is_set() or self._stopping():
                    break
        finally:
            # Whatever ends the shard, what was answered is not asked for again.
            flusher.flush()
        if keys and not (work.unwanted.is_set() or self._stopping()):
            raise RuntimeError(f"the generator left {len(keys)} requests unanswered, {min(keys)!r} among them")
        if keys:
            return False
        work.done(flusher, len(keyed), time.monotonic() - started)
        return True


@dataclass
class _Flusher:
    """Answers on their way into the cache, and the counts of one attempt."""

    cache: GenerationCache
    settings: Settings
    work: Work
    counts: AnswerCounts
    segments: list[Segment] = field(default_factory=list)
    passing: dict[str, str] = field(default_factory=dict)
    waiting: list[tuple[bytes, Answer]] = field(default_factory=list)
    flushed: float = field(default_factory=time.monotonic)

    def add(self, key: bytes, answer: Answer) -> None:
        self.waiting.append((key, answer))
        if isinstance(answer, Failure) and not answer.lasting:
            self.passing[answer.id] = answer.reason
        self.counts.add(answer)
        self.work.items += 1
        self.work.tokens += answer.tokens if isinstance(answer, Completion) else 0
        rebuild = self.settings.rebuild
        if (
            len(self.waiting) >= rebuild.flush_answers
            or time.monotonic() - self.flushed >= self.settings.rebuild.flush_seconds
        ):
            self.flush()

    def flush(self) -> None:
        if self.waiting and (segment := self.cache.add(self.waiting)) is not None:
            self.segments.append(segment)
            self.counts.flushed()
        self.waiting, self.flushed = [], time.monotonic()


class Work:
    """One attempt at a shard, with its heartbeat.

    Attributes:
        items, tokens: generated so far; the heartbeat tells them.
        unwanted: set when the run was cancelled or has ended.
    """

    def __init__(
        self,
        folder: RunFolder,
        shard: str,
        worker: str,
        settings: Settings,
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.shard = shard
        self.items = self.tokens = 0
        self.unwanted = threading.Event()
        self._every = settings.fleet.heartbeat_seconds
        self._stuck = settings.fleet.stuck_seconds
        self._abandon = abandon
        now = time.time()
        self._attempt = Attempt(
            id=uuid.uuid4().hex[:8],
            shard=shard,
            worker=worker,
            started=now,
            updated=now,
            entities=entities_of(shard) if shard.rpartition("-")[2].isdecimal() else 0,
        )
        self._began = time.monotonic()
        self._writing = threading.Lock()
        self._over = threading.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._beat_for_ever,), name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Leaving without a word, as a SystemExit does, counts as a stop: the shard did nothing wrong.
        if not self._over.is_set():
            self.end("stopped", "the worker ended" if error is None else f"the worker ended by {type(error).__name__}")
        self._thread.join()

    @property
    def state(self) -> AttemptState:
        """How it stands."""
        return self._attempt.state

    def begin(self) -> None:
        """The engine is loaded; from here on, a death counts against the shard."""
        self._write(state="running")

    def done(self, flusher: _Flusher, entities: int, seconds: float) -> None:
        """Leave the shard's result."""
        record = Done(
            shard=self.shard,
            attempt=self._attempt.id,
            worker=self._attempt.worker,
            entities=entities,
            items=self.items,
            tokens=self.tokens,
            seconds=round(seconds, 3),
            finished=time.time(),
            segments=tuple(SegmentRecord(path=segment.path, sha256=segment.sha256) for segment in flusher.segments),
            passing=flusher.passing,
        )
        self.folder.write(record, f"done/{self.shard}")

    def end(self, state: AttemptState, reason: str) -> None:
        """The last word of this attempt."""
        self._over.set()
        self._write(state=state, reason=reason)

    def summary(self) -> str:
        attempt = self._attempt
        # The text of an unexpected error may quote an item; where the coordinator looks, it is whole.
        told = attempt.reason.partition(":")[0] if attempt.state == "failed" else attempt.reason
        reason = f" ({told})" if told else ""
        return f"{self.shard}: {attempt.state}, {self.items} generated in {attempt.seconds:.1f} s{reason}"

    def _beat_for_ever(self) -> None:
        seen, since = (self.state, self.items), time.monotonic()
        while not self._over.wait(self._every):
            if seen != (self.state, self.items):
                seen, since = (self.state, self.items), time.monotonic()
            elif time.monotonic() - since > self._stuck:
                self._give_up()
                return
            try:
                if self.folder.cancelled or self.folder.ended is not None:
                    self.unwanted.set()
                self._write(beating=True)
            except (StorageError, ServiceError, OSError) as error:
                log.warning("The heartbeat can't be written: %s", error)

    def _give_up(self) -> None:
        """The generator hangs. A heart that only beats proves nothing; another worker may do better."""
        reason = f"no answer for {self._stuck:g} s while {self.state} (fleet.stuck_seconds); this worker ends"
        log.error("Shard %s is given up: %s", self.shard, reason)
        try:
            self.end("failed" if self.state == "running" else "stopped", reason)
        except (StorageError, ServiceError, OSError) as error:
            log.warning("The last word can't be written: %s", error)
        self._abandon()

    def _write(self, *, beating: bool = False, **changes: Any) -> None:
        with self._writing:
            if beating and self._over.is_set():
                return
            update = {
                "updated": time.time(),
                "beat": self._attempt.beat + 1,
                "items": self.items,
                "tokens": self.tokens,
                "seconds": round(time.monotonic() - self._began, 3),
                **changes,
            }
            self._attempt = self._attempt.model_copy(update=update)
            self.folder.write(self._attempt, f"attempts/{self.shard}.{self._attempt.id}")


def end_at_once() -> None:
    """End this process although its main thread hangs, maybe in a call that no signal interrupts."""
    traces.flush()
    logging.shutdown()
    os._exit(STUCK)


def worker_name() -> str:
    """Host and process: unique among those that run."""
    return f"{socket.gethostname()}-{os.getpid()}"
