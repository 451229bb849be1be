"""The report of a rebuild or an update: entities without keywords, and `report.json`, which gives
programs the run's request, work and outcome. It is written when the run ends, also by an error.

The report lies in the run's folder in the store: fleet/<side>/runs/<run>/ for a rebuild on workers,
rebuilds/<side>/<run>/ for a local one. This module also counts the run in the metrics and traces it
as a span.
"""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from cogr import __version__
from cogr.errors import CheckFailedError, CogrError, LockedError, ServiceError, StorageError
from cogr.records import Side
from cogr.snapshots import Snapshot, read_set_aside
from cogr.store import Store
from indexers.telemetry import logs, prometheus, traces
from indexers.telemetry.traces import Step, recording

log = logging.getLogger(__name__)

FORMAT = 1
KEPT = 20
"""Folders of local runs that are kept."""
_REASONS = 20
_TIME = "%Y-%m-%dT%H:%M:%SZ"


class RunLocation:
    """A run's folder in the store, and what workers did; nothing for a run in this process."""

    @property
    def folder(self) -> str | None:
        """The run's folder."""
        return None

    def summary(self) -> Mapping[str, Any]:
        """What workers did."""
        return {}


@dataclass
class RunReport:
    """The report while the run is under way.

    Attributes:
        set_aside: id -> reason of the snapshot's entities without keywords.
    """

    store: Store
    command: str
    side: Side
    location: RunLocation
    steps: list[Step] = field(default_factory=list)
    outcome: str = "finished"
    reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    set_aside: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._started, self._clock = time.gmtime(), time.monotonic()
        self._id = f"{time.strftime('%Y%m%dT%H%M%S', self._started)}-{uuid.uuid4().hex[:6]}"

    @property
    def folder(self) -> str:
        """The run's folder in the store."""
        return self.location.folder or f"rebuilds/{self.side}/{self._id}"

    @property
    def run(self) -> str:
        """The run's id."""
        return self.folder.rsplit("/", 1)[1]

    @property
    def path(self) -> str:
        """Where the report will be, as an address."""
        return f"{self.store.url.rstrip('/')}/{self.folder}/report.json"

    def fail(self, error: BaseException) -> None:
        """Record the error that ended the run."""
        self.outcome = outcome_of(error)
        self.reason = str(error) if isinstance(error, CogrError) else type(error).__name__

    def as_dict(self) -> dict[str, Any]:
        """The report."""
        return {
            "format": FORMAT,
            **{name: getattr(self, name) for name in ("command", "side", "run", "outcome")},
            "reason": self.reason,
            "started": time.strftime(_TIME, self._started),
            "ended": time.strftime(_TIME, time.gmtime()),
            "seconds": round(time.monotonic() - self._clock, 3),
            "host": socket.gethostname(),
            "version": __version__,
            "stages": [step.as_dict() for step in self.steps],
            "fleet": dict(self.location.summary()),
            "set_aside_reasons": dict(Counter(self.set_aside.values()).most_common(_REASONS)),
            "result": dict(self.result),
        }

    def write(self) -> None:
        """Write the report, and remove old ones.

        A report that can't be written is a warning, because the run itself is over.
        """
        try:
            self.store.write_json(f"{self.folder}/report.json", self.as_dict())
            for old in self.store.list(f"rebuilds/{self.side}")[:-KEPT]:
                self.store.remove(f"rebuilds/{self.side}/{old}")
        except (StorageError, ServiceError, OSError) as error:
            log.warning("The report of run %s can't be written: %s", self.run, error)


@contextmanager
def report_of(store: Store, command: str, side: Side, location: RunLocation) -> Iterator[RunReport]:
    """Write a report on the block, also when it raises."""
    report = RunReport(store, command, side, location)
    with (
        logs.bound(side=side),
        recording() as report.steps,
        traces.span(command, side=side) as span,
    ):
        try:
            yield report
            prometheus.LAST_SUCCESS.labels(side, command).set_to_current_time()
        except BaseException as error:
            report.fail(error)
            raise
        finally:
            prometheus.RUNS.labels(side, command, report.outcome).inc()
            span.set_attributes({"cogr.run": report.run, "cogr.outcome": report.outcome})
            with logs.bound(run=report.run, snapshot=report.result.get("snapshot")):
                log.info("%s of %ss: %s, see %s", command, side, report.outcome, report.path)
            report.write()


def outcome_of(error: BaseException) -> str:
    """How a run ended, as one of a few fixed words, for metrics and reports."""
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (CheckFailedError, "refused"),
        (ServiceError, "service_away"),
        (LockedError, "lost_lease"),
        (CogrError, "user_error"),
        (Exception, "bug"),
    )
    return next((word for kind, word in kinds if isinstance(error, kind)), "interrupted")


NAMED = 10
"""Most entities without keywords that a report names."""


def empty_sets(snapshot: Snapshot, most: int | None = NAMED) -> list[dict[str, str]]:
    """id, text, and why, where it is known, of entities without keywords, in id order; the first
    `most`, or all.
    """
    if not snapshot.manifest.empty:
        return []
    aside, found = read_set_aside(snapshot.store, snapshot.id), []
    for batch in snapshot.batches(["id", "text", "keywords"], encoded=True):
        empty = batch.filter(pc.equal(pc.list_value_length(batch["keywords"]), 0))
        found += empty.select(["id", "text"]).to_pylist()
        if most is not None and len(found) >= most:
            break
    return [{**one, "reason": aside.get(one["id"], "")} for one in found[:most]]
