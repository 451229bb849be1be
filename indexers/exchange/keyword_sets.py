"""Keyword sets as files for other systems (`cogr-index export`), and from files as a snapshot
(`cogr-index import`).

A format turns a snapshot's rows into text, streaming, and may add files beside it. In the bulk
formats a keyword is one term, ranked by BM25 with the mirror's parameters. With the manifest that
an export wrote beside the file, an import gives the exported snapshot, with the same content and
id. Without it, the keyword sets may come from anywhere; they are normalised as generated ones are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from cogr.datasets.fields import check_id, check_text, fields_as_json
from cogr.datasets.reading import Place, json_records, parquet_rows
from cogr.errors import DataError, SnapshotError, UserError
from cogr.keywords import (
    NORMALISER,
    cut_to_budget,
    normalise,
    over_budget,
    self_keyword,
    with_self,
)
from cogr.records import Side, types_of
from cogr.snapshots import (
    Manifest,
    Provenance,
    Row,
    Snapshot,
    provenance_of,
    rounded,
)
from cogr.snapshots.writing import HEAVIEST, write_snapshot
from cogr.store import Store
from indexers.backends.opensearch.client import Version
from indexers.backends.opensearch.indexes import PLURAL, document, index_settings, mapping, meta_of
from indexers.rebuild.assembly import typed_rows


@dataclass(frozen=True)
class Exported:
    """The result of an export: entities in the file, and the files beside it."""

    entities: int
    beside: list[str]


def export(snapshot: Snapshot, to: Path, format_: str, prefix: str = "cogr") -> Exported:
    """Write a snapshot's rows to a file, and what belongs to the format (manifest, mapping) beside
    it. Raises UserError and StorageError.
    """
    if format_ not in NAMES:
        raise UserError(f"The format {format_!r} is unknown; it is one of {', '.join(NAMES)}.")
    if not to.absolute().parent.is_dir():
        raise UserError(
            f"The folder {to.absolute().parent} does not exist; create it, or name another file."
        )
    folder, beside = Store(to.absolute().parent), []
    if format_ != "bulk":
        beside.append(manifest_beside(to).name)
        folder.write_json(beside[0], snapshot.manifest.model_dump(mode="json"))
    if format_ == "parquet":
        folder.write(to.name, snapshot.store.read(snapshot.path))
        return Exported(snapshot.manifest.entities, beside)
    with folder.replacing(to.name) as file:
        for piece in _bulk(snapshot, prefix) if format_ == "bulk" else _jsonl(snapshot):
            file.write(piece.encode())
    if format_ == "bulk":
        beside.append(f"{to.name}.mapping.json")
        folder.write_json(beside[0], _mapping(snapshot))
    return Exported(snapshot.manifest.entities, beside)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _jsonl(snapshot: Snapshot) -> Iterator[str]:
    for row in snapshot.rows():
        record = {"id": row.id, "text": row.text, "self": row.self_keyword}
        more = {"weights": row.weights, "confidence": row.confidence, "fields": row.fields}
        there = {name: value for name, value in more.items() if value not in (None, (), {})}
        yield _line({**record, "keywords": row.keywords, **there})


def _bulk(snapshot: Snapshot, prefix: str) -> Iterator[str]:
    index = f"{prefix}-{PLURAL[snapshot.side]}"
    for row in snapshot.rows():
        keywords = with_self(row.self_keyword, row.keywords)
        yield _line({"index": {"_index": index, "_id": row.id}})
        yield _line(document(snapshot.side, row) | {"keywords": keywords})


def _mapping(snapshot: Snapshot) -> Mapping[str, Any]:
    meta = meta_of(snapshot.manifest)
    return {
        "settings": index_settings(1),
        "mappings": mapping(snapshot.side, Version(3, 0, "3.0.0"), meta),
    }


NAMES = ("jsonl", "parquet", "bulk")
"""As `cogr-index export --format` takes them; parquet is the snapshot's own file. An import reads
the first two: the manifest goes beside them.
"""


def manifest_beside(path: Path) -> Path:
    """Where an export of this file writes the snapshot's manifest."""
    return path.with_name(f"{path.name}.manifest.json")


def import_snapshot(store: Store, path: Path, side: Side, k_max: int) -> Snapshot:
    """A snapshot from a file: .parquet, else one JSON object a line with id, text and keywords, and
    maybe weights (one for each keyword, and the text's last) and a confidence.

    Args:
        side: whose keyword sets these are, where no manifest says it.
        k_max: the budget that longer sets are cut to, where no manifest says it.

    Raises DataError, SnapshotError and StorageError.
    """
    if not path.is_file():
        raise DataError(f"The file {path} does not exist; name one that cogr-index export wrote.")
    manifest = _manifest(path)
    rows = sorted(_rows(path, as_they_are=manifest is not None), key=lambda row: row.id)
    for one, next_ in pairwise(rows):
        if one.id == next_.id:
            raise DataError(f"{path} has the id {one.id!r} twice; remove one.")
    if manifest is None:
        cut = sum(over_budget(row.keywords, k_max) for row in rows)
        rows = [_cut(row, k_max) for row in rows]
        provenance = Provenance(k_max=k_max, cut_to_budget=cut, notes={"imported": path.name})
        names = sorted({name for row in rows for name in row.fields})
        types = types_of(((row.id, row.fields_json) for row in rows), names)
        return write_snapshot(store, side, typed_rows(rows, types), provenance, types)
    typed, known = typed_rows(rows, manifest.fields), provenance_of(manifest)
    snapshot = write_snapshot(store, manifest.side, typed, known, manifest.fields)
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


class _Line(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    id: StrictStr | StrictInt
    text: str = ""
    keywords: list[str]
    weights: list[Annotated[float, Field(ge=0, le=HEAVIEST, strict=True)]] | None = None
    confidence: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None
    fields: Json[dict[str, Any]] | dict[str, Any] | None = None

    @model_validator(mode="after")
    def _a_weight_each(self) -> _Line:
        if self.weights and len(self.weights) != len(self.keywords) + 1:
            raise ValueError("weights needs a number for each keyword and one for the text")
        return self


def _rows(path: Path, *, as_they_are: bool) -> Iterator[Row]:
    for place, record in _records(path):
        try:
            line = _Line.model_validate({k: v for k, v in record.items() if v != ""})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = "".join(f"{name!r}: " for name in first["loc"][:1])
            said = first["msg"].removeprefix("Value error, ")
            raise DataError(
                f"{place}: {field}{said[:1].lower()}{said[1:]}; correct the record."
            ) from error
        for text in (line.text, *line.keywords):
            check_text(text, "text or keywords", place)
        spelled, words, weights = line.keywords, line.keywords, line.weights or []
        if not as_they_are:
            spelled, own = [*map(normalise, words)], self_keyword(line.text)
            words = [word for word in dict.fromkeys(spelled) if word and word != own]
        # A repeated keyword keeps its first weight.
        first_weight = dict(zip(reversed(spelled), reversed(weights[:-1]), strict=False))
        kept = [*(first_weight[word] for word in words), weights[-1]] if weights else []
        fields = line.fields or {}
        yield Row(
            check_id(str(line.id), "id", place),
            line.text,
            tuple(words),
            fields_as_json(fields, ((name, name) for name in fields), place),
            tuple(map(rounded, kept)),
            None if line.confidence is None else rounded(line.confidence),
        )


def _records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    if path.suffix != ".parquet":
        yield from json_records(path)
        return
    yield from parquet_rows(path, _Line.model_fields)


def _cut(row: Row, k_max: int) -> Row:
    kept = cut_to_budget(row.keywords, k_max)
    return replace(row, keywords=kept, weights=(*row.weights[: len(kept)], *row.weights[-1:]))
