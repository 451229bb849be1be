"""Snapshots as files for other systems. One writer a format; the keyword sets leave as they are indexed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from cogr.errors import UserError
from cogr.snapshots import Row, Snapshot
from cogr.store import Store
from indexers.importing import manifest_beside


def export(snapshot: Snapshot, to: Path, format_: str, prefix: str = "cogr") -> int:
    """Write a snapshot's rows to a file; returns their number. Of jsonl and parquet, the manifest goes beside it.

    Args:
        format_: "jsonl" (id, text, self, keywords), "parquet" (the snapshot's own file), or "bulk" (an OpenSearch _bulk body
            for the index <prefix>-<side>s).

    Raises:
        UserError: an unknown format, or a folder that is not there.
        StorageError: the disk is full or read-only.
    """
    if not to.absolute().parent.is_dir():
        raise UserError(f"The folder {to.absolute().parent} is not there; create it, or name another file.")
    folder = Store(to.absolute().parent)
    if format_ in ("parquet", "jsonl"):
        folder.write_json(manifest_beside(to).name, snapshot.manifest.model_dump(mode="json"))
    if format_ == "parquet":
        folder.write(to.name, snapshot.store.read(snapshot.path))
        return snapshot.manifest.entities
    if format_ not in _LINES:
        raise UserError(f"The format {format_!r} is unknown; it is one of {', '.join([*_LINES, 'parquet'])}.")
    lines = _LINES[format_]
    with folder.replacing(to.name) as file:
        for row in snapshot.rows():
            for line in lines(row, snapshot, prefix):
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    return snapshot.manifest.entities


def _jsonl(row: Row, _snapshot: Snapshot, _prefix: str) -> Iterator[dict[str, object]]:
    yield {"id": row.id, "text": row.text, "self": row.self_keyword, "keywords": row.keywords}


def _bulk(row: Row, snapshot: Snapshot, prefix: str) -> Iterator[dict[str, object]]:
    plural = "items" if snapshot.side == "item" else "queries"
    words = [word for word in dict.fromkeys((row.self_keyword, *row.keywords)) if word]
    yield {"index": {"_index": f"{prefix}-{plural}", "_id": row.id}}
    yield {f"{snapshot.side}_id": row.id, "text": row.text, "keywords": words}


_LINES: dict[str, Callable[[Row, Snapshot, str], Iterator[dict[str, object]]]] = {"jsonl": _jsonl, "bulk": _bulk}
