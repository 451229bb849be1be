"""`cogr-index import`: keyword sets from a file become a snapshot. The way back of `cogr-index
export`.

With the manifest that an export wrote beside the file, the snapshot is the exported one: same
content, same id. Without it, the keyword sets may come from anywhere; they are normalised as
generated ones are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from cogr.datasets.fields import check_text, fields_as_json, id_field, text_field
from cogr.datasets.reading import Place, json_records, parse_json
from cogr.errors import DataError, SnapshotError
from cogr.item_fields import types_of
from cogr.keywords import NORMALISER, cut_to_budget, normalise, over_budget, self_keyword
from cogr.records import Side
from cogr.snapshots import Manifest, Provenance, Row, Snapshot, write_snapshot
from cogr.store import Store
from indexers.build.assembly import typed_rows


def manifest_beside(path: Path) -> Path:
    """Where an export of this file writes the snapshot's manifest."""
    return path.with_name(f"{path.name}.manifest.json")


def import_snapshot(store: Store, path: Path, side: Side, k_max: int) -> Snapshot:
    """A snapshot from a file: .parquet, else one JSON object a line with id, text and keywords.

    Args:
        side: whose keyword sets these are, where no manifest says it.
        k_max: the budget that longer sets are cut to, where no manifest says it.

    Raises:
        DataError: a missing file, a bad record, an id twice.
        SnapshotError: the manifest beside it is broken, of another normaliser, or of other content.
        StorageError: the store is full or read-only.
    """
    if not path.is_file():
        raise DataError(f"The file {path} is not there; name one that cogr-index export wrote.")
    manifest = _manifest(path)
    rows = sorted(_rows(path, as_they_are=manifest is not None), key=lambda row: row.id)
    for one, next_ in pairwise(rows):
        if one.id == next_.id:
            raise DataError(f"{path} has the id {one.id!r} twice; keep one of them.")
    if manifest is None:
        cut = sum(over_budget(row.keywords, k_max) for row in rows)
        rows = [replace(row, keywords=cut_to_budget(row.keywords, k_max)) for row in rows]
        provenance = Provenance(k_max=k_max, cut_to_budget=cut, notes={"imported": path.name})
        types = types_of(
            ((row.id, row.fields_json) for row in rows),
            sorted({name for row in rows for name in row.fields}),
        )
        return write_snapshot(store, side, typed_rows(rows, types), provenance, types)
    snapshot = write_snapshot(
        store,
        manifest.side,
        typed_rows(rows, manifest.fields),
        _provenance(manifest),
        manifest.fields,
    )
    if snapshot.manifest.content_hash != manifest.content_hash:
        raise SnapshotError(
            f"The content of {path} is not what {manifest_beside(path)} says; export it again, "
            "or remove the manifest to import "
            f"it as other keyword sets (it is in the store as {snapshot.id})."
        )
    return snapshot


def _manifest(path: Path) -> Manifest | None:
    beside = manifest_beside(path)
    if not beside.is_file():
        return None
    try:
        manifest = Manifest.model_validate_json(beside.read_bytes())
    except ValidationError as error:
        raise SnapshotError(
            f"{beside} is no manifest or broken; export again, or remove it."
        ) from error
    if manifest.normaliser != NORMALISER:
        raise SnapshotError(
            f"{path} was written with normaliser {manifest.normaliser}, this version has "
            f"{NORMALISER}; rebuild the snapshot, or "
            f"remove {manifest_beside(path)} to import its keywords as new ones."
        )
    return manifest


def _provenance(manifest: Manifest) -> Provenance:
    kept = manifest.model_dump(include=set(Provenance.__dataclass_fields__))
    return Provenance(**kept)


def _rows(path: Path, *, as_they_are: bool) -> Iterator[Row]:
    """Rows of a file. An exported snapshot's are taken as they are; the hash in its manifest says
    whether they still are.
    """
    for place, record in _records(path):
        id_, text = id_field(record, "id", place), text_field(record, "text", place)
        given = _given(record, place)
        yield Row(
            id_,
            text,
            tuple(given) if as_they_are else _keywords(given, text),
            _extra(record, place),
        )


def _records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    if path.suffix != ".parquet":
        yield from json_records(path)
        return
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            columns = [
                name
                for name in ("id", "text", "keywords", "fields")
                if name in file.schema_arrow.names
            ]
            for batch in file.iter_batches(columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    yield Place(path, number, "row"), record
    except pa.ArrowException as error:
        raise DataError(
            f"{path} is no parquet file or damaged ({str(error).splitlines()[0]})."
        ) from error


def _extra(record: dict[str, Any], place: Place) -> str:
    """Extra fields: an object in jsonl, the text of one in a snapshot's own file."""
    fields = record.get("fields") or {}
    if isinstance(fields, str):
        fields = parse_json(fields, place)
    if not isinstance(fields, dict):
        raise DataError(
            f"{place}: 'fields' is no object; write one, such as {{\"price\": 9.5}}, or leave it "
            "out."
        )
    return fields_as_json(fields, ((name, name) for name in fields), place)


def _given(record: dict[str, Any], place: Place) -> list[str]:
    given = record.get("keywords")
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise DataError(
            f"{place}: 'keywords' is no list of strings; write one, [] where there are none."
        )
    return [check_text(word, "keywords", place) for word in given]


def _keywords(given: list[str], text: str) -> tuple[str, ...]:
    own = self_keyword(text)
    return tuple(word for word in dict.fromkeys(map(normalise, given)) if word and word != own)
