"""A worker's part: take a shard, generate what the cache lacks, leave answers, heartbeats and a
result in the store.

It knows nothing of Celery: `indexers.fleet.tasks` gives it messages. It never decides that a shard
is lost, split or set aside; that is the coordinator's.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cogr.errors import CogrError, ServiceError
from cogr.records import Side
from cogr.settings import Settings
from indexers.build.cache import GenerationCache, Keys, ReadCache, Segment
from indexers.fleet.engines import EngineHeldError, Engines
from indexers.fleet.records import FORMAT, Run, RunFolder
from indexers.fleet.shards import Keyed, read_shard, read_trace
from indexers.fleet.work import Work, end_at_once
from indexers.generators.protocol import Answer, Completion, Failure, Generator
from indexers.telemetry import logs, metrics, traces
from indexers.telemetry.answers import AnswerCounts
from indexers.workspace import Workspace

log = logging.getLogger(__name__)

NAME = r"^[A-Za-z0-9-]+$"
"""Names of runs and shards: nothing in a message leads out of the run's folder."""


class Message(BaseModel):
    """A task: which shard of which run.

    `dead` names attempts at it that the coordinator has given up.
    """

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
        stopping: asked between answers; True ends the shard under way and leaves the rest of it to
            others.
        abandon: called, in a thread of its own, when no answer has come for fleet.stuck_seconds and
            the shard is given up.

    Attributes:
        changing_over: a shard wants another engine than the one that is held, and only a new
            process can load it.
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
        self._cache: tuple[str, GenerationCache] | None = None

    def take(self, task: Mapping[str, Any]) -> str:
        """Do one task, or say why not. Returns one line for the log.

        Raises:
            StorageError: not even an attempt could be written; the coordinator will send the shard
                again.
        """
        shard, run, number = (str(task.get(key, "?")) for key in ("shard", "run", "format"))
        if task.get("format") != FORMAT:
            reason = (
                f"this worker reads task format {FORMAT}, the task has {number}: run the same "
                "version of cogr everywhere"
            )
            return self._refuse(task, reason)
        try:
            message = Message.model_validate(dict(task))
        except ValidationError as error:
            return self._refuse(task, f"the task can't be read ({error.errors()[0]['msg']})")
        folder = RunFolder(self._workspace.store, message.side, message.run)
        opened = folder.read(Run, "run")
        if opened is None:
            return self._warned(
                f"no run {run} in {self._workspace.store.url}: does the coordinator use another "
                "store?"
            )
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
            with traces.span(
                "shard.generate", trace, side=side, shard=message.shard, worker=self._name
            ) as span:
                with Work(
                    folder, message.shard, self._name, self._workspace.settings, self._abandon
                ) as work:
                    said = self._do(run, work)
                span.set(run=run.id, outcome=work.state, items=work.items, tokens=work.tokens)
        finally:
            busy.set(0)
        metrics.WORKER_SHARDS.labels(side, work.state).inc()
        metrics.WORKER_SHARD_SECONDS.labels(side).observe(time.monotonic() - started)
        return said

    def _refuse(self, task: Mapping[str, Any], reason: str) -> str:
        """Say so where the coordinator looks, whatever its version: side, run and shard are in
        every format.
        """
        side, run, shard = (task.get(key) for key in ("side", "run", "shard"))
        if side in ("item", "query") and all(
            isinstance(name, str) and re.match(NAME, name) for name in (run, shard)
        ):
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
                work.end(
                    "declined",
                    f"there are no requests in {work.folder.path}/shards/{work.shard}.parquet",
                )
                return f"{work.shard}: no requests"
            work.begin()
            finished = self._generate(generator, self._cache_of(run), keyed, work)
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
            work.end(
                *(
                    ("done", "")
                    if finished
                    else ("stopped", "the worker or the rebuild was asked to stop")
                )
            )
        return work.summary()

    def _cache_of(self, run: Run) -> GenerationCache:
        """Where the coordinator looks for answers, kept from shard to shard with what has been read
        of it.
        """
        if self._cache is None or self._cache[0] != run.fingerprint_hash:
            self._cache = run.fingerprint_hash, ReadCache(self._workspace.store, run.fingerprint)
        return self._cache[1]

    def _generate(
        self, generator: Generator, cache: GenerationCache, keyed: list[Keyed], work: Work
    ) -> bool:
        """Answer what the cache lacks. Returns whether nothing is left to do."""
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
            raise RuntimeError(
                f"the generator left {len(keys)} requests unanswered, {min(keys)!r} among them"
            )
        if keys:
            return False
        work.done(flusher.segments, flusher.passing, len(keyed), time.monotonic() - started)
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
        if isinstance(answer, Failure) and not answer.permanent:
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


def worker_name() -> str:
    """Host and process: unique among those that run."""
    return f"{socket.gethostname()}-{os.getpid()}"
