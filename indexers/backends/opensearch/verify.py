"""Verification: the cluster's documents and results are compared with the snapshot and its mirror.
No snapshot serves before it passes.

`verify` looks at counts, a seeded sample of documents field by field, and live results: totals,
order and the bits of every score. `compare` looks at every document, piece by piece in id order;
`indexers.release.verify` makes the pieces and keeps the differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from cogr.errors import CheckFailedError
from cogr.matching.mirror import Mirror
from cogr.records import Side
from cogr.snapshots import Row, Snapshot
from indexers.backends import Keywords, Mismatch, Verified, boosts_of, mismatches, sample
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import (
    IndexState,
    check_count,
    document,
    documents,
    hits_of,
    id_field,
    mark,
)
from indexers.backends.opensearch.search import everything, pages

_BATCH = 100
_REPAIR = "delete it and push the snapshot again"


def verify(
    cluster: Cluster,
    state: IndexState,
    snapshot: Snapshot,
    mirror: Mirror,
    queries: Iterable[Keywords],
) -> Verified:
    """Compare the index of a pushed snapshot with its files, and live results with its mirror; mark
    it as verified or not. Raises CheckFailedError with the first difference, ServiceError.
    """
    scored = mirror.scored_by(cluster.version.bm25)
    try:
        check_count(cluster, state.name, snapshot)
        sampled = _check_documents(cluster, state.name, snapshot)
        scores = [_check_parity(cluster, state.name, snapshot.side, scored, one) for one in queries]
    except CheckFailedError:
        if state.verified:
            mark(cluster, state, verified=False)
        raise
    if not state.verified:
        mark(cluster, state, verified=True)
    return Verified(state.name, snapshot.manifest.entities, sampled, len(scores), sum(scores))


def _check_documents(cluster: Cluster, index: str, snapshot: Snapshot) -> int:
    chosen = sample(snapshot)
    sampled = documents(snapshot, chosen)
    while batch := dict(islice(sampled, _BATCH)):
        ids = {"ids": {"values": list(batch)}}
        hits = hits_of(cluster, index, ids, len(batch), _source=True)
        found = {hit["_id"]: hit["_source"] for hit in hits}
        for one in mismatches(batch, found):
            what = (
                f"The document {one.id!r} of the snapshot is not in the index {index}"
                if one.kind == "missing"
                else f"The field {one.field} of document {one.id!r} in the index {index} is "
                f"{one.found}, the snapshot says {one.expected}"
            )
            raise CheckFailedError(f"{what}; {_REPAIR}.")
    return len(chosen)


def _check_parity(
    cluster: Cluster, index: str, side: Side, mirror: Mirror, keywords: Keywords
) -> int:
    boosts = boosts_of(keywords)
    whole = everything(cluster, index, side, boosts)
    total, hits = whole.total, whole.hits
    expected = mirror.search(boosts, len(mirror))
    if total != expected.total:
        raise CheckFailedError(
            f"The index {index} retrieves {total} for {list(boosts)}, the mirror "
            f"{expected.total}; {_REPAIR}."
        )
    live, ids = np.array([hit.score for hit in hits], np.float32), expected.ids
    same = live.view(np.uint32) == expected.scores.view(np.uint32)
    for rank, hit in enumerate(hits):
        if hit.id != ids[rank] or not same[rank]:
            raise CheckFailedError(
                f"At rank {rank + 1} for {list(boosts)} the index {index} has {hit.id!r} with "
                f"score {hit.score}, the mirror {ids[rank]!r} with "
                f"{float(expected.scores[rank])}; {_REPAIR}."
            )
    return expected.total


PAGE = 2_000
"""Documents of one answer."""


def compare(
    cluster: Cluster, index: str, side: Side, rows: Sequence[Row], after: str, *, last: bool
) -> list[Mismatch]:
    """See `Backend.compare`. A document with another id in its id field differs in that field."""
    expected = {row.id: document(side, row) for row in rows}
    bounds = {"gt": after} if after else {}
    if not last:
        bounds["lte"] = rows[-1].id
    held = {"range": {id_field(side): bounds}} if bounds else {"exists": {"field": id_field(side)}}
    found = _documents(cluster, index, side, held)
    if last:
        nameless = {"bool": {"must_not": {"exists": {"field": id_field(side)}}}}
        found |= _documents(cluster, index, side, nameless)
    return list(mismatches(expected, found))


def _documents(
    cluster: Cluster, index: str, side: Side, query: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    body = {
        "size": PAGE,
        "query": {"bool": {"filter": query}},
        "sort": [{id_field(side): "asc"}],
        "track_total_hits": True,
    }
    return {hit["_id"]: hit["_source"] for hit in pages(cluster, index, body)}
