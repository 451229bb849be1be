"""Snapshots: the frozen keyword sets of one side. Rewards, evaluation, indexes and rollbacks are
all computed from snapshots.

A snapshot is a folder with `keywords.parquet` (columns id, text, self, keywords; weights and
confidence of queries; fields where items carry some; rows in id order) and `manifest.json`, which
is written last: a folder without it is not a snapshot. Write-once. Nothing here needs servers or
models.
"""

from cogr.snapshots.snapshot import (
    CONFIDENCE,
    ID,
    WEIGHTS,
    Manifest,
    Provenance,
    Row,
    Snapshot,
    check_normalisers,
    check_pair,
    damaged_snapshots,
    list_snapshots,
    open_snapshot,
    read_manifest,
    rounded,
    rows_of,
    why_no_pair,
)
from cogr.snapshots.writing import HEAVIEST, SCHEMA, write_snapshot

__all__ = [
    "CONFIDENCE",
    "HEAVIEST",
    "ID",
    "SCHEMA",
    "WEIGHTS",
    "Manifest",
    "Provenance",
    "Row",
    "Snapshot",
    "check_normalisers",
    "check_pair",
    "damaged_snapshots",
    "list_snapshots",
    "open_snapshot",
    "read_manifest",
    "rounded",
    "rows_of",
    "why_no_pair",
    "write_snapshot",
]
