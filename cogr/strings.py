"""Strings in two flat arrays, without a Python object per string: tables to read from and to look
up in.

The arrays may be memory-mapped, so that processes share them, or that a side of a catalogue need
not be in memory. Sorted is by code point, which is the byte order of UTF-8.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cogr.spool import Spool

# pa.array, Array.to_numpy, DataType.to_pandas_dtype and Python scalars in pyarrow.compute import
# pandas: some fail where there is none, and where there is one, it costs a
# second at the start of every process. The two functions below do not.


def arrow_strings(texts: Iterable[str]) -> pa.Array:
    """An Arrow array of strings. Raises UnicodeEncodeError for a lone surrogate."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return pa.LargeStringArray.from_buffers(
        len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))
    )


def integers(array: pa.Array) -> NDArray[Any]:
    """The values of an Arrow array of integers without nulls; no copy."""
    values = np.frombuffer(array.buffers()[1] or b"", np.dtype(str(array.type)))
    return values[array.offset : array.offset + len(array)]


def flat(strings: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Offsets, from 0, and UTF-8 of an Arrow string array without nulls."""
    strings = pa.concat_arrays([strings.cast(pa.large_string())])  # drops a slice's offset
    _, offsets, data = strings.buffers()
    starts = (
        np.frombuffer(offsets, np.int64)[: len(strings) + 1]
        if len(strings)
        else np.zeros(1, np.int64)
    )
    return starts, np.frombuffer(data, np.uint8)[: starts[-1]] if data else np.zeros(0, np.uint8)


class Strings(Sequence[str]):
    """Strings by position.

    Args:
        offsets: int64, shape (n + 1,): string i is bytes offsets[i] to offsets[i + 1].
        data: uint8, the UTF-8 of all strings.
    """

    def __init__(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        self.offsets = offsets
        self.data = data
        # Scalar reads of a memoryview cost a third of numpy's.
        self._offsets = offsets.data
        self._data = data.data

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[rank] for rank in range(*at.indices(len(self)))]
        if not 0 <= at < len(self):
            raise IndexError(f"rank {at} of {len(self)} strings")
        return str(self._bytes(at), "utf-8")

    def arrow(self) -> pa.Array:
        """The same as an Arrow array; no copy."""
        return pa.LargeStringArray.from_buffers(
            len(self), pa.py_buffer(self.offsets), pa.py_buffer(self.data)
        )

    def _bytes(self, at: int) -> bytes:
        return bytes(self._data[self._offsets[at] : self._offsets[at + 1]])


class SortedStrings(Strings):
    """Distinct strings by rank, and ranks by string: a look-up is a binary search.

    Arguments as of `Strings`, ascending.
    """

    @classmethod
    def from_arrow(cls, strings: pa.Array) -> SortedStrings:
        """From an Arrow string array that is sorted and without repeats or nulls."""
        return cls(*flat(strings))

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self.find(text) >= 0

    def find(self, text: str) -> int:
        """The rank of a string, or -1."""
        # A lone surrogate is never in the table; "surrogatepass" lets it be looked for.
        wanted = text.encode("utf-8", "surrogatepass")
        rank = bisect_left(range(len(self)), wanted, key=self._bytes)
        return rank if rank < len(self) and self._bytes(rank) == wanted else -1


class StringsSpool:
    """Strings that are appended, and then read from mapped files.

    Raises StorageError when the disk is full.
    """

    def __init__(self) -> None:
        self._offsets, self._data = Spool(), Spool()
        self._offsets.append(np.zeros(1, np.int64))
        self._bytes = 0

    def append(self, strings: pa.Array) -> None:
        """Add an Arrow array of strings without nulls."""
        offsets, data = flat(strings)
        self._offsets.append(offsets[1:] + self._bytes)
        self._data.append(data)
        self._bytes += len(data)

    def strings(self) -> Strings:
        """All of them. Nothing may be appended any more."""
        return Strings(self._offsets.array(np.int64), self._data.array(np.uint8))

    def sorted_strings(self) -> SortedStrings:
        """As `strings`, for strings that were appended in ascending order without repeats."""
        return SortedStrings(self._offsets.array(np.int64), self._data.array(np.uint8))


class StringIndex:
    """Positions of strings in any order, by sorted 64-bit hashes: 12 bytes a string.

    Args:
        strings: all of them.
        hashes: int64, Python's `hash` of each, which holds for this process.
    """

    def __init__(self, strings: Strings, hashes: NDArray[np.int64]) -> None:
        order = np.argsort(hashes, kind="stable")
        self._strings = strings
        self._sorted = hashes[order]
        self._positions = order.astype(np.uint32)
        # The bisect module reads a memoryview without a Python call a step.
        self._hashes = self._sorted.data

    def find(self, text: str) -> int:
        """The first position of a string, or -1."""
        wanted = hash(text)
        at = bisect_left(self._hashes, wanted)
        while at < len(self._hashes) and self._hashes[at] == wanted:
            position = int(self._positions[at])
            if self._strings[position] == text:
                return position
            at += 1
        return -1

    def repeats(self) -> list[int]:
        """The positions with a string that was there before, ascending."""
        alike = np.sort(self._positions[1:][self._sorted[1:] == self._sorted[:-1]])
        return [at for at in alike.tolist() if self.find(self._strings[at]) != at]
