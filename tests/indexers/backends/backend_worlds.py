"""Small snapshots for the tests of the backends."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

from cogr.snapshots import Row, Snapshot, rounded
from indexers.backends import Backend

SHOP = [
    Row("a-1", "Velvet Sofa", ("velvet sofa", "sofa", "couch", "mid-century")),
    Row("a-2", "Oak table", ("table", "oak", "dining table")),
    Row("a-10", "!!!", ()),
    Row("b/ü?#", "İstanbul lamp", ("lamp", "ışık")),
    Row(
        "c",
        "沙发",
        ("sofa", "沙发床", 'quo"ted \\ word', "weight(keywords:sofa in 3) [x], result of:"),
    ),
    Row("d", "x" * 1_000_000, ("long text",)),
    Row("e", "", ("couch", "sofa")),
    Row("f", "sofa", ("couch",)),
]
SHOPPERS = [
    Row(
        "q1",
        "Mid-century sofa",
        ("velvet sofa", "mid-century", "couch"),
        weights=(2.5, 0.1, 1.0, 1000.0),
        confidence=0.731,
    ),
    Row("q2", "lamp", ("lamp", "light"), confidence=0.0),
    Row("q3", "MID-CENTURY sofa", ("other",)),
    Row("q4", "?", ("nothing left",)),
]


def publish(backend: Backend, *snapshots: Snapshot, probes: Sequence[Sequence[str]] = ()) -> None:
    """Push and verify snapshots, and let them serve by one switch."""
    for snapshot in snapshots:
        backend.push(snapshot)
        backend.verify(snapshot, probes)
    backend.publish({snapshot.side: snapshot.id for snapshot in snapshots})


def priced(rows: Sequence[Row]) -> list[Row]:
    """The rows with fields: a price, a brand, and whether there is one in stock."""
    return [
        replace(
            row,
            fields_json=json.dumps(
                {"brand": "ABC"[n % 3], "in_stock": n % 2 == 0, "price": 99.5 + 100 * n}
            ),
        )
        for n, row in enumerate(rows)
    ]


def random_world(items: int) -> list[Row]:
    """Items with sets of 0 to 41 keywords, every hundredth of 200, so that stored lengths are
    rounded.
    """
    draw = random.Random(0)
    vocabulary = [f"keyword {number}" for number in range(max(400, items // 5))]
    rows = []
    for number in range(items):
        size = 200 if number % 100 == 7 else draw.randint(0, 41)
        own = draw.choice([f"title {number}", draw.choice(vocabulary), "--"])
        # Squared: some keywords are in hundreds of items, some in one.
        drawn = (vocabulary[int(len(vocabulary) * draw.random() ** 2)] for _ in range(4 * size))
        rows.append(Row(f"item {number}", own, tuple(dict.fromkeys(drawn))[:size]))
    return rows


def weighted(keywords: Sequence[str], seed: int = 3) -> dict[str, float]:
    """The keywords with weights of four digits from 0.01 to 1,000, every fifth of 1."""
    draw = random.Random(f"{seed} {keywords}")
    return {
        keyword: 1.0 if draw.random() < 0.2 else rounded(10 ** draw.uniform(-2, 3))
        for keyword in keywords
    }


def random_queries(rows: Sequence[Row], count: int, most: int, seed: int = 1) -> list[list[str]]:
    """Keyword lists of 1 to `most` clauses; one in ten clauses matches nothing."""
    draw = random.Random(seed)
    vocabulary = sorted(
        {word for row in rows for word in (row.self_keyword, *row.keywords) if word}
    )
    return [
        [
            "in no item" if draw.random() < 0.1 else draw.choice(vocabulary)
            for _ in range(draw.randint(1, most))
        ]
        for _ in range(count)
    ]
