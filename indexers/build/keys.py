"""Cache keys of a whole side: 16 bytes each in one array, and which of them a segment of the cache
has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cogr.prompts import Prompt
from indexers.generators.protocol import Reads

SIZE = 16
"""Bytes of a key."""


def request_key(id_: str, prompt: Prompt, reads: Reads) -> bytes:
    """The cache key of one entity's request: the prompt, and the entity's id too where the
    generator reads the entity.

    The generator's fingerprint itself names the cache's folder, so it is not hashed again.
    """
    own = id_ if reads == "entity" else ""
    data = f"{own}\0{prompt.text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=SIZE).digest()


class Keys:
    """Keys by position.

    Args:
        data: all of them, one after the other.
    """

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> Keys:
        """From keys one by one."""
        data = bytearray()
        for key in keys:
            data += key
        return cls(data)

    def __len__(self) -> int:
        return len(self._data) // SIZE

    def __getitem__(self, at: int) -> bytes:
        return bytes(self._data[at * SIZE : (at + 1) * SIZE])

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))

    def take(self, positions: NDArray[np.uint32]) -> Keys:
        """The keys of these positions."""
        return Keys(self._halves[positions].tobytes())

    def find(self, others: Keys) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """All pairs of equal keys: positions among the others, ascending, and positions here."""
        order, sorted_heads = self._order
        heads, tails = others._halves.T
        first, last = (np.searchsorted(sorted_heads, heads, side) for side in ("left", "right"))
        counts = last - first
        rows = np.repeat(np.arange(len(heads)), counts)
        # Of each range first .. last, all places.
        places = np.arange(len(rows)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        positions = order[places]
        same = tails[rows] == self._halves[positions, 1]
        return rows[same], positions[same]

    @cached_property
    def _order(self) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """Positions sorted by the first half of their keys, and these halves: 12 bytes a key."""
        heads = self._halves[:, 0]
        order = np.argsort(heads).astype(np.uint32)
        return order, heads[order]

    @property
    def _halves(self) -> NDArray[np.uint64]:
        """Shape (n, 2)."""
        return np.frombuffer(self._data, np.uint64).reshape(-1, 2)
