"""Push, verify and warm up a snapshot, before it serves. The backend does each step; this module
says what it is asked.

A snapshot may serve after the quick verification (`Backend.verify`: counts, a sample, live
results). `compare_all` compares every document of a backend with its snapshot. It notes its
progress in the store (`verifications/`), so that an interrupted comparison goes on.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cogr.errors import CheckFailedError, SnapshotError
from cogr.records import Advance, Say, Side
from cogr.snapshots import Row, Snapshot, open_snapshot
from cogr.store import Store
from indexers.backends import Backend, Keywords, Mismatch, Pushed, Verified, side_of
from indexers.backends.memory import mirror_of
from indexers.telemetry import prometheus
from indexers.telemetry.traces import stage

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
    with stage("push", snapshot.side) as step:
        pushed = backend.push(snapshot)
        rate = round(pushed.written / pushed.seconds, 1) if pushed.seconds else 0.0
        counts = {"documents": pushed.documents, "written": pushed.written}
        step.add(index=pushed.index, **counts, documents_per_second=rate)
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
    """Send typical searches to the snapshots before they serve, so that the first users don't wait
    for cold files.

    The item index is searched with keyword sets of queries, those of a query snapshot among `ids`
    first; in the query index texts are looked up. The indexes are addressed by name, since no alias
    names them yet. Raises ServiceError.
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


ROWS = 1_000
"""Most rows of one comparison."""
CHARACTERS = 2_000_000
"""Most characters of text of one comparison."""
KEPT = 100
"""Most differences that are kept and can be shown; all are counted."""
SAVE_SECONDS = 5.0
"""Longest time between two notes of the progress, in seconds."""
_FOLDER = "verifications"


@dataclass(frozen=True)
class Compared:
    """The progress of a comparison up to the id `after`, and its findings, of which the first KEPT
    are in `first`. An earlier, interrupted call had compared `resumed` of the entities.
    """

    snapshot: str
    identity: str
    after: str = ""
    entities: int = 0
    resumed: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    first: tuple[Mismatch, ...] = field(default=())

    @property
    def differences(self) -> int:
        """How many differences there are."""
        return self.missing + self.extra + self.different

    def with_piece(self, rows: Sequence[Row], found: Sequence[Mismatch]) -> Compared:
        """After one more piece."""
        kinds = Counter(one.kind for one in found)
        return replace(
            self,
            after=rows[-1].id if rows else self.after,
            entities=self.entities + len(rows),
            first=(*self.first, *found)[:KEPT],
            missing=self.missing + kinds["missing"],
            extra=self.extra + kinds["extra"],
            different=self.different + kinds["different"],
        )

    def as_dict(self, show: int = KEPT) -> dict[str, Any]:
        """For --json."""
        made = asdict(replace(self, first=self.first[:show])) | {"differences": self.differences}
        return {name: one for name, one in made.items() if name not in ("after", "identity")}


_COMPARED = TypeAdapter(Compared)


def compare_all(
    backend: Backend, store: Store, snapshot: Snapshot, advance: Advance = lambda _: None
) -> Compared:
    """Compare every document; an interrupted comparison of the same push goes on.

    Memory: one batch of rows of the snapshot and one piece of documents. Raises SnapshotError where
    it is not pushed, or only half, and ServiceError.
    """
    path = f"{_FOLDER}/{backend.catalogue}-{snapshot.id}.json"
    found = _resumed(store, path, Compared(snapshot.id, backend.identity(snapshot.id)))
    advance(found.entities)
    saved = time.monotonic()
    try:
        for rows, last in _pieces(snapshot, found.after):
            differences = backend.compare(snapshot, rows, found.after, last=last)
            found = found.with_piece(rows, differences)
            advance(len(rows))
            if time.monotonic() - saved > SAVE_SECONDS:
                store.write_json(path, asdict(found))
                saved = time.monotonic()
    except BaseException:
        store.write_json(path, asdict(found))
        raise
    store.remove(path)
    return found


def _resumed(store: Store, path: str, new: Compared) -> Compared:
    """The progress of an interrupted comparison of the same push; else the start."""
    try:
        noted = _COMPARED.validate_json(store.read(path))
    except (OSError, ValidationError):
        return new  # There is none, or it is damaged.
    same = (noted.snapshot, noted.identity) == (new.snapshot, new.identity)
    return replace(noted, resumed=noted.entities) if same else new


def _pieces(snapshot: Snapshot, after: str) -> Iterator[tuple[list[Row], bool]]:
    """Rows after an id in pieces of bounded size, and whether a piece is the last; a single empty
    piece where no row is left.
    """
    piece: list[Row] = []
    characters = 0
    for row in snapshot.rows():
        if row.id <= after:
            continue
        if len(piece) == ROWS or (piece and characters > CHARACTERS):
            yield piece, False
            piece, characters = [], 0
        piece.append(row)
        characters += len(row.text)
    yield piece, True
