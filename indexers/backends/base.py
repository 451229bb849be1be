"""The one protocol of a search backend. `memory` is the mirror itself; `opensearch` is a cluster.

Every backend gives the same retrieved sets, the same scores (bit for bit) and the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cogr.records import Side
from cogr.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class Hit:
    """One retrieved entity. `score` is a float32 value; `matched` maps each matching keyword to its part of the score."""

    id: str
    score: float
    text: str = ""
    matched: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`total` is the size of the whole retrieved set; `hits` are its best, score descending, then id."""

    total: int
    hits: Sequence[Hit]
    snapshot: str


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did: the index it wrote, documents in it, documents written by this call, seconds."""

    index: str
    documents: int
    written: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification compared. It raises CheckFailedError instead of returning when anything differs."""

    index: str
    documents: int
    sampled: int
    queries: int
    scores: int


@dataclass(frozen=True, slots=True)
class Listed:
    """One pushed snapshot: its id, side, documents, bytes (or None), whether it serves now."""

    snapshot: str
    side: Side
    documents: int
    bytes: int | None
    serving: bool
    complete: bool


class Backend(Protocol):
    """Where snapshots are pushed to and searched."""

    name: str

    def push(self, snapshot: Snapshot) -> Pushed:
        """Write the snapshot beside what serves. Idempotent; goes on after an interruption. Serves nothing yet."""
        ...

    def verify(self, snapshot: Snapshot, queries: Iterable[Sequence[str]]) -> Verified:
        """Compare what was pushed with the snapshot: count, a sample of documents, live results for keyword lists."""
        ...

    def publish(self, snapshots: Mapping[Side, str]) -> Mapping[Side, str | None]:
        """Switch what serves, for all given sides by one atomic call; returns what served before."""
        ...

    def serving(self) -> Mapping[Side, str | None]: ...

    def list(self) -> Sequence[Listed]: ...

    def search(
        self,
        keywords: Sequence[str],
        *,
        side: Side = "item",
        size: int = 10,
        snapshot: str | None = None,
        explain: bool = False,
    ) -> SearchResult:
        """Entities whose keywords ∪ {self} meet `keywords`. `snapshot` None means the one that serves."""
        ...

    def retrieved(self, keywords: Sequence[str], *, side: Side = "item", snapshot: str | None = None) -> SearchResult:
        """The whole retrieved set with scores, paged where the backend pages."""
        ...

    def lookup(self, text: str, *, snapshot: str | None = None) -> Sequence[str] | None:
        """Precomputed keywords of a query text (normalised), or None when the query side does not hold it."""
        ...

    def delete(self, snapshot: str) -> None:
        """Remove a pushed snapshot. Refused while it serves."""
        ...

    def close(self) -> None: ...
