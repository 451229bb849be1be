"""Layouts of a folder with data of one's own, one function each: `jsonl`, `csv`, `parquet`, `beir`.

Items are all that a folder needs. Queries without labels get keywords, but nothing can be trained
or evaluated on them. What the fields are called in jsonl, csv and parquet is said by
`dataset.columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cogr.datasets.builder import Builder
from cogr.datasets.fields import id_field, number_field, parse_number, text_field, time_field
from cogr.datasets.reading import Place, find, json_records, need, table
from cogr.datasets.sheets import WESTERN, Sheet, find_sheet
from cogr.errors import DataError
from cogr.records import SPLITS

WESTERN_FILES = "files read as Windows-1252"
"""A note of the data set."""
_ITEMS_ADVICE = "write one record an item, with id, title and text"
_QUERIES_ADVICE = "labels need queries: write one record a query, with id and text"


def read_jsonl(folder: Path, builder: Builder) -> None:
    """Our own layout: items.jsonl, queries.jsonl and labels.jsonl, each plain or .gz."""
    for place, record in json_records(need(folder, "items.jsonl", _ITEMS_ADVICE)):
        builder.has_fields(record)
        _add_item(builder, place, record)
    queries, labels = find(folder, "queries.jsonl"), find(folder, "labels.jsonl")
    for place, record in json_records(queries) if queries else ():
        _add_query(builder, place, record)
    for place, record in json_records(labels) if labels else ():
        if queries is None:
            need(folder, "queries.jsonl", _QUERIES_ADVICE)
        _add_label(builder, place, record)
    pairs = find(folder, "pairs.jsonl") if builder.options.pair_signals else None
    for place, record in json_records(pairs) if pairs else ():
        _add_pair(builder, place, record)


def _add_item(
    builder: Builder, place: Place, record: Mapping[str, Any], id_key: str | None = None
) -> None:
    """Add a record with an id, a title and a text, and perhaps when it was updated.

    Raises DataError when it has neither title nor text.
    """
    columns = builder.options.columns
    title, text = columns.title_and_text(record, place)
    id_ = id_field(record, id_key or columns.id, place)
    builder.item(place, id_, title, text, time_field(record, columns.updated, place), record)


def _add_query(builder: Builder, place: Place, record: Mapping[str, Any]) -> None:
    """Add a record with an id, a text, and perhaps a weight, a split, and when it was updated."""
    columns = builder.options.columns.queries
    split = text_field(record, columns.split, place) or None
    weight = number_field(record, columns.weight, place, default=1.0)
    id_ = id_field(record, columns.id, place)
    text = text_field(record, columns.text, place)
    builder.query(place, id_, text, weight, split, time_field(record, columns.updated, place))


def _add_label(builder: Builder, place: Place, record: Mapping[str, Any]) -> None:
    """Add a record with a query's id, an item's id and perhaps a grade (1 without)."""
    columns = builder.options.columns.labels
    grade = number_field(record, columns.grade, place, default=1.0)
    builder.judgement(
        place, id_field(record, columns.query, place), id_field(record, columns.item, place), grade
    )
    if builder.options.pair_signals:
        _add_pair(builder, place, record)


def _add_pair(builder: Builder, place: Place, record: Mapping[str, Any]) -> None:
    """Add the numbers of a record with a query's id and an item's id, which is no label."""
    columns = builder.options.columns.labels
    query, item = (id_field(record, name, place) for name in (columns.query, columns.item))
    builder.pair_signals(place, query, item, record)


def read_csv(folder: Path, builder: Builder) -> None:
    """Tables of spreadsheets and databases: items.csv, queries.csv and labels.csv, or .tsv.

    The files themselves say what delimiter and encoding they have (`sheets`). Empty cells are no
    values.
    """
    _read_sheet_of_items(folder, builder)
    columns = builder.options.columns
    asked, judged = columns.queries, columns.labels
    queries, labels = find_sheet(folder, "queries"), find_sheet(folder, "labels")
    numbers = builder.options.pair_signals
    if queries:
        sheet = _open(queries, builder, {"queries.id": asked.id, "queries.text": asked.text})
        for place, record in _cells(sheet, asdict(asked).values(), {asked.weight}, asked.updated):
            _add_query(builder, place, record)
    if labels:
        sheet = _open(labels, builder, {"labels.query": judged.query, "labels.item": judged.item})
        wanted = {*asdict(judged).values(), *numbers}
        for place, record in _cells(sheet, wanted, {judged.grade, *numbers}):
            if not queries:
                raise DataError(f"{folder} has no queries.csv: {_QUERIES_ADVICE}.")
            _add_label(builder, place, record)
    if numbers and (pairs := find_sheet(folder, "pairs")):
        sheet = _open(pairs, builder, {"labels.query": judged.query, "labels.item": judged.item})
        for place, record in _cells(sheet, {judged.query, judged.item, *numbers}, numbers):
            _add_pair(builder, place, record)


def _read_sheet_of_items(folder: Path, builder: Builder) -> None:
    if not (path := find_sheet(folder, "items")):
        raise DataError(
            f"{folder} has no items.csv (or items.tsv, or either with .gz): save the sheet as CSV "
            "under this name, its columns named in the first line."
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
    for place, record in _cells(sheet, wanted, (), columns.updated):
        builder.has_fields(names)
        record.setdefault(columns.title, "")  # an item without any text is blank, and counted
        _add_item(builder, place, record)


def _open(path: Path, builder: Builder, needed: Mapping[str, str]) -> Sheet:
    sheet = Sheet.open(path, needed.values())
    for setting, name in needed.items():
        sheet.need(name, f"dataset.columns.{setting}")
    if sheet.encoding == WESTERN:
        builder.notes[WESTERN_FILES] += 1
    return sheet


def _cells(
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


def read_parquet(folder: Path, builder: Builder) -> None:
    """items.parquet, queries.parquet and labels.parquet, with the columns of `jsonl`.

    Each may be one file or, as Spark writes them, a folder of files. Read in batches.
    """
    items = _need_parquet(folder, "items.parquet", _ITEMS_ADVICE)
    columns = builder.options.columns
    extra = (source for _, source in columns.sources(builder.options.fields))
    for place, record in _parquet_rows(items, {*columns.read(), *extra}, builder.has_fields):
        _add_item(builder, place, record)
    queries, labels = (_parquet(folder, f"{name}.parquet") for name in ("queries", "labels"))
    for place, record in _parquet_rows(queries, asdict(columns.queries).values()):
        _add_query(builder, place, record)
    numbers = builder.options.pair_signals
    names = (*asdict(columns.labels).values(), *numbers)
    for place, record in _parquet_rows(labels, names):
        if not queries:
            _need_parquet(folder, "queries.parquet", _QUERIES_ADVICE)
        _add_label(builder, place, record)
    pairs = _parquet(folder, "pairs.parquet") if numbers else []
    for place, record in _parquet_rows(pairs, names):
        _add_pair(builder, place, record)


def _need_parquet(folder: Path, name: str, advice: str) -> Sequence[Path]:
    if not (files := _parquet(folder, name)):
        raise DataError(f"{folder} has no {name}: {advice}.")
    return files


def _parquet(folder: Path, name: str) -> Sequence[Path]:
    path = folder / name
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []


def _parquet_rows(
    files: Sequence[Path],
    columns: Collection[str],
    tell: Callable[[Iterable[str], int], object] = lambda *_: None,
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The named columns, row by row; `tell` gets all columns and the rows of each file first."""
    # pyarrow.parquet is loaded only by those who read it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in files:
        number = 0
        try:
            with pq.ParquetFile(path) as file:
                tell(file.schema_arrow.names, file.metadata.num_rows)
                present = [name for name in columns if name in file.schema_arrow.names]
                for batch in file.iter_batches(batch_size=8192, columns=present):
                    for record in batch.to_pylist():
                        number += 1
                        yield Place(path, number, "row"), record
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise DataError(
                f"{path} is no parquet file or damaged ({reason}); write it again."
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: a text after row {number} is not UTF-8; write it again as UTF-8."
            ) from error


def read_beir(folder: Path, builder: Builder) -> None:
    """corpus.jsonl (_id, title, text), queries.jsonl (_id, text), qrels/{train,dev,test}.tsv.

    Each file plain or .gz. The qrels have a header line `query-id corpus-id score`.
    """
    corpus = need(folder, "corpus.jsonl", "write one item a line, with _id, title and text")
    for place, record in json_records(corpus):
        _add_item(builder, place, record, id_key="_id")
    found = {split: path for split in SPLITS if (path := find(folder / "qrels", f"{split}.tsv"))}
    queries = find(folder, "queries.jsonl")
    if found and queries is None:
        need(
            folder, "queries.jsonl", "qrels need queries: write one query a line, with _id and text"
        )
    for place, record in json_records(queries) if queries else ():
        builder.query(place, id_field(record, "_id", place), text_field(record, "text", place))
    for split, path in found.items():
        for place, (query, item, score) in table(path, ("query-id", "corpus-id", "score")):
            builder.assign(place, query, split)
            builder.judgement(place, query, item, parse_number(score, "score", place))
