"""What every backend checks in the same way: sides, and which entities a verification looks at."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from cogr.errors import SnapshotError
from cogr.records import Side
from cogr.snapshots import Snapshot
from indexers.backends.protocol import Mismatch

SAMPLE = 500
"""Entities that a verification compares field by field."""

_SPELLED = 200


def side_of(snapshot_id: str) -> Side:
    """The side that a snapshot id begins with."""
    return "query" if snapshot_id.startswith("query-") else "item"


def check_side(snapshot_id: str, side: Side) -> None:
    """Refuse a snapshot of the other side. Raises SnapshotError."""
    if not snapshot_id.startswith(f"{side}-"):
        raise SnapshotError(
            f"Snapshot {snapshot_id} is no snapshot of the side {side}; name one that is."
        )


def sample(snapshot: Snapshot) -> frozenset[int]:
    """Row numbers of a sample that is always the same for one snapshot."""
    entities = snapshot.manifest.entities
    return frozenset(random.Random(snapshot.id).sample(range(entities), min(SAMPLE, entities)))


def mismatches(
    expected: Mapping[str, Mapping[str, Any]], found: Mapping[str, Mapping[str, Any]]
) -> Iterator[Mismatch]:
    """Compare documents by id, in id order."""
    for id_ in sorted(expected.keys() | found.keys()):
        if id_ not in found:
            yield Mismatch(id_, "missing")
        elif id_ not in expected:
            yield Mismatch(id_, "extra")
        elif expected[id_] != found[id_]:
            yield _different(id_, expected[id_], found[id_])


def _different(id_: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> Mismatch:
    names = sorted(expected.keys() | found.keys())
    name = next(name for name in names if expected.get(name) != found.get(name))
    return Mismatch(id_, "different", name, _spelled(found.get(name)), _spelled(expected.get(name)))


def _spelled(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SPELLED else f"{text[:_SPELLED]}..."
