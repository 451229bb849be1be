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
from dataclasses import dataclass

from cogr.differences import differences
from cogr.keywords import with_self
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


@dataclass(frozen=True)
class QueryChange:
    """A query's results: how many were retrieved before and after, and the `average_overlap` of the
    two top tens.
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
        new, gone: entities that only the newer one, or only the older one has.
        changed: entities with another text or other keywords.
        other_fields: entities that differ only in extra fields.
        gained, lost: keyword -> how many more, or fewer, entities have it, most first.
        entities: the most changed ones.
        compared_queries: queries whose results were compared; 0 without a snapshot of the other
            side.
        mean_overlap: their mean average overlap.
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


def diff(
    before: Snapshot, after: Snapshot, other: Snapshot | None, *, top: int = 10, sample: int = 1000
) -> Diff:
    """Compare two snapshots of one side. Raises SnapshotError."""
    counts, keywords = Counter[str](), Counter[str]()
    found = _entities(before, after, counts, keywords)
    most = heapq.nlargest(top, found, key=lambda one: len(one.gained) + len(one.lost))
    queries = list(_queries(before, after, other, sample)) if other is not None else []
    overlaps = [query.overlap for query in queries]
    return Diff(
        before.id,
        after.id,
        counts["new"],
        counts["gone"],
        counts["changed"],
        _most(keywords, top),
        _most(Counter({word: -count for word, count in keywords.items()}), top),
        most,
        counts["other_fields"],
        len(queries),
        sum(overlaps) / len(overlaps) if overlaps else None,
        sorted((one for one in queries if one.overlap < 1), key=lambda one: (one.overlap, one.id))[
            :top
        ],
    )


def _most(keywords: Counter[str], top: int) -> list[tuple[str, int]]:
    return sorted((+keywords).items(), key=lambda pair: (-pair[1], pair[0]))[:top]


def _entities(
    before: Snapshot, after: Snapshot, counts: Counter[str], keywords: Counter[str]
) -> Iterator[EntityChange]:
    for one in differences(before, after):
        if one.before is None or one.after is None:
            counts["new" if one.before is None else "gone"] += 1
        elif (one.before.text, one.before.keywords) == (one.after.text, one.after.keywords):
            counts["other_fields"] += 1
            continue
        else:
            counts["changed"] += 1
        keywords.update(one.gained)
        keywords.subtract(one.lost)
        text = (one.after or one.before or Row(one.id, "", ())).text
        yield EntityChange(one.id, text, one.gained, one.lost)


def _queries(
    before: Snapshot, after: Snapshot, other: Snapshot, sample: int
) -> Iterator[QueryChange]:
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
        first, second = (
            mirror.search(with_self(row.self_keyword, row.keywords), DEPTH)
            for mirror, row in zip(mirrors, (was, now), strict=True)
        )
        overlap = round(average_overlap(first.ids, second.ids), 6)
        yield QueryChange(now.id, now.text, overlap, first.total, second.total)


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
