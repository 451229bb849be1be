"""`cogr-index diff`: the changes from one snapshot to another, in keywords, entities and results of
queries.

Reads snapshots and their mirrors; the backend is used only to find the serving snapshot of the
other side.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cogr.differences import Difference, differences
from cogr.keywords import with_self
from cogr.matching.mirror import Mirror
from cogr.snapshots import Row, Snapshot
from indexers.backends.memory import mirror_of

DEPTH = 10
"""Ranks that are compared."""


@dataclass(frozen=True)
class EntityChange:
    """One changed entity: keywords that only the newer set has, and that only the older one had."""

    id: str
    text: str
    gained: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def size(self) -> int:
        """Keywords gained and lost."""
        return len(self.gained) + len(self.lost)


@dataclass(frozen=True)
class QueryChange:
    """A query's results before and after.

    Attributes:
        overlap: average overlap of the two top tens, see `average_overlap`.
        before: items retrieved before.
        after: items retrieved after.
    """

    id: str
    text: str
    overlap: float
    before: int
    after: int


@dataclass(frozen=True)
class Diff:
    """What changed from `before` to `after`.

    Attributes:
        new: entities that only the newer one has.
        gone: entities that only the older one has.
        changed: entities with another text or other keywords.
        other_fields: entities that differ only in extra fields.
        gained: keyword -> how many more entities have it, most first.
        lost: keyword -> how many fewer entities have it, most first.
        entities: the most changed ones.
        compared_queries: queries whose results were compared; 0 where the other side has no
            snapshot.
        mean_overlap: their mean average overlap; None where none was compared.
        queries: those whose results change most.
    """

    before: str
    after: str
    new: int
    gone: int
    changed: int
    gained: Sequence[tuple[str, int]]
    lost: Sequence[tuple[str, int]]
    entities: Sequence[EntityChange]
    other_fields: int = 0
    compared_queries: int = 0
    mean_overlap: float | None = None
    queries: Sequence[QueryChange] = ()

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def diff(
    before: Snapshot, after: Snapshot, other: Snapshot | None, *, top: int = 10, sample: int = 1000
) -> Diff:
    """Compare two snapshots of one side.

    Args:
        other: a snapshot of the other side, to search with (or in); None compares no results, and
            so does one of another normaliser than either of the two.
        top: how many keywords, entities and queries are named.
        sample: queries that are searched, drawn by a fixed seed where there are more.

    Raises:
        SnapshotError: the snapshots are of two sides.
    """
    if other is not None and len({one.manifest.normaliser for one in (before, after, other)}) > 1:
        other = None
    counts, keywords = Counter[str](), Counter[str]()
    most: list[EntityChange] = heapq.nlargest(
        top, _entities(before, after, counts, keywords), key=_size
    )
    queries = list(_queries(before, after, other, sample)) if other is not None else []
    overlaps = [query.overlap for query in queries]
    return Diff(
        before.id,
        after.id,
        counts["new"],
        counts["gone"],
        counts["changed"],
        [(word, count) for word, count in _ordered(keywords, 1) if count > 0][:top],
        [(word, -count) for word, count in _ordered(keywords, -1) if count < 0][:top],
        most,
        counts["other_fields"],
        len(queries),
        sum(overlaps) / len(overlaps) if overlaps else None,
        sorted(
            (query for query in queries if query.overlap < 1),
            key=lambda query: (query.overlap, query.id),
        )[:top],
    )


def _size(change: EntityChange) -> int:
    return change.size


def _ordered(keywords: Counter[str], sign: int) -> list[tuple[str, int]]:
    return sorted(keywords.items(), key=lambda pair: (-sign * pair[1], pair[0]))


def _entities(
    before: Snapshot, after: Snapshot, counts: Counter[str], keywords: Counter[str]
) -> Iterator[EntityChange]:
    """Every differing entity; counts kinds of difference and keywords on the way."""
    for one in differences(before, after):
        counts[_kind(one)] += 1
        if _kind(one) == "other_fields":
            continue
        keywords.update(one.gained)
        keywords.subtract(one.lost)
        text = (one.after or one.before or Row(one.id, "", ())).text
        yield EntityChange(one.id, text, one.gained, one.lost)


def _kind(one: Difference) -> str:
    if one.before is None or one.after is None:
        return "new" if one.before is None else "gone"
    same = (one.before.text, one.before.keywords) == (one.after.text, one.after.keywords)
    return "other_fields" if same else "changed"


def _queries(
    before: Snapshot, after: Snapshot, other: Snapshot, sample: int
) -> Iterator[QueryChange]:
    """The results of queries before and after: the item side changed under them, or their own
    keywords did.
    """
    if before.side == "item":
        mirrors = [mirror_of(snapshot.store, snapshot) for snapshot in (before, after)]
        pairs = [(row, row) for row in other.rows()]
    else:
        mirrors = [mirror_of(other.store, other)] * 2
        old = {row.id: row for row in before.rows()}
        pairs = [(old[row.id], row) for row in after.rows() if row.id in old]
    if len(pairs) > sample:
        pairs = random.Random(0).sample(pairs, sample)
    for was, now in pairs:
        yield _query(mirrors, was, now)


def _query(mirrors: Sequence[Mirror], was: Row, now: Row) -> QueryChange:
    words = [with_self(row.self_keyword, row.keywords) for row in (was, now)]
    rankings = [mirror.search(some, DEPTH) for mirror, some in zip(mirrors, words, strict=True)]
    overlap = average_overlap(rankings[0].ids, rankings[1].ids)
    return QueryChange(now.id, now.text, round(overlap, 6), rankings[0].total, rankings[1].total)


def average_overlap(one: Sequence[str], other: Sequence[str], depth: int = DEPTH) -> float:
    """The mean over depths 1 to `depth` of the share of ids that both tops have (Webber, Moffat and
    Zobel 2010, section 2.3).

    1 for equal rankings, two empty ones included; early ranks weigh most. Rankings shorter than
    `depth` are compared to the end of the longer one.
    """
    deepest = min(depth, max(len(one), len(other)))
    if not deepest:
        return 1.0
    shares = [
        len(set(one[:at]) & set(other[:at])) / max(len(one[:at]), len(other[:at]))
        for at in range(1, deepest + 1)
    ]
    return sum(shares) / deepest
