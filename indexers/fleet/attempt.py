"""One worker's attempt at a shard: claim, heartbeat, last word. Generates nothing."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from cogr.errors import ServiceError, StorageError
from cogr.settings.fleet import FleetSettings
from indexers.fleet.run_files import Attempt, AttemptState, RunFolder
from indexers.generators.protocol import Answer, Completion, Failure
from indexers.telemetry import traces

log = logging.getLogger(__name__)

STUCK_SECONDS = 1800.0
"""Seconds without an answer after which a live worker gives up: no model takes that long."""
STUCK = 70
"""Exit status of a worker whose generator hung."""


class RunningAttempt:
    """An attempt from its claim to its last word; in the block a thread writes its heartbeat.

    Args:
        abandon: called in that thread when no answer has come for `STUCK_SECONDS`.

    Attributes:
        items, tokens: generated so far; the heartbeat tells them.
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
        """Take the attempt; False when it was taken before: messages may come twice."""
        return self.folder.create(self.record, self._name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # To leave without a last word, as by SystemExit, counts as a stop: the shard is all right.
        if not self._over.is_set():
            how = "" if kind is None else f" by {kind.__name__}"
            self.end("stopped", f"the worker ended{how}")
        self._thread.join()

    def begin(self) -> None:
        """The generator is loaded; from here on, a death counts against the shard."""
        self._began = time.monotonic()
        self._write(state="running")

    def count(self, answer: Answer) -> None:
        """One more answer."""
        self.items += 1
        self.tokens += answer.tokens if isinstance(answer, Completion) else 0

    def end(
        self, state: AttemptState, reason: str = "", transient: Mapping[str, Failure] | None = None
    ) -> None:
        """The last word of this attempt."""
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
        """The generator hangs: another worker may do better."""
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


def end_at_once() -> None:
    """End this process although its main thread hangs, maybe where no signal interrupts it."""
    traces.flush()
    logging.shutdown()
    os._exit(STUCK)
