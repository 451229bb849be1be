"""Push, verify and warm up a snapshot, before it serves. The backend does each step; this module
says what it is asked.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from cogr.errors import CheckFailedError, SnapshotError
from cogr.records import Advance, Say, Side
from cogr.snapshots import Row, Snapshot, open_snapshot
from cogr.store import Store
from indexers.backends import Backend, Keywords, Pushed, Verified, side_of
from indexers.backends.memory import mirror_of
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
    verified = verify(backend, store, snapshot, queries)
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


def verify(
    backend: Backend,
    store: Store,
    snapshot: Snapshot,
    queries: int = VERIFY_QUERIES,
    *,
    every: bool = False,
    advance: Advance = lambda _: None,
) -> Verified:
    """Compare a pushed snapshot with its files, by a sample or `every` document, and live results.
    Raises as `Backend.verify`.
    """
    outcomes = prometheus.VERIFICATIONS
    with stage("verify", snapshot.side):
        try:
            asked = probes(backend, store, snapshot, queries)
            verified = backend.verify(snapshot, asked, every=every, advance=advance)
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
