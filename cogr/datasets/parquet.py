"""The format `parquet`: items.parquet, queries.parquet and labels.parquet in one folder, with the
columns of `jsonl`.

Each may be one file or, as Spark writes them, a folder of files. Read in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cogr.datasets.building import Builder
from cogr.datasets.fields import LabelColumns, QueryColumns
from cogr.datasets.jsonl import ITEMS_ADVICE, QUERIES_ADVICE, add_item, add_label, add_query
from cogr.datasets.loader import Loader
from cogr.datasets.reading import Place
from cogr.errors import DataError


def read(folder: Path, builder: Builder) -> None:
    items = _files(folder, "items.parquet", ITEMS_ADVICE)
    columns, options = builder.options.columns, builder.options
    extra = (source for _, source in columns.sources(options.fields))
    for place, record in _records(items, {*columns.read(), *extra}, builder.has_fields):
        add_item(builder, place, record)
    queries, labels = _find(folder, "queries.parquet"), _find(folder, "labels.parquet")
    for place, record in _records(queries, _names(columns.queries)):
        add_query(builder, place, record)
    for place, record in _records(labels, _names(columns.labels)):
        if not queries:
            _files(folder, "queries.parquet", QUERIES_ADVICE)
        add_label(builder, place, record)


def _files(folder: Path, name: str, advice: str) -> Sequence[Path]:
    if not (files := _find(folder, name)):
        raise DataError(f"{folder} has no {name}: {advice}.")
    return files


def _find(folder: Path, name: str) -> Sequence[Path]:
    path = folder / name
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []


def _names(columns: QueryColumns | LabelColumns) -> Collection[str]:
    return asdict(columns).values()


def _records(
    files: Sequence[Path],
    columns: Collection[str],
    tell: Callable[[Iterable[str], int], object] = lambda *_: None,
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The named columns, row by row; all columns of each file are told before its rows."""
    # pyarrow is loaded only by those who read parquet.
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


LOADER = Loader("parquet", read, own=True)
