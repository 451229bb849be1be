"""Queries of a log, added to the data set's own file of queries: JSON lines, CSV or TSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import AnyStr

from cogr.datasets.fields import QueryColumns
from cogr.datasets.reading import json_records
from cogr.datasets.sheets import Sheet
from cogr.errors import SettingsError
from cogr.records import Query
from cogr.store import storage_errors

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
    """Add the queries whose ids the file lacks; how many these were.

    The file is replaced as a whole: a kill leaves the old one or the new one, and a second time
    adds nothing.

    Raises:
        DataError: the file that is there can't be read, or lacks the columns of id and text.
        StorageError: the disk is full, or the folder read-only.
    """
    add = _with_rows if path.suffix in _SHEETS else _with_lines
    content, added = add(path, queries, columns)
    if added:
        with storage_errors(str(path)):
            draft = path.with_name(f".{path.name}.new")
            draft.write_bytes(content)
            draft.replace(path)
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
