"""Keyword sets from files, as a snapshot (`cogr-index import`).

With the manifest that an export wrote beside the file, the snapshot is the exported one, with the
same content and the same id. Without it, the keyword sets may come from anywhere; they are
normalised as generated ones are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cogr.datasets.fields import check_text, fields_as_json, id_field, text_field
from cogr.datasets.reading import Place, json_records, parquet_rows, parse_json
from cogr.errors import DataError, SnapshotError
from cogr.item_fields import types_of
from cogr.keywords import NORMALISER, cut_to_budget, normalise, over_budget, self_keyword
from cogr.records import Side
from cogr.snapshots import (
    HEAVIEST,
    Manifest,
    Provenance,
    Row,
    Snapshot,
    rounded,
    write_snapshot,
)
from cogr.store import Store
from indexers.rebuild.assembly import typed_rows

_FIELDS = ("id", "text", "keywords", "fields", "weights", "confidence")


def manifest_beside(path: Path) -> Path:
    """Where an export of this file writes the snapshot's manifest."""
    return path.with_name(f"{path.name}.manifest.json")


def import_snapshot(store: Store, path: Path, side: Side, k_max: int) -> Snapshot:
    """A snapshot from a file: .parquet, else one JSON object a line with id, text and keywords, and
    maybe weights (one for each keyword, and the text's last) and a confidence.

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
        rows = [_cut(row, k_max) for row in rows]
        provenance = Provenance(k_max=k_max, cut_to_budget=cut, notes={"imported": path.name})
        names = sorted({name for row in rows for name in row.fields})
        types = types_of(((row.id, row.fields_json) for row in rows), names)
        return write_snapshot(store, side, typed_rows(rows, types), provenance, types)
    known = {name: getattr(manifest, name) for name in Provenance.__dataclass_fields__}
    typed = typed_rows(rows, manifest.fields)
    snapshot = write_snapshot(store, manifest.side, typed, Provenance(**known), manifest.fields)
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
            f"{beside} is not a manifest, or is broken; export again, or remove it."
        ) from error
    if manifest.normaliser != NORMALISER:
        raise SnapshotError(
            f"{path} was written with normaliser {manifest.normaliser}, this version has "
            f"{NORMALISER}; rebuild the snapshot, or "
            f"remove {manifest_beside(path)} to import its keywords as new ones."
        )
    return manifest


def _rows(path: Path, *, as_they_are: bool) -> Iterator[Row]:
    """Rows of a file. Rows of an exported snapshot are taken unchanged; the hash in its manifest is
    checked afterwards.
    """
    for place, record in _records(path):
        id_, text = id_field(record, "id", place), text_field(record, "text", place)
        spelled = words = _given(record, place)
        if not as_they_are:
            spelled, own = [*map(normalise, words)], self_keyword(text)
            words = [word for word in dict.fromkeys(spelled) if word and word != own]
        weights = _weights(record, spelled, words, place)
        sure = record.get("confidence")
        if sure is not None:
            sure = _number(sure, "confidence", 0, 1, place)
        yield Row(id_, text, tuple(words), _extra(record, place), weights, sure)


def _records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    if path.suffix != ".parquet":
        yield from json_records(path)
        return
    for place, row in parquet_rows(path, _FIELDS):
        if isinstance(row, DataError):
            raise row
        yield place, row


def _extra(record: dict[str, Any], place: Place) -> str:
    """Extra fields: an object in jsonl, the text of one in a snapshot's own file."""
    fields = record.get("fields") or {}
    if isinstance(fields, str):
        fields = parse_json(fields, place)
    if not isinstance(fields, dict):
        raise DataError(
            f"{place}: 'fields' is not an object; write one, such as {{\"price\": 9.5}}, or leave "
            "it out."
        )
    return fields_as_json(fields, ((name, name) for name in fields), place)


def _given(record: dict[str, Any], place: Place) -> list[str]:
    given = record.get("keywords")
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise DataError(
            f"{place}: 'keywords' is not a list of strings; write one, [] where there are none."
        )
    return [check_text(word, "keywords", place) for word in given]


def _weights(
    record: dict[str, Any], spelled: Sequence[str], words: Sequence[str], place: Place
) -> tuple[float, ...]:
    """Weights of a row's words and of its text; a repeated keyword keeps its first weight."""
    given = record.get("weights")
    if not given:
        return ()
    if not isinstance(given, list) or len(given) != len(spelled) + 1:
        raise DataError(
            f"{place}: 'weights' is not a list of a number for each keyword and one for the text; "
            "write one, or leave it out."
        )
    numbers = [_number(one, "weights", 0, HEAVIEST, place) for one in given]
    if not all(numbers):
        raise DataError(f"{place}: 'weights' has a 0; write a number above it.")
    by_word = dict(zip(reversed(spelled), reversed(numbers[:-1]), strict=True))
    return (*(by_word[word] for word in words), numbers[-1])


def _number(value: Any, name: str, least: float, most: float, place: Place) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise DataError(
            f"{place}: {name!r} has {value!r}, no number from {least:g} to {most:g}; write one, or "
            "leave it out."
        )
    return rounded(value)


def _cut(row: Row, k_max: int) -> Row:
    """The row with the keywords of the budget alone, and their weights."""
    kept = cut_to_budget(row.keywords, k_max)
    return replace(row, keywords=kept, weights=(*row.weights[: len(kept)], *row.weights[-1:]))
