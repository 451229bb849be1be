"""What one side's keywords gained and lost between two snapshots: counts, and example entities.

How it is shown is the report's and the demo's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cogr.differences import differences
from cogr.records import Side
from cogr.snapshots import Snapshot

EXAMPLES: Mapping[Side, int] = {"item": 3, "query": 2}
"""How many entities of each side are shown as examples."""


@dataclass(frozen=True)
class Changed:
    """One entity before and after.

    Attributes:
        gained, lost, kept: keywords, in the order in which the set has them.
    """

    side: Side
    id: str
    text: str
    gained: Sequence[str]
    lost: Sequence[str]
    kept: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


@dataclass(frozen=True)
class Changes:
    """A whole side before and after.

    Attributes:
        gained, lost: keyword -> number of entities that gained or lost it.
        changed: entities with other keywords, in id order.
        entities: how many the later snapshot has.
    """

    gained: Counter[str]
    lost: Counter[str]
    changed: Sequence[Changed]
    entities: int


def changes(before: Snapshot, after: Snapshot) -> Changes:
    """Compare two snapshots of one side. An entity that only the later one has gained everything;
    one that only the earlier one has does not count.

    Memory: the changed entities.

    Raises:
        SnapshotError: one snapshot is of items and the other of queries.
    """
    changed = [
        Changed(after.side, one.id, one.after.text, one.gained, one.lost, one.kept)
        for one in differences(before, after)
        if one.after is not None and (one.gained or one.lost)
    ]
    return Changes(
        Counter(word for one in changed for word in one.gained),
        Counter(word for one in changed for word in one.lost),
        changed,
        after.manifest.entities,
    )


def examples(items: Changes, queries: Changes) -> list[Changed]:
    """Five entities to look at, three items and two queries, evenly from those that changed: not
    chosen by their result.
    """
    both: tuple[tuple[Side, Changes], ...] = (("item", items), ("query", queries))
    return [one for side, found in both for one in evenly(found.changed, EXAMPLES[side])]


def evenly(found: Sequence[Changed], count: int) -> list[Changed]:
    """So many of a sequence, in its order, from the middles of equally long stretches."""
    if len(found) <= count:
        return list(found)
    return [found[(2 * at + 1) * len(found) // (2 * count)] for at in range(count)]
