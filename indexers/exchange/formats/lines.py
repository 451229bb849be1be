"""jsonl, which `cogr-index import` reads back."""

from __future__ import annotations

from collections.abc import Iterator

from cogr.snapshots import Snapshot
from indexers.exchange.formats.base import Format, line


def _jsonl(snapshot: Snapshot, _prefix: str) -> Iterator[str]:
    for row in snapshot.rows():
        record = {
            "id": row.id,
            "text": row.text,
            "self": row.self_keyword,
            "keywords": row.keywords,
        }
        yield line(record | ({"fields": row.fields} if row.fields_json else {}))


FORMATS = {"jsonl": Format(_jsonl)}
