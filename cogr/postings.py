"""The arrays of an inverted index over keyword sets, and how they are built: vectorised, streaming over batches.

Entities and keywords are numbered by rank in code-point order. What is asked of the arrays is `cogr.mirror`; how they lie
on disk is `cogr.mirrorfile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cogr import bm25
from cogr.errors import DataError
from cogr.strings import SortedStrings, integers

_Number = TypeVar("_Number", bound=np.integer[Any])


@dataclass(frozen=True)
class Postings:
    """An inverted index and its forward side, as flat arrays. Below, n entities, v keywords, p pairs of both.

    Attributes:
        ids: the entities' ids; an entity's dense id is its rank.
        terms: the vocabulary; a keyword's number is its rank.
        starts: int64, (v + 1,): keyword t has entities[starts[t] : starts[t + 1]].
        entities: uint32, (p,): dense ids, ascending within a keyword.
        set_starts: int64, (n + 1,): entity e has set_terms[set_starts[e] : set_starts[e + 1]].
        set_terms: uint32, (p,): keyword numbers, in generation order, the own text last unless it was generated.
        own: int32, (n,): number of the own text as a keyword, -1 for none.
        length_codes: uint8, (n,): Lucene's code of the number of keywords.
    """

    ids: SortedStrings
    terms: SortedStrings
    starts: NDArray[np.int64]
    entities: NDArray[np.uint32]
    set_starts: NDArray[np.int64]
    set_terms: NDArray[np.uint32]
    own: NDArray[np.int32]
    length_codes: NDArray[np.uint8]

    def entities_of(self, term: int) -> NDArray[np.uint32]:
        """Dense ids of the entities that have a keyword, ascending."""
        return self.entities[self.starts[term] : self.starts[term + 1]]

    def set_of(self, entity: int) -> NDArray[np.uint32]:
        """Keyword numbers of an entity."""
        return self.set_terms[self.set_starts[entity] : self.set_starts[entity + 1]]


@dataclass(frozen=True)
class _Chunk:
    """One batch, with keyword codes that only its own dictionary explains. -1 in `own`: none."""

    ids: pa.Array
    dictionary: pa.Array
    lengths: NDArray[np.int64]
    codes: NDArray[np.int32]
    own: NDArray[np.int32]


class PostingsBuilder:
    """Collects batches and turns them into `Postings`. Memory: 8 bytes a pair and the vocabulary, above the result."""

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []

    def add(self, ids: pa.Array, keywords: pa.Array, counts: NDArray[np.int64], own: pa.Array) -> None:
        """One batch, as Arrow strings.

        Args:
            ids: of the entities, ascending.
            keywords: of all entities, one after the other; repeats within one are dropped.
            counts: how many of them belong to each entity.
            own: own texts as keywords, "" for none.
        """
        rows = len(ids)
        words = pa.concat_arrays([keywords, own])
        dictionary, codes = _encode(words)
        # The own text goes behind its entity's keywords.
        row_of = np.repeat(np.arange(rows), counts + 1)
        is_own = np.zeros(len(codes), bool)
        is_own[np.cumsum(counts + 1) - 1] = True
        ordered = np.empty(len(codes), np.int32)
        ordered[~is_own], ordered[is_own] = codes[: len(codes) - rows], codes[len(codes) - rows :]
        kept = _first_occurrences(row_of, ordered)
        lengths = np.bincount(row_of[kept], minlength=rows)
        self._chunks.append(_Chunk(ids, dictionary, lengths, ordered[kept], ordered[is_own]))

    def finish(self) -> Postings:
        """The postings of everything added. Raises DataError when ids are not ascending or repeat."""
        ids = _concat([chunk.ids for chunk in self._chunks])
        _check_ascending(ids)
        terms, numbers = _merge_vocabularies([chunk.dictionary for chunk in self._chunks])
        set_terms = _joined((number[chunk.codes] for chunk, number in self._with(numbers)), np.uint32)
        own = _joined((np.append(number, -1)[chunk.own] for chunk, number in self._with(numbers)), np.int32)
        lengths = _joined((chunk.lengths for chunk in self._chunks), np.int64)
        self._chunks.clear()
        starts, entities = _invert(set_terms, lengths, len(terms))
        return Postings(
            ids=SortedStrings.from_arrow(ids),
            terms=terms,
            starts=starts,
            entities=entities,
            set_starts=_starts(lengths),
            set_terms=set_terms,
            own=own,
            length_codes=bm25.length_codes(lengths),
        )

    def _with(self, numbers: list[NDArray[np.int64]]) -> Iterator[tuple[_Chunk, NDArray[np.int64]]]:
        return zip(self._chunks, numbers, strict=True)


def _encode(words: pa.Array) -> tuple[pa.Array, NDArray[np.int32]]:
    """The distinct words without "", and the number of each word, -1 for ""."""
    encoded = words.dictionary_encode()
    lengths = pc.binary_length(encoded.dictionary)
    kept = integers(lengths) > 0
    numbers = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    return encoded.dictionary.filter(lengths.cast(pa.bool_())), numbers[integers(encoded.indices)]


def _first_occurrences(rows: NDArray[np.int64], codes: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which codes to keep: not those below 0, nor those that their row said before. Rows ascend."""
    kept = codes >= 0
    # Sorted by (code, position), a repeat follows its first occurrence.
    pairs = codes[kept].astype(np.uint64)
    pairs <<= np.uint64(32)
    pairs |= np.flatnonzero(kept).astype(np.uint64)
    pairs.sort()
    at = pairs.astype(np.uint32)
    repeats = (codes[at[1:]] == codes[at[:-1]]) & (rows[at[1:]] == rows[at[:-1]])
    kept[at[1:][repeats]] = False
    return kept


def _merge_vocabularies(dictionaries: list[pa.Array]) -> tuple[SortedStrings, list[NDArray[np.int64]]]:
    """One sorted vocabulary of all batches, and for each batch the number of each of its codes."""
    merged = _concat(dictionaries).dictionary_encode()
    order = pc.sort_indices(merged.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[integers(order)] = np.arange(len(order))
    numbers = rank[integers(merged.indices)]
    cuts = np.cumsum([len(dictionary) for dictionary in dictionaries])[:-1]
    return SortedStrings.from_arrow(merged.dictionary.take(order)), np.split(numbers, cuts) if dictionaries else []


def _invert(
    set_terms: NDArray[np.uint32], lengths: NDArray[np.int64], vocabulary: int
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Starts and dense ids by keyword: one sort of (keyword, entity) packed into 64 bits."""
    pairs = set_terms.astype(np.uint64)
    pairs <<= np.uint64(32)
    pairs |= np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths)
    pairs.sort()
    return _starts(np.bincount(set_terms, minlength=vocabulary)), pairs.astype(np.uint32)


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _joined(parts: Iterator[NDArray[Any]], dtype: type[_Number]) -> NDArray[_Number]:
    arrays = [part.astype(dtype, copy=False) for part in parts]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def _concat(arrays: list[pa.Array]) -> pa.Array:
    # large_string: a big vocabulary has more than 2 GiB of text.
    wide = [array.cast(pa.large_string()) for array in arrays]
    return pa.concat_arrays(wide) if wide else pa.array([], pa.large_string())


def _check_ascending(ids: pa.Array) -> None:
    if len(ids) > 1 and not pc.all(pc.less(ids[:-1], ids[1:])).as_py():
        first, second = next(pair for pair in pairwise(ids.to_pylist()) if pair[0] >= pair[1])
        raise DataError(f"Ids must be ascending without repeats, but {second!r} follows {first!r}.")
