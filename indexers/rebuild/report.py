"""A run as logs, metrics and traces show it, and the entities that it left without keywords."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.compute as pc

from cogr.errors import CheckFailedError, CogrError, LockedError, ServiceError
from cogr.records import Side
from cogr.snapshots import Snapshot, read_set_aside
from indexers.telemetry import logs, prometheus, traces

log = logging.getLogger(__name__)


@contextmanager
def observed(command: str, side: Side) -> Iterator[None]:
    """Log, count and trace the block as a run of this command, however it ends."""
    outcome = "finished"
    with logs.bound(side=side), traces.span(command, side=side) as span:
        try:
            yield
            prometheus.LAST_SUCCESS.labels(side, command).set_to_current_time()
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            prometheus.RUNS.labels(side, command, outcome).inc()
            span.set_attribute("cogr.outcome", outcome)
            log.info("%s of %ss: %s", command, side, outcome)


def outcome_of(error: BaseException) -> str:
    """How a run ended, as one of a few fixed words, for metrics and traces."""
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (CheckFailedError, "refused"),
        (ServiceError, "service_away"),
        (LockedError, "lost_lease"),
        (CogrError, "user_error"),
        (Exception, "bug"),
    )
    return next((word for kind, word in kinds if isinstance(error, kind)), "interrupted")


NAMED = 10
"""Most entities without keywords that a rebuild names."""


def empty_sets(snapshot: Snapshot) -> list[dict[str, str]]:
    """id, text, and why, where it is known, of the first entities without keywords, in id order."""
    if not snapshot.manifest.empty:
        return []
    aside, found = read_set_aside(snapshot.store, snapshot.id), []
    for batch in snapshot.batches(["id", "text", "keywords"], encoded=True):
        empty = batch.filter(pc.equal(pc.list_value_length(batch["keywords"]), 0))
        found += empty.select(["id", "text"]).to_pylist()
        if len(found) >= NAMED:
            break
    return [{**one, "reason": aside.get(one["id"], "")} for one in found[:NAMED]]
