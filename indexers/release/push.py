"""From a snapshot to what serves: push, verify, switch.

The steps are the backend's; their order and their gates are here.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cogr.errors import CheckFailedError, SnapshotError
from cogr.progress import Say
from cogr.records import SIDES, Side
from cogr.snapshots import Manifest, Row, Snapshot, check_pair, open_snapshot, read_manifest
from cogr.store import Store
from indexers.backends.memory import mirror_of
from indexers.backends.protocol import Backend, Keywords, Pushed, Verified, side_of
from indexers.telemetry import prometheus
from indexers.telemetry.traces import stage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """What serves now and what served before, by side."""

    serving: Mapping[Side, str]
    before: Mapping[Side, str | None]


def other_side(side: Side) -> Side:
    """item for query, query for item."""
    return "item" if side == "query" else "query"


def probes(
    backend: Backend,
    store: Store,
    snapshot: Snapshot,
    count: int,
    seed: int = 0,
    queries: str | None = None,
) -> Sequence[Keywords]:
    """Keyword lists to compare live results with the mirror on.

    For items, the weighted keyword sets of a query snapshot, where this store has it (another one
    may have published); else keywords drawn from the snapshot itself.

    Args:
        queries: the query snapshot; the one that serves now by default.
    """
    draw = random.Random(seed)
    asking = queries or backend.serving().get(other_side(snapshot.side))
    if asking and snapshot.side == "item" and asking in store.list("snapshots"):
        try:
            return [row.weighted for row in _drawn(store, asking, count, draw)]
        except SnapshotError as error:
            log.warning("Its results are compared on keywords of its own: %s", error)
    words = mirror_of(store, snapshot).words
    return (
        [draw.sample(words, min(len(words), draw.randint(1, 15))) for _ in range(count)]
        if words
        else []
    )


def _drawn(store: Store, snapshot_id: str, count: int, draw: random.Random) -> list[Row]:
    snapshot = open_snapshot(store, snapshot_id)
    entities = snapshot.manifest.entities
    chosen = draw.sample(range(entities), min(count, entities))
    return list(snapshot.rows(chosen))


VERIFY_QUERIES = 100
"""Live queries compared with the mirror after a push: a wrong score would show in any of them."""


def push_and_verify(
    backend: Backend,
    store: Store,
    snapshot: Snapshot,
    queries: int = VERIFY_QUERIES,
    say: Say = lambda _: None,
) -> tuple[Pushed, Verified]:
    """Write the snapshot beside what serves and compare it there. Serves nothing yet.

    Raises:
        CheckFailedError: what was pushed differs from the snapshot.
        ServiceError: the service went away; the same call goes on.
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
    with stage("push", snapshot.side) as step:
        pushed = backend.push(snapshot)
        rate = round(pushed.written / pushed.seconds, 1) if pushed.seconds else 0.0
        step.add(
            index=pushed.index,
            documents=pushed.documents,
            written=pushed.written,
            documents_per_second=rate,
        )
    prometheus.PUSHED.labels(snapshot.side).inc(pushed.written)
    prometheus.PUSH_RATE.labels(snapshot.side).set(rate)
    return pushed


def _verify(backend: Backend, store: Store, snapshot: Snapshot, queries: int) -> Verified:
    outcomes = prometheus.VERIFICATIONS
    with stage("verify", snapshot.side) as step:
        try:
            verified = backend.verify(snapshot, probes(backend, store, snapshot, queries))
        except CheckFailedError:
            outcomes.labels(snapshot.side, "different").inc()
            raise
        step.add(documents=verified.documents, sampled=verified.sampled, queries=verified.queries)
    outcomes.labels(snapshot.side, "equal").inc()
    return verified


def warm_up(backend: Backend, store: Store, ids: Sequence[str], count: int) -> None:
    """Ask the snapshots what their readers will ask, so that the first of them don't wait for cold
    files.

    Items are searched for keyword sets of queries, those of a query snapshot among `ids` first of
    all; on the query side texts are looked up. It asks the indexes by name, before any alias names
    them.

    Raises:
        ServiceError: a search failed; nothing is switched yet.
    """
    queries = next((id_ for id_ in ids if side_of(id_) == "query"), None)
    for snapshot in (open_snapshot(store, id_) for id_ in ids) if count else ():
        with stage("warm_up", snapshot.side, snapshot=snapshot.id):
            if snapshot.side == "item":
                for words in probes(backend, store, snapshot, count, queries=queries):
                    backend.search(words, snapshot=snapshot.id)
            else:
                for row in _drawn(store, snapshot.id, count, random.Random(0)):
                    backend.lookup(row.text, snapshot=snapshot.id)


def publish(backend: Backend, store: Store, ids: Sequence[str]) -> Published:
    """Switch to the given snapshots, at most one a side, by one atomic call.

    Commands go live by `indexers.release`, which lets one switch at a time and remembers it.

    Raises:
        SnapshotError: unknown, two of one side, or of another normaliser than what serves on the
            other side.
        ServiceError: the cluster refuses; what serves stays.
    """
    manifests = _manifests(store, ids)
    pair = dict(manifests)
    for side, serving in backend.serving().items():
        if side not in pair and serving:
            # The backend itself checks a pair of which this store has one side alone.
            with suppress(SnapshotError):
                pair[side] = read_manifest(store, serving)
    if len(pair) == len(SIDES):
        check_pair(pair["item"], pair["query"])
    before = _switch(backend, manifests)
    return Published({side: manifest.id for side, manifest in manifests.items()}, before)


def sides_of(store: Store, ids: Sequence[str]) -> dict[Side, str]:
    """The snapshots by side. Raises SnapshotError: unknown, or two of one side."""
    return {side: manifest.id for side, manifest in _manifests(store, ids).items()}


def _manifests(store: Store, ids: Sequence[str]) -> dict[Side, Manifest]:
    manifests: dict[Side, Manifest] = {}
    for id_ in ids:
        manifest = read_manifest(store, id_)
        if manifest.side in manifests:
            raise SnapshotError(
                f"{manifests[manifest.side].id} and {id_} are both of the side {manifest.side}; "
                "name one a side."
            )
        manifests[manifest.side] = manifest
    return manifests


def _switch(backend: Backend, manifests: Mapping[Side, Manifest]) -> Mapping[Side, str | None]:
    """The one atomic call, counted."""
    outcome = "failed"
    try:
        with stage(
            "publish", "pair" if len(manifests) > 1 else next(iter(manifests), "pair")
        ) as step:
            before = backend.publish({side: manifest.id for side, manifest in manifests.items()})
            step.add(**{side: manifest.id for side, manifest in manifests.items()})
        outcome = "switched"
    finally:
        prometheus.PUBLISHES.labels(outcome).inc()
    return before
