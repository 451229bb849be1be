"""Parquet files of ours, read whole."""

from __future__ import annotations

from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq


def read_table(file: IO[bytes], schema: pa.Schema) -> pa.Table:
    """The columns that a schema names, of its types.

    In the calling thread: those of `pq.read_table` may still let go of the file when the process
    ends, which aborts it.

    Raises:
        ArrowInvalid: no Parquet file, a column is missing or has values of another kind.
    """
    table = pq.ParquetFile(file).read(columns=schema.names, use_threads=False)
    if missing := set(schema.names) - set(table.column_names):
        raise pa.ArrowInvalid(f"it has no column {min(missing)}")
    return table.select(schema.names).cast(schema)
