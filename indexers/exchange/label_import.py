"""`cogr-index import labels`: judgements of another tool, into the data set's queries.jsonl and
labels.jsonl.

A query is known by its text, else by its id. Of several grades of one pair in the files the highest
stays, as when a data set is read; a pair that labels.jsonl has already gets the new grade. Both
files are replaced as a whole, so that importing the same again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from cogr.datasets.fields import Columns, id_field, text_field
from cogr.datasets.judgements import Judged, read_judgements
from cogr.datasets.reading import Place, json_records, lines
from cogr.errors import DataError
from cogr.keywords import self_keyword
from cogr.store import replacing, storage_errors


@dataclass
class LabelsImported:
    """What an import of judgements came to.

    Attributes:
        read: judgements of the files.
        unrated: pairs and queries that nobody judged; such queries are kept.
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
