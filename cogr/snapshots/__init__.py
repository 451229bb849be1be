"""Snapshots: the frozen keyword sets of one side. The unit of truth for rewards, evaluation,
indexes and rollbacks.

A snapshot is a folder with `keywords.parquet` (columns id, text, self, keywords, and fields where
items carry some; rows in id order) and `manifest.json`, which is written last: a folder without it
is no snapshot. Write-once. Nothing here knows of servers or models.
"""

from cogr.snapshots.manifest import (
    ID,
    MIGRATION,
    Manifest,
    Provenance,
    check_normalisers,
    check_pair,
    list_snapshots,
    read_manifest,
)
from cogr.snapshots.snapshot import Row, Snapshot, damaged_snapshots, open_snapshot
from cogr.snapshots.writing import SCHEMA, write_snapshot

__all__ = [
    "ID",
    "MIGRATION",
    "SCHEMA",
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
    "write_snapshot",
]
