"""Loaders, from a folder's files to a `Builder`: `jsonl`, `csv`, `parquet`, `beir`.

Items are all that a folder needs. Queries without labels get keywords, but nothing can be trained
or evaluated on them. `dataset.columns` names the fields of items of jsonl, csv and parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cogr.datasets.builder import Builder
from cogr.datasets.fields import id_field, number_field, text_field, time_field
from cogr.datasets.judgements import read_judgements
from cogr.datasets.reading import (
    WESTERN,
    Place,
    Sheet,
    find,
    json_records,
    need,
    parquet_rows,
)
from cogr.errors import DataError
from cogr.records import SPLITS

WESTERN_FILES = "files read as Windows-1252"
"""A note of the data set."""

Records = Iterator[tuple[Place, Mapping[str, Any]]]
Part = Callable[[Path, str, Builder], Records | None]
"""The records of a part of a data set (items, queries, labels or pairs); None where it has none."""


def read_jsonl(folder: Path, builder: Builder) -> None:
    """items.jsonl, queries.jsonl and labels.jsonl, each plain or .gz."""
    _read_parts(folder, builder, "jsonl")


def read_csv(folder: Path, builder: Builder) -> None:
    """Tables of spreadsheets and databases: items.csv, queries.csv and labels.csv, or .tsv.

    Delimiter and encoding are detected (`Sheet`). Empty cells are missing values.
    """
    _read_parts(folder, builder, "csv")


def read_parquet(folder: Path, builder: Builder) -> None:
    """items.parquet, queries.parquet and labels.parquet, with the columns of `jsonl`.

    Each may be one file or, as Spark writes them, a folder of files. Read in batches.
    """
    _read_parts(folder, builder, "parquet")


def _read_parts(folder: Path, builder: Builder, format: str) -> None:
    # A part that is not there in this format may be there in another one.
    def part(name: str) -> Records | None:
        formats = dict.fromkeys((format, *_PARTS))
        found = (_PARTS[one](folder, name, builder) for one in formats)
        return next((records for records in found if records is not None), None)

    columns, signals = builder.options.columns, builder.options.pair_signals
    items, queries, labels = map(part, ("items", "queries", "labels"))
    if items is None:
        raise DataError(
            f"{folder} has no items.{format} (or items.{format}.gz): write one record an item, "
            "with id, title and text, or import them (cogr-index import items)."
        )
    for place, record in items:
        builder.has_fields(record)
        title, text = columns.title_and_text(record, place)
        updated = time_field(record, columns.updated, place)
        builder.item(place, id_field(record, columns.id, place), title, text, updated, record)
    for place, record in queries or ():
        id_, text = id_field(record, "id", place), text_field(record, "text", place)
        weight = number_field(record, "weight", place, default=1.0)
        split = text_field(record, "split", place) or None
        builder.query(place, id_, text, weight, split, time_field(record, "updated", place))
    for place, record in labels or ():
        if queries is None:
            raise DataError(
                f"{folder} has no queries.{format} (or queries.{format}.gz): labels need queries; "
                "write one record a query, with id and text."
            )
        query, item = id_field(record, "query", place), id_field(record, "item", place)
        builder.judgement(place, query, item, number_field(record, "grade", place, default=1.0))
        builder.pair_signals(place, query, item, record)
    for place, record in (part("pairs") if signals else None) or ():
        query, item = id_field(record, "query", place), id_field(record, "item", place)
        builder.pair_signals(place, query, item, record)


def _jsonl(folder: Path, name: str, _builder: Builder) -> Records | None:
    path = find(folder, f"{name}.jsonl")
    return json_records(path) if path else None


def _csv(folder: Path, name: str, builder: Builder) -> Records | None:
    path = find(folder, f"{name}.csv", f"{name}.tsv")
    if path is None:
        return None
    columns = builder.options.columns
    needed = (
        {"id": "id", "text": "text"} if name == "queries" else {"query": "query", "item": "item"}
    )
    if name == "items":
        needed = {columns.id: "dataset.columns.id"}
        needed |= {column: setting for setting, column in columns.renamed()}
    sheet = Sheet.open(path, {*needed, *(columns.read() if name == "items" else ())})
    for column, setting in needed.items():
        sheet.need(column, setting)
    if name == "items":
        if not {columns.title, *columns.text} & {*sheet.header}:
            sheet.need(columns.title, "dataset.columns.title or .text")
        builder.has_fields([column for column in sheet.header if column], 0)
    builder.notes[WESTERN_FILES] += sheet.encoding == WESTERN
    return sheet.records()


def _parquet(folder: Path, name: str, builder: Builder) -> Records | None:
    path = folder / f"{name}.parquet"
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []
    return _rows(files, builder if name == "items" else None) if files else None


_PARTS: Mapping[str, Part] = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet}


def _rows(files: Iterable[Path], builder: Builder | None) -> Records:
    wanted, tell = None, None
    if builder:
        extra = builder.options.columns.sources(builder.options.fields)
        wanted = {*builder.options.columns.read(), *(source for _, source in extra)}
        tell = builder.has_fields
    for path in files:
        for place, row in parquet_rows(path, wanted, tell):
            if isinstance(row, DataError):
                raise row
            yield place, row


def read_beir(folder: Path, builder: Builder) -> None:
    """corpus.jsonl (_id, title, text), queries.jsonl (_id, text), qrels/{train,dev,test}.tsv.

    Each file plain or .gz. The qrels have a header line `query-id corpus-id score`.
    """
    corpus = need(folder, "corpus.jsonl", "write one item a line, with _id, title and text")
    for place, record in json_records(corpus):
        title, text = builder.options.columns.title_and_text(record, place)
        updated = time_field(record, "updated", place)
        builder.item(place, id_field(record, "_id", place), title, text, updated, record)
    found = {split: path for split in SPLITS if (path := find(folder / "qrels", f"{split}.tsv"))}
    queries = find(folder, "queries.jsonl")
    if found and queries is None:
        need(
            folder, "queries.jsonl", "qrels need queries: write one query a line, with _id and text"
        )
    for place, record in json_records(queries) if queries else ():
        builder.query(place, id_field(record, "_id", place), text_field(record, "text", place))
    for split, path in found.items():
        for one in read_judgements(path, "beir"):
            builder.assign(one.place, one.query_id, split)
            builder.judgement(one.place, one.query_id, one.item, one.grade or 0.0)
