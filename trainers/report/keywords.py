"""What a report says of keywords: how many there are, how long, and what became of them (the
paper's section 5.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cogr.records import SIDES, Dataset, Side
from cogr.snapshots import Snapshot

Snapshots = Mapping[Side, Snapshot]
"""The snapshots of one round."""


@dataclass(frozen=True)
class Vocabulary:
    """The keywords of one side after one round.

    Attributes:
        keywords: how many all entities have together, repeats counted.
        shared: distinct keywords that the other side of the round has too.
    """

    round: int
    side: Side
    entities: int
    keywords: int
    distinct: int
    shared: int


@dataclass(frozen=True)
class Lengths:
    """How long the distinct keywords of both sides together are.

    Attributes:
        words: words in a keyword -> number of such keywords.
    """

    round: int
    words: Mapping[int, int]


@dataclass(frozen=True)
class Bubble:
    """A keyword that both sides came to have, or to have no more.

    Attributes:
        added: against the earlier pair; else it was dropped.
        p: of all pairs of a query and an item that have it, the share that is relevant.
        r: of all relevant items of the queries that have it, the share that has it too.
        entities: queries and items that have it.
    """

    keyword: str
    added: bool
    p: float
    r: float
    entities: int


@dataclass(frozen=True)
class Moved:
    """The keywords of both sides before and after.

    Attributes:
        added, dropped: how many distinct ones.
        bubbles: of these, those that queries with labels and items have, most entities first.
    """

    added: int
    dropped: int
    bubbles: Sequence[Bubble]


def vocabularies(round_: int, pair: Snapshots) -> Iterator[Vocabulary]:
    """Of both sides."""
    counts = {side: _owners_counted(pair[side]) for side in SIDES}
    shared = len(counts["item"].keys() & counts["query"].keys())
    for side, found in counts.items():
        entities = pair[side].manifest.entities
        yield Vocabulary(round_, side, entities, found.total(), len(found), shared)


def lengths(round_: int, pair: Snapshots) -> Lengths:
    """Of the distinct keywords of both sides."""
    distinct = {word for side in SIDES for word in _owners_counted(pair[side])}
    return Lengths(round_, Counter(len(word.split()) for word in distinct))


def _owners_counted(snapshot: Snapshot) -> Counter[str]:
    return Counter(word for row in snapshot.rows() for word in row.keywords)


def moved(before: Snapshots, after: Snapshots, dataset: Dataset) -> Moved:
    """What one pair has and the other has not, and how well each keyword matches by itself.

    Memory: the owners of every keyword of both pairs.
    """
    first, last = (_owners(pair) for pair in (before, after))
    bubbles = [
        bubble
        for added, here, there in ((True, last, first), (False, first, last))
        for word in here.keys() - there.keys()
        if (bubble := _bubble(word, here[word], dataset, added=added)) is not None
    ]
    bubbles.sort(key=lambda one: (-one.entities, one.keyword))
    new, gone = len(last.keys() - first.keys()), len(first.keys() - last.keys())
    return Moved(new, gone, bubbles)


def _owners(pair: Snapshots) -> dict[str, dict[Side, set[str]]]:
    found: dict[str, dict[Side, set[str]]] = {}
    for side in SIDES:
        for row in pair[side].rows():
            for word in row.keywords:
                found.setdefault(word, {"query": set(), "item": set()})[side].add(row.id)
    return found


def _bubble(
    word: str, owners: Mapping[Side, set[str]], dataset: Dataset, *, added: bool
) -> Bubble | None:
    items = owners["item"]
    wanted = [dataset.relevant[id_] for id_ in owners["query"] if dataset.relevant.get(id_)]
    if not wanted or not items:
        return None
    hits = sum(len(items & ids) for ids in wanted)
    return Bubble(
        word,
        added,
        hits / (len(wanted) * len(items)),
        hits / sum(map(len, wanted)),
        len(items) + len(owners["query"]),
    )
