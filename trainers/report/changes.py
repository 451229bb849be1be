"""What a side's keywords gained and lost between two snapshots: counts, the commonest ones, example
entities.

Pure reading of snapshots; how it is shown is the report's and the demo's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cogr.records import Side
from cogr.snapshots import Snapshot

EXAMPLES: Mapping[Side, int] = {"item": 3, "query": 2}
"""How many entities of each side are shown as examples."""

_EMPTY = ()


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
class Difference:
    """A whole side before and after.

    Attributes:
        gained, lost: keyword -> number of entities that gained or lost it.
        changed: entities whose set is another one, in id order.
        entities: how many there are.
    """

    gained: Counter[str]
    lost: Counter[str]
    changed: Sequence[Changed]
    entities: int


def difference(before: Snapshot, after: Snapshot) -> Difference:
    """Compare two snapshots of one side. An entity that only the later one has gained everything.

    Memory: both snapshots' rows.
    """
    gained: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    changed: list[Changed] = []
    old = before.by_id
    for row in after.rows():
        had = old[row.id].keywords if row.id in old else _EMPTY
        one = _changed(after.side, row.id, row.text, had, row.keywords)
        gained.update(one.gained)
        lost.update(one.lost)
        if one.gained or one.lost:
            changed.append(one)
    return Difference(gained, lost, changed, after.manifest.entities)


def _changed(
    side: Side, id_: str, text: str, had: Collection[str], has: Collection[str]
) -> Changed:
    return Changed(
        side,
        id_,
        text,
        gained=[word for word in has if word not in had],
        lost=[word for word in had if word not in has],
        kept=[word for word in has if word in had],
    )


def examples(items: Difference, queries: Difference) -> list[Changed]:
    """Five entities to look at, three items and two queries, evenly from those that changed: not
    chosen by their result.
    """
    both: tuple[tuple[Side, Difference], ...] = (("item", items), ("query", queries))
    return [one for side, found in both for one in evenly(found.changed, EXAMPLES[side])]


def evenly(found: Sequence[Changed], count: int) -> list[Changed]:
    """So many of a sequence, in its order, from the middles of equally long stretches."""
    if len(found) <= count:
        return list(found)
    return [found[(2 * at + 1) * len(found) // (2 * count)] for at in range(count)]
