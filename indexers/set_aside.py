"""The file `set_aside.jsonl` of a snapshot: its entities without keywords of their own, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cogr.errors import SnapshotError
from cogr.store import Store


def write_set_aside(store: Store, snapshot_id: str, set_aside: Mapping[str, str]) -> None:
    """Write the file of a snapshot: id -> reason, in this order."""
    lines = (
        json.dumps({"id": id_, "reason": reason}, ensure_ascii=False)
        for id_, reason in set_aside.items()
    )
    store.write(_set_aside_path(snapshot_id), "".join(line + "\n" for line in lines).encode())


def read_set_aside(store: Store, snapshot_id: str) -> dict[str, str]:
    """id -> reason of a snapshot's entities that were set aside; empty where the snapshot has no
    such file.

    Raises SnapshotError when the file is damaged.
    """
    path = _set_aside_path(snapshot_id)
    try:
        lines = store.read(path).decode().splitlines() if store.exists(path) else []
        return {str(row["id"]): str(row["reason"]) for row in map(json.loads, lines)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotError(
            f"The file {path} in {store.url} is damaged; run cogr-index rebuild --side "
            f"{snapshot_id.split('-')[0]}."
        ) from error


def _set_aside_path(snapshot_id: str) -> str:
    return f"snapshots/{snapshot_id}/set_aside.jsonl"
