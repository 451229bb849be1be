"""The format `csv`: items.csv, queries.csv and labels.csv in one folder, or .tsv, as spreadsheets
and databases write them.

What delimiter and encoding they have is told by the files (`sheets`), what their columns are called
by `dataset.columns`. Items are all that it takes. Empty cells are no values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
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
    columns, queries, labels = (
        builder.options.columns,
        find_sheet(folder, "queries"),
        find_sheet(folder, "labels"),
    )
    asked, judged = columns.queries, columns.labels
    if queries:
        sheet = _open(queries, builder, {"queries.id": asked.id, "queries.text": asked.text})
        for place, record in _records(sheet, asdict(asked).values(), {asked.weight}, asked.updated):
            add_query(builder, place, record)
    if labels:
        sheet = _open(labels, builder, {"labels.query": judged.query, "labels.item": judged.item})
        for place, record in _records(sheet, asdict(judged).values(), {judged.grade}):
            if not queries:
                raise DataError(f"{folder} has no queries.csv: {QUERIES_ADVICE}.")
            add_label(builder, place, record)


def _read_items(folder: Path, builder: Builder) -> None:
    if not (path := find_sheet(folder, "items")):
        raise DataError(
            f"{folder} has no items.csv (or items.tsv, or either with .gz): save the sheet as "
            "CSV under this name, its "
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
    wanted = columns.read() | {source for _, source in columns.sources(builder.options.fields)}
    for place, record in _records(sheet, wanted, (), columns.updated):
        builder.has_fields(names)
        record.setdefault(columns.title, "")  # an item without any text is blank, and counted
        add_item(builder, place, record)


def _open(path: Path, builder: Builder, needed: Mapping[str, str]) -> Sheet:
    sheet = Sheet.open(path, needed.values())
    for setting, name in needed.items():
        sheet.need(name, f"dataset.columns.{setting}")
    if sheet.encoding == WESTERN:
        builder.notes[WESTERN_FILES] += 1
    return sheet


def _records(
    sheet: Sheet, wanted: Collection[str], numbers: Collection[str] = (), updated: str = ""
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The wanted columns, row by row; cells without text are left out, and the others lose the
    white space around them.
    """
    read = [(name, at) for at, name in enumerate(sheet.header) if name and name in wanted]
    for place, row in sheet.rows():
        record: dict[str, Any] = {name: cell for name, at in read if (cell := row[at].strip())}
        for name in numbers:
            if name in record:
                record[name] = parse_number(record[name], name, place)
        if updated in record and record[updated].isdecimal():
            record[updated] = int(record[updated])  # seconds since 1970
        yield place, record


LOADER = Loader("csv", read, own=True)
