"""Simulated shoppers: logs of UBI whose relevance is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DAY = 24 * 3600 * 1000
START = 1_780_000_000_000
"""Milliseconds since 1970; before any test runs."""


def write_log(
    folder: Path, seed: int, *, queries: int = 40, items: int = 15, searches: int = 1000
) -> tuple[list[Path], Any]:
    """A log of shoppers as ubi_queries and ubi_events in parquet files, and whether each pair
    (query, item) is relevant: a third of them.

    Position k is looked at with chance 1 / k^0.8; the shop's ranking is better than chance, far
    from right. Every search is another client's, on one of 30 days; the ids of items are `i0`,
    `i1`, ...
    """
    rng = np.random.default_rng(seed)
    relevant = rng.random((queries, items)) < 0.33
    high, low = (rng.uniform(*ends, relevant.shape) for ends in ((0.25, 0.6), (0.02, 0.18)))
    attracts, merit = np.where(relevant, high, low), relevant * 0.5 + rng.normal(0, 1, high.shape)
    asked: list[dict[str, Any]] = []
    did: list[dict[str, Any]] = []
    for query in range(queries):
        # The same order but for a little noise.
        order = np.argsort(-(merit[query] + rng.normal(0, 0.3, (searches, items))), axis=1)
        looked = rng.random(order.shape) < np.arange(1, items + 1) ** -0.8
        clicked = looked & (rng.random(order.shape) < attracts[query][order])
        for search in range(searches):
            id_, time = f"{query}-{search}", START + int(rng.integers(30 * DAY))
            shown = [f"i{item}" for item in order[search]]
            asked.append(
                {
                    "query_id": id_,
                    "client_id": f"c{id_}",
                    "user_query": f"query number {query}",
                    "timestamp": time,
                    "query_response_hit_ids": shown,
                }
            )
            for at in np.flatnonzero(clicked[search]):
                did.append(event("click", id_, shown[at], at + 1, time + 1000 * int(at + 1)))
    paths = [folder / "ubi_queries.parquet", folder / "ubi_events.parquet"]
    for path, rows in zip(paths, (asked, did), strict=True):
        pq.write_table(pa.Table.from_pylist(rows), path)
    return paths, relevant


def event(action: str, query: str, item: str, ordinal: int, time: int) -> dict[str, Any]:
    """A record of ubi_events."""
    return {
        "action_name": action,
        "query_id": query,
        "client_id": f"c{query}",
        "timestamp": time,
        "event_attributes": {
            "object": {"object_id": item, "object_id_field": "sku"},
            "position": {"ordinal": int(ordinal)},
        },
    }
