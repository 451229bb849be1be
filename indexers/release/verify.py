"""Push, verify and warm up a snapshot, before it serves. The backend does each step; this module
says what it is asked.

A snapshot may serve after the quick verification (`Backend.verify`: counts, a sample, live
results). `compare_all` compares every document of a backend with its snapshot.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cogr.errors import CheckFailedError, SnapshotError
from cogr.records import Advance, Say, Side
from cogr.snapshots import Row, Snapshot, open_snapshot
from cogr.store import Store
from indexers.backends import Backend, Keywords, Mismatch, Pushed, Verified, side_of
from indexers.backends.memory import mirror_of
from indexers.generators import batched
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import stage

log = logging.getLogger(__name__)


def other_side(side: Side) -> Side:
    """item for query, query for item."""
    return "item" if side == "query" else "query"


def probes(
    backend: Backend,
    store: Store,
    snapshot: Snapshot,
    count: int,
    queries: str | None = None,
) -> Sequence[Keywords]:
    """Keyword lists to compare live results with the mirror on.

    For items, the weighted keyword sets of a query snapshot (the one that serves by default), where
    this store has it; else keywords drawn from the snapshot itself.
    """
    draw = random.Random(0)
    asking = queries or backend.serving().get(other_side(snapshot.side))
    if asking and snapshot.side == "item" and asking in store.list("snapshots"):
        try:
            return [row.weighted for row in _drawn(store, asking, count, draw)]
        except SnapshotError as error:
            log.warning("Its results are compared on keywords of its own: %s", error)
    words = mirror_of(store, snapshot).words
    sizes = (min(len(words), draw.randint(1, 15)) for _ in range(count if words else 0))
    return [draw.sample(words, size) for size in sizes]


def _drawn(store: Store, snapshot_id: str, count: int, draw: random.Random) -> list[Row]:
    snapshot = open_snapshot(store, snapshot_id)
    entities = snapshot.manifest.entities
    chosen = draw.sample(range(entities), min(count, entities))
    return list(snapshot.rows(chosen))


VERIFY_QUERIES = 100
"""Live queries compared with the mirror after a push: a wrong scoring would show in any of them."""


def push_and_verify(
    backend: Backend,
    store: Store,
    snapshot: Snapshot,
    queries: int = VERIFY_QUERIES,
    say: Say = lambda _: None,
) -> tuple[Pushed, Verified]:
    """Write the snapshot beside what serves and compare it there. Raises CheckFailedError where the
    pushed index differs from it, and ServiceError.
    """
    pushed = _push(backend, snapshot)
    say(
        f"pushed {pushed.written} of {pushed.documents} documents to {pushed.index} in "
        f"{pushed.seconds:.1f} s"
    )
    verified = _verify(backend, store, snapshot, queries)
    say(
        f"verified {verified.documents} documents, {verified.sampled} sampled, {verified.scores} "
        f"scores of {verified.queries} queries"
    )
    return pushed, verified


def _push(backend: Backend, snapshot: Snapshot) -> Pushed:
    with stage("push", snapshot.side):
        pushed = backend.push(snapshot)
    rate = round(pushed.written / pushed.seconds, 1) if pushed.seconds else 0.0
    prometheus.PUSHED.labels(snapshot.side).inc(pushed.written)
    prometheus.PUSH_RATE.labels(snapshot.side).set(rate)
    return pushed


def _verify(backend: Backend, store: Store, snapshot: Snapshot, queries: int) -> Verified:
    outcomes = prometheus.VERIFICATIONS
    with stage("verify", snapshot.side):
        try:
            verified = backend.verify(snapshot, probes(backend, store, snapshot, queries))
        except CheckFailedError:
            outcomes.labels(snapshot.side, "different").inc()
            raise
    outcomes.labels(snapshot.side, "equal").inc()
    return verified


def warm_up(backend: Backend, store: Store, ids: Sequence[str], count: int) -> None:
    """Send typical searches to the snapshots before they serve, so that the first users don't wait
    for cold files.

    The item index is searched with keyword sets of queries, those of a query snapshot among `ids`
    first; in the query index texts are looked up. The indexes are addressed by name, since no alias
    names them yet. Raises ServiceError.
    """
    queries = next((id_ for id_ in ids if side_of(id_) == "query"), None)
    for snapshot in (open_snapshot(store, id_) for id_ in ids) if count else ():
        with stage("warm_up", snapshot.side):
            if snapshot.side == "item":
                for words in probes(backend, store, snapshot, count, queries=queries):
                    backend.search(words, snapshot=snapshot.id)
            else:
                for row in _drawn(store, snapshot.id, count, random.Random(0)):
                    backend.lookup(row.text, snapshot=snapshot.id)


ROWS = 1_000
"""Most rows of one comparison."""
KEPT = 10
"""Differences that are shown; all are counted."""


@dataclass
class Compared:
    """The findings of a comparison; `first` has KEPT of its differences."""

    snapshot: str
    entities: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    first: list[Mismatch] = field(default_factory=list)

    @property
    def differences(self) -> int:
        """How many differences there are."""
        return self.missing + self.extra + self.different

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self) | {"differences": self.differences}


def compare_all(
    backend: Backend, snapshot: Snapshot, advance: Advance = lambda _: None
) -> Compared:
    """Compare every document. Memory: one batch of rows of the snapshot and one piece of documents.
    Raises SnapshotError where it is not pushed, or only half, and ServiceError.
    """
    found, after, entities = Compared(snapshot.id), "", snapshot.manifest.entities
    for rows in batched(snapshot.rows(), ROWS) if entities else [[]]:
        last = found.entities + len(rows) == entities
        for one in backend.compare(snapshot, rows, after, last=last):
            setattr(found, one.kind, getattr(found, one.kind) + 1)
            found.first += [one] if len(found.first) < KEPT else []
        found.entities += len(rows)
        after = rows[-1].id if rows else after
        advance(len(rows))
    return found
