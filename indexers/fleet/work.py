"""One attempt at a shard, as its worker tells of it: heartbeats, counts, result, last word.

Generates nothing.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from cogr.errors import ServiceError, StorageError
from cogr.settings import Settings
from indexers.build.cache import Segment
from indexers.fleet.records import (
    Attempt,
    AttemptState,
    Done,
    RunFolder,
    SegmentRecord,
    entities_of,
)
from indexers.telemetry import traces

log = logging.getLogger(__name__)

STUCK = 70
"""Exit status of a worker whose generator hung."""


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
        self._thread = threading.Thread(
            target=context.run, args=(self._beat_for_ever,), name="heartbeat", daemon=True
        )

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Leaving without a word, as a SystemExit does, counts as a stop: the shard did nothing
        # wrong.
        if not self._over.is_set():
            self.end(
                "stopped",
                "the worker ended"
                if error is None
                else f"the worker ended by {type(error).__name__}",
            )
        self._thread.join()

    @property
    def state(self) -> AttemptState:
        """How it stands."""
        return self._attempt.state

    def begin(self) -> None:
        """The engine is loaded; from here on, a death counts against the shard."""
        self._write(state="running")

    def done(
        self, segments: Sequence[Segment], passing: Mapping[str, str], entities: int, seconds: float
    ) -> None:
        """Leave the shard's result.

        Args:
            segments: files of the cache that it wrote.
            passing: entity id -> reason of failures that the cache does not remember.
            entities: of the whole shard.
            seconds: that generating took.
        """
        record = Done(
            shard=self.shard,
            attempt=self._attempt.id,
            worker=self._attempt.worker,
            entities=entities,
            items=self.items,
            tokens=self.tokens,
            seconds=round(seconds, 3),
            finished=time.time(),
            segments=tuple(
                SegmentRecord(path=segment.path, sha256=segment.sha256) for segment in segments
            ),
            passing=passing,
        )
        self.folder.write(record, f"done/{self.shard}")

    def end(self, state: AttemptState, reason: str) -> None:
        """The last word of this attempt."""
        self._over.set()
        self._write(state=state, reason=reason)

    def summary(self) -> str:
        attempt = self._attempt
        # The text of an unexpected error may quote an item; where the coordinator looks, it is
        # whole.
        told = attempt.reason.partition(":")[0] if attempt.state == "failed" else attempt.reason
        reason = f" ({told})" if told else ""
        return (
            f"{self.shard}: {attempt.state}, {self.items} generated in {attempt.seconds:.1f} "
            f"s{reason}"
        )

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
        """The generator hangs.

        A heart that only beats proves nothing; another worker may do better.
        """
        reason = f"no answer for {self._stuck:g} s while {self.state}; this worker ends"
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
    """End this process although its main thread hangs, maybe in a call that no signal
    interrupts.
    """
    traces.flush()
    logging.shutdown()
    os._exit(STUCK)
