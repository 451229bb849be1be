"""The mirror of a snapshot, kept in the store so that the next process opens it in seconds.

A cache: it may be removed.
"""

from __future__ import annotations

from cogr.errors import SnapshotError
from cogr.matching.mirror import Mirror
from cogr.snapshots import Snapshot
from cogr.store import Store


def mirror_folder(snapshot_id: str) -> str:
    """Where the saved mirror of a snapshot lies in the store."""
    return f"mirrors/{snapshot_id}"


def mirror_of(store: Store, snapshot: Snapshot) -> Mirror:
    """The saved mirror of a snapshot; built, and saved, when there is none or when it is broken.

    A mirror is memory-mapped, so only a store on the local disk keeps it; otherwise it is built for
    this process.

    Raises:
        StorageError: the disk is full or read-only.
    """
    if not store.is_local:
        return Mirror.build(snapshot)
    folder = store.local(mirror_folder(snapshot.id))
    try:
        return Mirror.open(folder, snapshot=snapshot)
    except SnapshotError:
        Mirror.build(snapshot).save(folder)
        return Mirror.open(folder, snapshot=snapshot, verify=False)
