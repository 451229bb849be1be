"""The format `csv`: items.csv, queries.csv and labels.csv in one folder, or .tsv, as spreadsheets and databases write them.

What delimiter and encoding they have is told by the files (`sheets`), what their columns are called by `dataset.columns`.
Items are all that it takes. Empty cells are no values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from cogr.datasets.building import Builder
from cogr.datasets.fields import parse_number
from cogr.datasets.jsonl import QUERIES_ADVICE, add_item, add_label, add_query
from cogr.datasets.loader import Loader
from cogr.datasets.reading import Place
from cogr.datasets.sheets import WESTERN, Sheet, find_sheet
from cogr.errors import DataError

WESTERN_FILES = "files read as Windows-1252"


def read(folder: Path, builder: Builder) -> None:
    _read_items(folder, builder)
    columns, queries, labels = builder.options.columns, find_sheet(folder, "queries"), find_sheet(folder, "labels")
    asked, judged = columns.queries, columns.labels
    if queries:
        sheet = _open(queries, builder, {"queries.id": asked.id, "queries.text": asked.text})
        for place, record in _records(sheet, {asked.weight}, asked.updated):
            add_query(builder, place, record)
    if labels:
        sheet = _open(labels, builder, {"labels.query": judged.query, "labels.item": judged.item})
        for place, record in _records(sheet, {judged.grade}):
            if not queries:
                raise DataError(f"{folder} has no queries.csv: {QUERIES_ADVICE}.")
            add_label(builder, place, record)


def _read_items(folder: Path, builder: Builder) -> None:
    if not (path := find_sheet(folder, "items")):
        raise DataError(
            f"{folder} has no items.csv (or items.tsv, or either with .gz): save the sheet as CSV under this name, its "
            "columns named in the first line."
        )
    columns = builder.options.columns
    sheet = _open(path, builder, {"id": columns.id})
    for setting, name in columns.renamed():
        sheet.need(name, setting)
    if not {columns.title, *columns.text} & {*sheet.header}:
        sheet.need(columns.title, "dataset.columns.title or .text")
    names = tuple(name for name in sheet.header if name)
    builder.has_fields(names, 0)
    for place, record in _records(sheet, (), columns.updated):
        builder.has_fields(names)
        # Without the column a title is no null, which jsonl would refuse, but blank, and counted.
        add_item(builder, place, record if columns.title in record else {columns.title: "", **record})


def _open(path: Path, builder: Builder, needed: Mapping[str, str]) -> Sheet:
    sheet = Sheet.open(path, needed.values())
    for setting, name in needed.items():
        sheet.need(name, f"dataset.columns.{setting}")
    if sheet.encoding == WESTERN:
        builder.notes[WESTERN_FILES] += 1
    return sheet


def _records(sheet: Sheet, numbers: Collection[str], updated: str = "") -> Iterator[tuple[Place, dict[str, Any]]]:
    """Rows by column; cells without text are left out. Ids lose the white space around them, as every cell does."""
    for place, row in sheet.rows():
        record: dict[str, Any] = {
            name: cell for name, text in zip(sheet.header, row, strict=True) if (cell := text.strip()) and name
        }
        for name in numbers:
            if name in record:
                record[name] = parse_number(record[name], name, place)
        if record.get(updated, "").isdecimal():
            record[updated] = int(record[updated])  # seconds since 1970
        yield place, record


LOADER = Loader("csv", read, own=True)
