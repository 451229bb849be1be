"""Parquet files of ours, read whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq


def read_table(file: IO[bytes], columns: Sequence[str] | None = None) -> pa.Table:
    """A table, or some columns of it. Raises ArrowInvalid when it is no Parquet file.

    In the calling thread: those of `pq.read_table` may still let go of the file when the process ends, which aborts it.
    """
    return pq.ParquetFile(file).read(columns=None if columns is None else list(columns), use_threads=False)
