"""Imports from files: keyword sets as a snapshot (`cogr-index import`), queries of a log for the
data set's own file (JSON lines, CSV or TSV), and judgements of another tool (`cogr-index import
labels`).

Keyword sets: with the manifest that an export wrote beside the file, the snapshot is the exported
one, with the same content and the same id. Without it, the keyword sets may come from anywhere;
they are normalised as generated ones are.

Judgements go into the data set's queries.jsonl and labels.jsonl. A query is identified by its text,
else by its id. Of several grades of one pair in the files the highest is kept, as when a data set
is read; a pair that labels.jsonl has already gets the new grade. Both files are replaced as a
whole, so that importing the same again changes nothing.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, AnyStr

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from cogr.datasets.fields import (
    Columns,
    QueryColumns,
    check_text,
    fields_as_json,
    id_field,
    text_field,
)
from cogr.datasets.judgements import Judged, read_judgements
from cogr.datasets.reading import Place, Sheet, json_records, lines, parse_json
from cogr.errors import DataError, SettingsError, SnapshotError
from cogr.item_fields import types_of
from cogr.keywords import NORMALISER, cut_to_budget, normalise, over_budget, self_keyword
from cogr.records import Query, Side
from cogr.snapshots import (
    HEAVIEST,
    Manifest,
    Provenance,
    Row,
    Snapshot,
    rounded,
    write_snapshot,
)
from cogr.store import Store, replacing, storage_errors
from indexers.rebuild.assembly import typed_rows


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
    return Provenance(**{name: getattr(manifest, name) for name in Provenance.__dataclass_fields__})


def _rows(path: Path, *, as_they_are: bool) -> Iterator[Row]:
    """Rows of a file. Rows of an exported snapshot are taken unchanged; the hash in its manifest is
    checked afterwards.
    """
    for place, record in _records(path):
        id_, text = id_field(record, "id", place), text_field(record, "text", place)
        given = _given(record, place)
        words = tuple(given) if as_they_are else _keywords(given, text)
        spelled = given if as_they_are else [*map(normalise, given)]
        weights = _weights(record, spelled, words, place)
        sure = record.get("confidence")
        if sure is not None:
            sure = _number(sure, "confidence", 0, 1, place)
        yield Row(id_, text, words, _extra(record, place), weights, sure)


def _records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    if path.suffix != ".parquet":
        yield from json_records(path)
        return
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            columns = [
                name
                for name in ("id", "text", "keywords", "fields", "weights", "confidence")
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


def _weights(
    record: dict[str, Any], spelled: list[str], words: tuple[str, ...], place: Place
) -> tuple[float, ...]:
    """Weights of a row's words and of its text; a repeated keyword keeps its first weight."""
    given = record.get("weights")
    if not given:
        return ()
    if not isinstance(given, list) or len(given) != len(spelled) + 1:
        raise DataError(
            f"{place}: 'weights' is no list of a number for each keyword and one for the text; "
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
    weights = (*row.weights[: len(kept)], *row.weights[-1:])
    return replace(row, keywords=kept, weights=weights)


def _keywords(given: list[str], text: str) -> tuple[str, ...]:
    own = self_keyword(text)
    return tuple(word for word in dict.fromkeys(map(normalise, given)) if word and word != own)


_SHEETS = (".csv", ".tsv")


def check_place(path: Path) -> None:
    """Raise SettingsError for a file that can't be written to, or that would not be read."""
    if path.suffix not in (".jsonl", *_SHEETS):
        raise SettingsError(
            f"--save writes JSON lines or CSV; name a .jsonl, .csv or .tsv file, not {path.name}."
        )
    if not path.absolute().parent.is_dir():
        raise SettingsError(
            f"The folder of --save {path} is not there; make it, or name another file."
        )
    packed = path.with_name(f"{path.name}.gz")
    if packed.exists() and not path.exists():
        raise SettingsError(
            f"--save {path} would hide {packed}, which is read now; unpack that first."
        )


def save_queries(path: Path, queries: Sequence[Query], columns: QueryColumns) -> int:
    """Add the queries whose ids the file lacks. Returns their number.

    The file is replaced as a whole: a kill leaves the old one or the new one, and a second time
    adds nothing.

    Raises:
        DataError: the file that is there can't be read, or lacks the columns of id and text.
        StorageError: the disk is full, or the folder read-only.
    """
    add = _with_rows if path.suffix in _SHEETS else _with_lines
    content, added = add(path, queries, columns)
    if added:
        with replacing(path) as file:
            file.write(content)
    return added


def _with_lines(path: Path, queries: Sequence[Query], columns: QueryColumns) -> tuple[bytes, int]:
    there = (
        {str(record.get(columns.id)) for _, record in json_records(path)}
        if path.is_file()
        else set()
    )
    new = [{columns.id: one.id, columns.text: one.text} for one in queries if one.id not in there]
    before = path.read_bytes() if path.is_file() else b""
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in new)
    return _ended(before) + lines.encode(), len(new)


def _with_rows(path: Path, queries: Sequence[Query], columns: QueryColumns) -> tuple[bytes, int]:
    if not path.is_file():
        header = (columns.id, columns.text)
        table = [header, *((one.id, one.text) for one in queries)]
        return _written(table, "\t" if path.suffix == ".tsv" else ",").encode(), len(queries)
    sheet = Sheet.open(path, (columns.id, columns.text))
    sheet.need(columns.id, "dataset.columns.queries.id")
    sheet.need(columns.text, "dataset.columns.queries.text")
    at = sheet.header.index(columns.id)
    there = {row[at].strip() for _, row in sheet.rows()}
    new = [one for one in queries if one.id not in there]
    rows = [_row(one, sheet.header, columns) for one in new]
    before = path.read_bytes().decode(sheet.encoding)
    text = _ended(before) + _written(rows, sheet.delimiter)
    try:
        return text.encode(sheet.encoding), len(new)
    except UnicodeEncodeError:
        return text.encode("utf-8-sig"), len(
            new
        )  # a query beyond Windows-1252: the file becomes UTF-8


def _row(query: Query, header: Sequence[str], columns: QueryColumns) -> list[str]:
    values = {columns.id: query.id, columns.text: query.text}
    return [values.get(name, "") for name in header]


def _written(rows: Sequence[Sequence[str]], delimiter: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _ended(content: AnyStr) -> AnyStr:
    """The content with an end of its last line."""
    end = "\n" if isinstance(content, str) else b"\n"
    return content if not content or content.endswith(end) else content + end


@dataclass
class LabelsImported:
    """The result of an import of judgements.

    Attributes:
        read: judgements of the files.
        unrated: pairs and queries without a judgement; such queries are kept.
        conflicts: pairs with several different grades in the files, of which the highest stays.
        queries, new_queries: in queries.jsonl now, and of these, how many were not there.
        labels, new_labels, changed: in labels.jsonl now; of these, how many were not there, or had
            another grade.
    """

    read: int = 0
    unrated: int = 0
    conflicts: int = 0
    queries: int = 0
    new_queries: int = 0
    labels: int = 0
    new_labels: int = 0
    changed: int = 0

    def as_dict(self) -> dict[str, int]:
        """For --json."""
        return asdict(self)


def import_labels(
    paths: Sequence[Path],
    folder: Path,
    columns: Columns,
    *,
    format: str | None = None,
    texts: Path | None = None,
) -> LabelsImported:
    """Add judgements to a data set of JSON lines.

    Args:
        folder: of the data set.
        columns: what its fields are called.
        format: of the files; None for what each looks like.
        texts: of queries, where the files have ids alone: lines of id, tab and text, or JSON
            objects as in queries.jsonl.

    Raises:
        DataError: a bad record, or a query without a text; names file and line.
        StorageError: the disk is full or read-only.
    """
    found = LabelsImported()
    queries = _Queries(folder / "queries.jsonl", columns, texts)
    grades: dict[tuple[str, str], float] = {}
    conflicts: set[tuple[str, str]] = set()
    for one in _all(paths, format):
        query = queries.id_of(one)
        if one.grade is None or not one.item:
            found.unrated += 1
            continue
        found.read += 1
        pair = query, one.item
        if grades.setdefault(pair, one.grade) != one.grade:
            conflicts.add(pair)
            grades[pair] = max(grades[pair], one.grade)
    found.conflicts = len(conflicts)
    with storage_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        found.queries, found.new_queries = queries.save()
        _save_labels(folder / "labels.jsonl", columns, grades, found)
    return found


def _all(paths: Sequence[Path], format: str | None) -> Iterator[Judged]:
    for path in paths:
        yield from read_judgements(path, format)


class _Queries:
    """The data set's queries and those that come new."""

    def __init__(self, path: Path, columns: Columns, texts: Path | None) -> None:
        self._path, self._columns = path, columns.queries
        self._records: dict[str, Mapping[str, Any]] = {}
        self._by_text: dict[str, str] = {}
        for place, record in json_records(path) if path.is_file() else ():
            self._add(place, record)
        self._before = len(self._records)
        self._texts = dict(_texts(texts, columns)) if texts else {}

    def _add(self, place: Place, record: Mapping[str, Any]) -> None:
        id_ = id_field(record, self._columns.id, place)
        self._records[id_] = record
        text = text_field(record, self._columns.text, place)
        self._by_text.setdefault(self_keyword(text), id_)

    def id_of(self, one: Judged) -> str:
        """The query's id here; it is added where it is new. Raises DataError without a text."""
        text = one.query or self._texts.get(one.query_id, "")
        if not text:
            if one.query_id in self._records:
                return one.query_id
            raise DataError(
                f"{one.place}: the query {one.query_id!r} has no text here; name a file of ids and "
                "texts with --queries."
            )
        known = self._by_text.get(self_keyword(text))
        if known is not None:
            return known
        free = one.query_id and one.query_id not in self._records
        id_ = one.query_id if free else f"q-{sha256(self_keyword(text).encode()).hexdigest()[:12]}"
        self._add(one.place, {self._columns.id: id_, self._columns.text: text})
        return id_

    def save(self) -> tuple[int, int]:
        """Write the file; how many queries it has, and how many are new."""
        _replace(self._path, self._records.values())
        return len(self._records), len(self._records) - self._before


def _texts(path: Path, columns: Columns) -> Iterator[tuple[str, str]]:
    if not path.is_file():
        raise DataError(f"The file of queries {path} is not there; name one with --queries.")
    for number, line in lines(path):
        place = Place(path, number)
        if line.lstrip().startswith("{"):
            names = columns.queries
            yield from (
                (id_field(record, names.id, at), text_field(record, names.text, at))
                for at, record in json_records(path)
            )
            return
        id_, tab, text = line.partition("\t")
        if line.strip() and not (tab and text.strip()):
            raise DataError(f"{place}: the line is no id, tab and text; write one query a line.")
        yield id_.strip(), text.strip()


def _save_labels(
    path: Path, columns: Columns, grades: Mapping[tuple[str, str], float], found: LabelsImported
) -> None:
    names, kept = columns.labels, dict[tuple[str, str], Mapping[str, Any]]()
    for place, record in json_records(path) if path.is_file() else ():
        pair = id_field(record, names.query, place), id_field(record, names.item, place)
        kept[pair] = record
    for (query, item), grade in grades.items():
        value = int(grade) if grade == int(grade) else grade
        before = kept.get((query, item))
        found.new_labels += before is None
        found.changed += before is not None and before.get(names.grade, 1) != value
        kept[query, item] = {names.query: query, names.item: item, names.grade: value}
    found.labels = len(kept)
    _replace(path, kept.values())


def _replace(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with replacing(path) as file:
        file.writelines(
            json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records
        )
