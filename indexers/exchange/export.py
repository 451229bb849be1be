"""Snapshots as files for other systems: which formats there are, and the files' life.

What a format looks like is in `indexers.exchange.formats`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cogr.errors import UserError
from cogr.snapshots import Snapshot
from cogr.store import Store
from indexers.exchange.formats import FORMATS
from indexers.exchange.importing import manifest_beside

_IMPORTED = ("jsonl", "parquet")
"""Formats that `cogr-index import` reads: the manifest goes beside them."""
NAMES = (*_IMPORTED, *(name for name in FORMATS if name not in _IMPORTED))


@dataclass(frozen=True)
class Exported:
    """What an export wrote: entities in the file, and what lies beside it."""

    entities: int
    beside: list[str]


def export(snapshot: Snapshot, to: Path, format_: str, prefix: str = "cogr") -> Exported:
    """Write a snapshot's rows to a file, and what belongs to the format (manifest, mapping, schema)
    beside it.

    Args:
        format_: one of NAMES.
        prefix: names of indexes in the formats of search engines begin with it.

    Raises:
        UserError: an unknown format, a format of the other side, or a folder that is not there.
        StorageError: the disk is full or read-only.
    """
    if format_ not in NAMES:
        raise UserError(f"The format {format_!r} is unknown; it is one of {', '.join(NAMES)}.")
    if not to.absolute().parent.is_dir():
        raise UserError(
            f"The folder {to.absolute().parent} is not there; create it, or name another file."
        )
    folder, beside = Store(to.absolute().parent), []
    if format_ in _IMPORTED:
        beside.append(manifest_beside(to).name)
        folder.write_json(beside[0], snapshot.manifest.model_dump(mode="json"))
    if format_ == "parquet":
        folder.write(to.name, snapshot.store.read(snapshot.path))
        return Exported(snapshot.manifest.entities, beside)
    chosen = FORMATS[format_]
    if chosen.side and chosen.side != snapshot.side:
        raise UserError(
            f"The format {format_} is for the side {chosen.side}; name a {chosen.side} snapshot."
        )
    with folder.replacing(to.name) as file:
        for piece in chosen.pieces(snapshot, prefix):
            file.write(piece.encode())
    for ending, text in chosen.beside(snapshot, prefix).items():
        beside.append(f"{to.name}.{ending}")
        folder.write(beside[-1], text.encode())
    return Exported(snapshot.manifest.entities, beside)
