"""What every backend checks in the same way: sides, pairs of normalisers, and which entities a verification looks at."""

from __future__ import annotations

import random
from collections.abc import Mapping

from cogr.errors import SnapshotError
from cogr.records import Side
from cogr.snapshots import Snapshot

SAMPLE = 500
"""Entities that a verification compares field by field."""


def side_of(snapshot_id: str) -> Side:
    """The side that a snapshot id begins with."""
    return "query" if snapshot_id.startswith("query-") else "item"


def check_side(snapshot_id: str, side: Side) -> None:
    """Refuse a snapshot of the other side. Raises SnapshotError."""
    if not snapshot_id.startswith(f"{side}-"):
        raise SnapshotError(f"Snapshot {snapshot_id} is no snapshot of the side {side}; name one that is.")


def check_normalisers(normalisers: Mapping[str, str]) -> None:
    """Refuse snapshots that can't serve together.

    Args:
        normalisers: version of the normaliser by snapshot id.

    Raises:
        SnapshotError: there is more than one version.
    """
    if len(set(normalisers.values())) > 1:
        spoken = " and ".join(f"{id_} ({normaliser})" for id_, normaliser in normalisers.items())
        raise SnapshotError(f"{spoken} have different normalisers and can't serve together; rebuild the older one.")


def sample(snapshot: Snapshot) -> frozenset[int]:
    """Row numbers of a sample that is always the same for one snapshot."""
    entities = snapshot.manifest.entities
    return frozenset(random.Random(snapshot.id).sample(range(entities), min(SAMPLE, entities)))
