"""Sorted distinct strings in two flat arrays: a look-up table without a Python object per string.

The order is by code point, which is the byte order of UTF-8. The arrays may be memory-mapped, so that processes share
them. Read-only; a look-up is a binary search.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# pa.array, Array.to_numpy and Python scalars in pyarrow.compute import pandas wherever that is installed, which costs a
# second at the start of every process. The two functions below do not.


def arrow_strings(texts: Iterable[str]) -> pa.Array:
    """An Arrow array of strings. Raises UnicodeEncodeError for a lone surrogate."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return pa.LargeStringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def integers(array: pa.Array) -> NDArray[Any]:
    """The values of an Arrow array of integers without nulls; no copy."""
    values = np.frombuffer(array.buffers()[1] or b"", array.type.to_pandas_dtype())
    return values[array.offset : array.offset + len(array)]


class SortedStrings:
    """Strings by rank, and ranks by string.

    Args:
        offsets: int64, shape (n + 1,): string i is bytes offsets[i] to offsets[i + 1].
        data: uint8, the UTF-8 of all strings, ascending and without repeats.
    """

    def __init__(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        self.offsets = offsets
        self.data = data
        # Scalar reads of a memoryview cost a third of numpy's.
        self._offsets = offsets.data
        self._data = data.data

    @classmethod
    def from_arrow(cls, strings: pa.Array) -> SortedStrings:
        """From an Arrow string array that is sorted and without repeats or nulls."""
        strings = pa.concat_arrays([strings.cast(pa.large_string())])  # drops a slice's offset
        _, offsets, data = strings.buffers()
        starts = np.frombuffer(offsets, np.int64)[: len(strings) + 1] if len(strings) else np.zeros(1, np.int64)
        return cls(starts, np.frombuffer(data, np.uint8)[: starts[-1]] if data else np.zeros(0, np.uint8))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, rank: int) -> str:
        if not 0 <= rank < len(self):
            raise IndexError(f"rank {rank} of {len(self)} strings")
        return str(self._bytes(rank), "utf-8")

    def __iter__(self) -> Iterator[str]:
        return (self[rank] for rank in range(len(self)))

    def find(self, text: str) -> int:
        """The rank of a string, or -1."""
        # A lone surrogate is never in the table; "surrogatepass" lets it be looked for.
        wanted = text.encode("utf-8", "surrogatepass")
        rank = bisect_left(range(len(self)), wanted, key=self._bytes)
        return rank if rank < len(self) and self._bytes(rank) == wanted else -1

    def _bytes(self, rank: int) -> bytes:
        return bytes(self._data[self._offsets[rank] : self._offsets[rank + 1]])
