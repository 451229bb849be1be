"""The arrays of an inverted index over keyword sets, and how they are built: vectorised, batch by
batch, in mapped files.

Entities and keywords are numbered by rank in code-point order. `cogr.matching.mirror` searches the
arrays.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyroaring import BitMap

from cogr.errors import DataError
from cogr.mapped import SortedStrings, Spool, Strings, StringsSpool, integers, scratch
from cogr.matching import bm25


def to_bitmap(numbers: NDArray[np.uint32]) -> BitMap:
    # pyroaring reads arrays of the standard library ten times faster than numpy's.
    return BitMap(array("I", numbers.tobytes()))


def to_array(bitmap: BitMap) -> NDArray[np.uint32]:
    """The numbers of a bitmap, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint32)


AT_ONCE = 1 << 18
"""Words that are merged at once, about; some 100 bytes each."""


@dataclass(frozen=True)
class Postings:
    """An inverted index and its forward side, as flat arrays. Below, n entities, v keywords, p
    pairs of both.

    Attributes:
        ids: the entities' ids; an entity's dense id is its rank.
        terms: the vocabulary; a keyword's number is its rank.
        starts: int64, (v + 1,): keyword t has entities[starts[t] : starts[t + 1]].
        entities: uint32, (p,): dense ids, ascending within a keyword.
        set_starts: int64, (n + 1,): entity e has set_terms[set_starts[e] : set_starts[e + 1]].
        set_terms: uint32, (p,): keyword numbers, in generation order, the own text last unless it
            was generated.
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
        """The numbers of an entity's keywords, uint32, (keywords,)."""
        return self.set_terms[self.set_starts[entity] : self.set_starts[entity + 1]]


class PostingsBuilder:
    """Collects batches and turns them into `Postings`. Memory: one batch, or one range of the
    vocabulary; the rest is in mapped files.

    Raises StorageError when the disk of temporary files is full.
    """

    def __init__(self) -> None:
        self._ids, self._runs = StringsSpool(), StringsSpool()
        self._codes, self._lengths, self._own = Spool(), Spool(), Spool()
        # Of each batch: how many entities it has, how many pairs, how many distinct words.
        self._batches: list[tuple[int, int, int]] = []

    def add(
        self, ids: pa.Array, keywords: pa.Array, counts: NDArray[np.int64], own: pa.Array
    ) -> None:
        """Add one batch, as Arrow strings.

        Args:
            ids: of the entities, ascending.
            keywords: of all entities, one after the other; repeats within one are dropped.
            counts: how many of them belong to each entity.
            own: own texts as keywords, "" for none.
        """
        rows = len(ids)
        run, codes = _encode(pa.concat_arrays([keywords, own]))
        # The own text comes after its entity's keywords.
        row_of = np.repeat(np.arange(rows), counts + 1)
        is_own = np.zeros(len(codes), bool)
        is_own[np.cumsum(counts + 1) - 1] = True
        ordered = np.empty(len(codes), np.int32)
        ordered[~is_own], ordered[is_own] = codes[: len(codes) - rows], codes[len(codes) - rows :]
        kept = _first_occurrences(row_of, ordered)
        self._ids.append(ids)
        self._runs.append(run)
        self._codes.append(ordered[kept])
        self._lengths.append(np.bincount(row_of[kept], minlength=rows))
        self._own.append(ordered[is_own])
        self._batches.append((rows, int(kept.sum()), len(run)))

    def finish(self) -> Postings:
        """The postings of everything added.

        Raises DataError when ids are not ascending or repeat.
        """
        ids = SortedStrings(self._ids.arrow())
        _check_ascending(ids.arrow)
        sizes = np.array(self._batches, np.int64).reshape(-1, 3)
        of_entities, of_pairs, runs = map(_slices, sizes.T.tolist())
        terms, numbers = _merge_runs(Strings(self._runs.arrow()), runs)
        codes, lengths = self._codes.array(np.int32), self._lengths.array(np.int64)
        own_codes, own = self._own.array(np.int32), scratch(len(ids), np.int32)
        pairs, set_terms = scratch(len(codes), np.uint64), scratch(len(codes), np.uint32)
        for rows, here, run in zip(of_entities, of_pairs, runs, strict=True):
            number = numbers[run]
            own[rows] = np.append(number, -1).astype(np.int32)[own_codes[rows]]
            set_terms[here] = number[codes[here]]
            dense = np.arange(rows.start, rows.stop, dtype=np.uint64)
            pairs[here] = np.repeat(dense, lengths[rows])
            pairs[here] |= set_terms[here].astype(np.uint64) << np.uint64(32)
        # Keyword by keyword, and the entities of each ascending.
        pairs.sort()
        starts = np.searchsorted(pairs, np.arange(len(terms) + 1, dtype=np.uint64) << np.uint64(32))
        of_terms = scratch(len(codes), np.uint32)
        np.copyto(of_terms, pairs, casting="unsafe")
        return Postings(
            ids=ids,
            terms=terms,
            starts=starts,
            entities=of_terms,
            set_starts=_starts(lengths),
            set_terms=set_terms,
            own=own,
            length_codes=bm25.length_codes(lengths),
        )


def _encode(words: pa.Array) -> tuple[pa.Array, NDArray[np.int32]]:
    encoded = words.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    distinct = encoded.dictionary.take(order)
    rank = np.empty(len(order), np.int32)
    rank[integers(order)] = np.arange(len(order))
    # "" is the first word, if any.
    blank = int(len(distinct) > 0 and not distinct[0].as_py())
    return distinct[blank:], rank[integers(encoded.indices)] - np.int32(blank)


def _first_occurrences(rows: NDArray[np.int64], codes: NDArray[np.int32]) -> NDArray[np.bool_]:
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


def _merge_runs(words: Strings, runs: Sequence[slice]) -> tuple[SortedStrings, NDArray[np.uint32]]:
    numbers, terms, count = scratch(len(words), np.uint32), StringsSpool(), 0
    for parts in _ranges(words, runs):
        merged = pa.concat_arrays([words.arrow[part] for part in parts]).dictionary_encode()
        order = pc.sort_indices(merged.dictionary)
        rank = np.empty(len(order), np.uint32)
        rank[integers(order)] = np.arange(count, count + len(order))
        ranks = rank[integers(merged.indices)]
        for part, own in zip(
            parts,
            np.split(ranks, np.cumsum([part.stop - part.start for part in parts])[:-1]),
            strict=True,
        ):
            numbers[part] = own
        terms.append(merged.dictionary.take(order))
        count += len(order)
    return SortedStrings(terms.arrow()), numbers


def _ranges(words: Strings, runs: Sequence[slice]) -> Iterator[list[slice]]:
    pieces = -(-len(words) // AT_ONCE)
    sample = sorted(words[:: max(1, AT_ONCE // 64)])
    bounds = sorted({sample[len(sample) * piece // pieces] for piece in range(1, pieces)})
    starts = [run.start for run in runs]
    for bound in bounds:
        ends = [
            bisect_left(words, bound, start, run.stop)
            for start, run in zip(starts, runs, strict=True)
        ]
        yield [*map(slice, starts, ends)]
        starts = ends
    if runs:
        yield [slice(start, run.stop) for start, run in zip(starts, runs, strict=True)]


def _slices(sizes: Sequence[int]) -> list[slice]:
    return [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = scratch(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _check_ascending(ids: pa.Array) -> None:
    if len(ids) > 1 and not pc.all(pc.less(ids[:-1], ids[1:])).as_py():
        first, second = next(pair for pair in pairwise(ids.to_pylist()) if pair[0] >= pair[1])
        raise DataError(f"Ids must be ascending without repeats, but {second!r} follows {first!r}.")
