"""Which entities of a snapshot have no keywords: what matches them is their own text alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pyarrow.compute as pc

from cogr.snapshots import Snapshot
from indexers.build.plan import read_set_aside

NAMED = 10
"""Those that a report names."""


def empty_sets(snapshot: Snapshot, most: int | None = NAMED) -> list[dict[str, str]]:
    """id, text, and why, where it is known, of entities without keywords, in id order; the first
    `most`, or all.

    Memory: what is given back, and one batch of rows.
    """
    if not snapshot.manifest.empty:
        return []
    aside = read_set_aside(snapshot.store, snapshot.id)
    named = islice(_empty(snapshot), most)
    return [{"id": id_, "text": text, "reason": aside.get(id_, "")} for id_, text in named]


def _empty(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    for batch in snapshot.batches(["id", "text", "keywords"], encoded=True):
        found = batch.select(["id", "text"]).filter(
            pc.equal(pc.list_value_length(batch["keywords"]), 0)
        )
        yield from zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True)
