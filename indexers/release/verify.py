"""Every document that a backend holds against its snapshot: streaming, resumable, and counted to
the end.

The quick verification (`Backend.verify`: counts, a sample, live results) is what lets a snapshot
serve; this one looks at everything. How far it came lies in the store (`verifications/`), so that
an interrupted one goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cogr.progress import Advance
from cogr.snapshots import Row, Snapshot
from cogr.store import Store
from indexers.backends.protocol import Backend, Mismatch

ROWS = 1_000
"""Most rows of one comparison."""
CHARACTERS = 2_000_000
"""A comparison ends early after so many characters of text."""
KEPT = 100
"""Differences that are kept, and can be shown; all of them are counted."""
SAVE_SECONDS = 5.0
"""Longest time between two notes of how far it came."""
_FOLDER = "verifications"


@dataclass(frozen=True)
class Compared:
    """How far a comparison came, and what it found.

    Attributes:
        identity: what was compared (`Backend.identity`).
        after: the last id that was compared.
        entities: rows that were compared.
        resumed: rows of them that an earlier, interrupted call had compared.
        first: the first KEPT differences.
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
        """All of them."""
        return self.missing + self.extra + self.different

    def with_piece(self, rows: list[Row], found: list[Mismatch]) -> Compared:
        """After one more piece."""
        counts = {
            kind: sum(one.kind == kind for one in found)
            for kind in ("missing", "extra", "different")
        }
        return replace(
            self,
            after=rows[-1].id if rows else self.after,
            entities=self.entities + len(rows),
            first=(*self.first, *found)[:KEPT],
            **{kind: getattr(self, kind) + count for kind, count in counts.items()},
        )

    def as_dict(self, show: int = KEPT) -> dict[str, Any]:
        """For --json."""
        shown = {
            "first": [asdict(one) for one in self.first[:show]],
            "differences": self.differences,
        }
        return {
            name: value for name, value in asdict(self).items() if name not in ("after", "identity")
        } | shown


_COMPARED = TypeAdapter(Compared)


def compare_all(
    backend: Backend, store: Store, snapshot: Snapshot, advance: Advance = lambda _: None
) -> Compared:
    """Compare every document; an interrupted comparison of the same push goes on.

    Memory: one batch of rows of the snapshot and one piece of documents.

    Args:
        advance: called with the number of rows compared since the last call.

    Raises:
        SnapshotError: it is not pushed, or half-written.
        ServiceError: the backend went away; the same call goes on.
    """
    path = f"{_FOLDER}/{backend.catalogue}-{snapshot.id}.json"
    found = _resumed(store, path, Compared(snapshot.id, backend.identity(snapshot.id)))
    advance(found.entities)
    saved = time.monotonic()
    try:
        for rows, last in _pieces(snapshot, found.after):
            found = found.with_piece(
                rows, list(backend.compare(snapshot, rows, found.after, last=last))
            )
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
    """What an interrupted comparison of the same push noted; else the beginning."""
    try:
        noted = _COMPARED.validate_json(store.read(path))
    except (OSError, ValidationError):
        return new  # There is none, or it is damaged.
    same = (noted.snapshot, noted.identity) == (new.snapshot, new.identity)
    return replace(noted, resumed=noted.entities) if same else new


def _pieces(snapshot: Snapshot, after: str) -> Iterator[tuple[list[Row], bool]]:
    """Rows behind an id in pieces of bounded size, and whether a piece is the last; an empty last
    one where none are left.
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
