"""The one protocol of a search backend, and what every backend checks in the same way. `memory` is
the mirror itself; `opensearch` is a cluster.

Every backend gives the same retrieved sets, the same scores (bit for bit) and the same order; only
OpenSearch 2.x multiplies every score by (k1 + 1). Keywords handed in are normalised already;
repeated ones count once, and a mapping gives each its weight. What backends raise: SnapshotError
for what is not pushed or does not serve, CheckFailedError for what differs, ServiceError for a
cluster that is away or refuses.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cogr.errors import SnapshotError
from cogr.records import FieldValue, Side
from cogr.snapshots import Row, Snapshot

Keywords = Sequence[str] | Mapping[str, float]
"""What a search takes: normalised keywords, or keyword -> weight, above 0."""


def boosts_of(keywords: Keywords) -> dict[str, float]:
    """Keyword -> weight, each once, in order; 1 where none is given."""
    if isinstance(keywords, Mapping):
        return dict(keywords)
    return dict.fromkeys(keywords, 1.0)


@dataclass(frozen=True, slots=True)
class Words:
    """A text search over the items' texts, beside the keywords or instead of them.

    Attributes:
        text: what the shopper typed.
        boost: how much its score counts beside the keywords'.
        alone: the keywords find nothing, unless the texts can't be searched.
    """

    text: str
    boost: float = 1.0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """One retrieved entity. `score` is a float32 value; `matched` maps each matching keyword to its
    part of the score, and `words` is the text search's part.

    `fields` are an item's extra fields, as the snapshot has them.
    """

    id: str
    score: float
    text: str = ""
    matched: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, FieldValue] = field(default_factory=dict)
    words: float = 0.0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`total` is the size of the whole retrieved set; `hits` are its best, score descending, then
    id. `textless` says why the texts could not be searched, so that the keywords answered alone.
    """

    total: int
    hits: Sequence[Hit]
    snapshot: str
    textless: str = ""


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did: the index it wrote, documents in it, documents written by this call,
    seconds.
    """

    index: str
    documents: int
    written: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification compared.

    It raises CheckFailedError instead of returning when anything differs.
    """

    index: str
    documents: int
    sampled: int
    queries: int
    scores: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One entity that a backend does not hold as the snapshot says.

    Attributes:
        kind: `missing` in the backend, `extra` there, or `different`.
        field: the first field that differs, "" unless the kind is `different`.
        found: what the backend has there, spelled; shortened.
        expected: what the snapshot says.
    """

    id: str
    kind: Literal["missing", "extra", "different"]
    field: str = ""
    found: str = ""
    expected: str = ""


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
    """Where snapshots are pushed to and searched.

    Attributes:
        name: the setting `backend` that chooses it.
        catalogue: names what it serves among all that snapshots of one store are published to, in
            names of files.
    """

    name: str
    catalogue: str

    def push(self, snapshot: Snapshot) -> Pushed:
        """Write the snapshot beside what serves. Idempotent; goes on after an interruption.

        Serves nothing yet.
        """
        ...

    def verify(self, snapshot: Snapshot, queries: Iterable[Keywords]) -> Verified:
        """Compare what was pushed with the snapshot: count, a sample of documents, live results for
        keyword lists, weighted or not.

        Only what passed its last verification can be published. Raises CheckFailedError with the
        first difference.
        """
        ...

    def compare(
        self, snapshot: Snapshot, rows: Sequence[Row], after: str, *, last: bool
    ) -> Sequence[Mismatch]:
        """What differs between rows of a snapshot and what is held of it from `after` on, up to the
        last of these rows.

        Args:
            rows: some rows in a row, in id order.
            after: the id before the first of them; "" at the beginning.
            last: these are the snapshot's last rows: what is held behind them is extra.

        Raises:
            SnapshotError: it is not pushed, or half-written.
        """
        ...

    def identity(self, snapshot_id: str) -> str:
        """Names what is held of a snapshot: if it is removed and pushed again, the name is another.

        Raises SnapshotError.
        """
        ...

    def distrust(self, snapshot_id: str) -> None:
        """Take the mark of a passed verification back: it is not published before it
        passes again.
        """
        ...

    def publish(self, snapshots: Mapping[Side, str]) -> Mapping[Side, str | None]:
        """Switch what serves, for all given sides by one atomic call; returns what served before.
        Rollback is the same.

        Raises:
            SnapshotError: not pushed, half-written, of the wrong side, or of another normaliser
                than the other side.
            CheckFailedError: not verified.
        """
        ...

    def serving(self) -> Mapping[Side, str | None]:
        """The snapshot that serves each side, or None."""
        ...

    def list(self) -> Sequence[Listed]:
        """Every pushed snapshot, by side and id."""
        ...

    def search(
        self,
        keywords: Keywords,
        *,
        side: Side = "item",
        size: int = 10,
        snapshot: str | None = None,
        explain: bool = False,
        words: Words | None = None,
    ) -> SearchResult:
        """The best entities whose keywords ∪ {self} meet `keywords`, with their texts.

        Args:
            snapshot: the one to search; None means the one that serves.
            explain: fill in `Hit.matched` and `Hit.words`.
            words: searched in the items' texts too. Scores are BM25's, and those of two backends
                differ: their analysers do.
        """
        ...

    def retrieved(
        self, keywords: Keywords, *, side: Side = "item", snapshot: str | None = None
    ) -> SearchResult:
        """The whole retrieved set with scores, without texts; paged where the backend pages."""
        ...

    def lookup(self, text: str, *, snapshot: str | None = None) -> Row | None:
        """The row of a query text, with its precomputed keywords, their weights and the confidence
        in them; None when there is none.

        The text is normalised here. Of several queries that are normalised to one text, the first
        by id answers.
        """
        ...

    def delete(self, snapshot: str) -> None:
        """Remove a pushed snapshot. Refused while it serves."""
        ...

    def sweep(self, *, dry_run: bool) -> Sequence[str]:
        """Remove what pushes that died have left behind; its names.

        What may belong to a push under way stays.
        """
        ...

    def close(self) -> None:
        """Let go of connections and files."""
        ...


MOST_TEXT = 1024
"""Characters of a text that are searched: more words would be more clauses than a cluster takes."""
SAMPLE = 500
"""Entities that a verification compares field by field."""

_SPELLED = 200


def side_of(snapshot_id: str) -> Side:
    """The side that a snapshot id begins with."""
    return "query" if snapshot_id.startswith("query-") else "item"


def check_side(snapshot_id: str, side: Side) -> None:
    """Refuse a snapshot of the other side. Raises SnapshotError."""
    if not snapshot_id.startswith(f"{side}-"):
        raise SnapshotError(
            f"Snapshot {snapshot_id} is no snapshot of the side {side}; name one that is."
        )


def sample(snapshot: Snapshot) -> frozenset[int]:
    """Row numbers of a sample that is always the same for one snapshot."""
    entities = snapshot.manifest.entities
    return frozenset(random.Random(snapshot.id).sample(range(entities), min(SAMPLE, entities)))


def mismatches(
    expected: Mapping[str, Mapping[str, Any]], found: Mapping[str, Mapping[str, Any]]
) -> Iterator[Mismatch]:
    """Compare documents by id, in id order."""
    for id_ in sorted(expected.keys() | found.keys()):
        if id_ not in found:
            yield Mismatch(id_, "missing")
        elif id_ not in expected:
            yield Mismatch(id_, "extra")
        elif expected[id_] != found[id_]:
            yield _different(id_, expected[id_], found[id_])


def _different(id_: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> Mismatch:
    names = sorted(expected.keys() | found.keys())
    name = next(name for name in names if expected.get(name) != found.get(name))
    return Mismatch(id_, "different", name, _spelled(found.get(name)), _spelled(expected.get(name)))


def _spelled(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SPELLED else f"{text[:_SPELLED]}..."
