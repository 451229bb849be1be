"""Spools: what is too large for memory while a command runs, in temporary files without a name,
read as mapped arrays.

The kernel drops mapped pages when somebody needs their place, so a whole catalogue may lie here. A
file has no name: it is gone with its process, however that ends. TMPDIR says in which folder. What
is to stay belongs in a `cogr.store.Store`.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cogr.store import storage_errors

SMALL = 1 << 20
"""Bytes that are kept in memory instead."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


class Spool:
    """Bytes that are appended, and then read as one array.

    Raises StorageError when the disk is full.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=SMALL)  # noqa: SIM115
        self._size = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add the bytes of a contiguous array."""
        with storage_errors(tempfile.gettempdir()):
            self._file.write(values.data)
        self._size += values.nbytes

    def array(self, dtype: type[_Scalar]) -> NDArray[_Scalar]:
        """All of it, read-only. Nothing may be appended any more."""
        with self._file as file, storage_errors(tempfile.gettempdir()):
            if self._size <= SMALL:
                file.seek(0)
                return np.frombuffer(file.read(), dtype)
            file.flush()
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)


def scratch(count: int, dtype: type[_Scalar]) -> NDArray[_Scalar]:
    """Zeros to write to, in any order; shape (count,).

    Raises StorageError when the disk is full.
    """
    size = count * np.dtype(dtype).itemsize
    if size <= SMALL:
        return np.zeros(count, dtype)
    with tempfile.TemporaryFile() as file, storage_errors(tempfile.gettempdir()):
        # Room is taken at once: a full disk would end the process without a word when a mapped page
        # is written.
        for start in range(0, size, SMALL):
            file.write(bytes(min(SMALL, size - start)))
        file.flush()
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype)
