"""Data that grow with a catalogue: flat arrays in memory-mapped temporary files, and strings over
them.

The kernel drops mapped pages when another program needs the memory, so a whole catalogue fits. A
temporary file has no name and vanishes with its process, however that ends. TMPDIR names the
folder. Data that are to be kept belong in a `cogr.store.Store`.

The arrays are Arrow's own buffers, but not an Arrow IPC file: that holds batches, and reading
400,000 items in the order of their ids takes 3.3 s over batches and 0.4 s over flat arrays.
"""

from __future__ import annotations

import mmap
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cogr.store import storage_errors

_SMALL = 1 << 20
"""Bytes that are kept in memory instead of in a file."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


class Spool:
    """Bytes that are appended, and then read as one array.

    Raises StorageError when the disk is full.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_SMALL)  # noqa: SIM115
        self._size = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add the bytes of a contiguous array."""
        with storage_errors(tempfile.gettempdir()):
            self._file.write(values.data)
        self._size += values.nbytes

    def array(self, dtype: type[_Scalar]) -> NDArray[_Scalar]:
        """All bytes as one read-only array. After this call nothing may be appended."""
        with self._file as file, storage_errors(tempfile.gettempdir()):
            if self._size <= _SMALL:
                file.seek(0)
                return np.frombuffer(file.read(), dtype)
            file.flush()
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)


def scratch(count: int, dtype: type[_Scalar]) -> NDArray[_Scalar]:
    """Zeros that may be written in any order; shape (count,).

    Raises StorageError when the disk is full.
    """
    size = count * np.dtype(dtype).itemsize
    if size <= _SMALL:
        return np.zeros(count, dtype)
    with tempfile.TemporaryFile() as file, storage_errors(tempfile.gettempdir()):
        # The file gets its full size at once: writing to a mapped page on a full disk would kill
        # the process without a message.
        for start in range(0, size, _SMALL):
            file.write(bytes(min(_SMALL, size - start)))
        file.flush()
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype)


# pa.array, Array.to_numpy, DataType.to_pandas_dtype and Python scalars in pyarrow.compute import
# pandas. Some of them fail without it; with it, every process starts a second later. So Arrow
# arrays are made from buffers, here and below.


def arrow_strings(texts: Iterable[str]) -> pa.LargeStringArray:
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


class Strings(Sequence[str]):
    """Strings by position, without a Python object for each.

    Args:
        arrow: an array of large strings without nulls, whole (no slice of another array).
    """

    def __init__(self, arrow: pa.LargeStringArray) -> None:
        self.arrow = arrow
        _, offsets, data = arrow.buffers()
        # Scalar reads of a memoryview cost a third of numpy's.
        self._offsets = np.frombuffer(offsets or b"", np.int64).data
        self._data = memoryview(data or b"")
        self._size = len(arrow)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[rank] for rank in range(*at.indices(len(self)))]
        if not 0 <= at < self._size:
            raise IndexError(f"rank {at} of {len(self)} strings")
        return str(self._bytes(at), "utf-8")

    def _bytes(self, at: int) -> bytes:
        return bytes(self._data[self._offsets[at] : self._offsets[at + 1]])


class SortedStrings(Strings):
    """Distinct strings by rank, and ranks by string: a look-up is a binary search.

    The array ascends by code point, which is the byte order of UTF-8.
    """

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self.find(text) >= 0

    def find(self, text: str) -> int:
        """The rank of a string, or -1."""
        # The array has no lone surrogates; "surrogatepass" allows a search for them.
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
        self._count = self._bytes = 0

    def append(self, strings: pa.Array) -> None:
        """Add an Arrow array of strings without nulls."""
        # Joining a slice gives an array whose buffers begin with its first string.
        strings = pa.concat_arrays([strings.cast(pa.large_string())])
        _, offsets, data = strings.buffers()
        if len(strings):
            ends = np.frombuffer(offsets, np.int64)[1 : len(strings) + 1]
            self._offsets.append(ends + self._bytes)
            self._data.append(np.frombuffer(data or b"", np.uint8)[: ends[-1]])
            self._count += len(strings)
            self._bytes += int(ends[-1])

    def arrow(self) -> pa.LargeStringArray:
        """All strings. After this call nothing may be appended."""
        return pa.LargeStringArray.from_buffers(
            self._count,
            pa.py_buffer(self._offsets.array(np.int64)),
            pa.py_buffer(self._data.array(np.uint8)),
        )


class StringIndex:
    """Positions of strings in any order, by sorted 64-bit hashes: 12 bytes a string."""

    def __init__(self, strings: Strings) -> None:
        hashes = np.fromiter(map(hash, strings), np.int64, len(strings))
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
        """The positions of strings that occur at an earlier position too, ascending."""
        alike = np.sort(self._positions[1:][self._sorted[1:] == self._sorted[:-1]])
        return [at for at in alike.tolist() if self.find(self._strings[at]) != at]
