"""Sparse matrices (scipy CSR, float32), row vectors, and latent semantic analysis. Nothing here
knows about items or queries.

Latent semantic analysis makes texts, and sets of items, points of one space in which texts that
share no word may still be close (Deerwester et al. 1990): a truncated singular value decomposition
of a tf-idf matrix, by random projections (Halko, Martinsson and Tropp 2011).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cogr.mapped import scratch

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Csr = Any
"""scipy.sparse.csr_matrix (scipy ships no types)."""


BLOCK = 1 << 20
"""Stored values in a block, where a copy of the whole matrix would take too much memory."""


def flat(rows: Iterable[Iterable[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Rows of column ids, one after the other, and where each row begins and the last one ends; 4
    bytes an id.
    """
    columns, starts = array("i"), array("i", [0])
    for row in rows:
        columns.extend(row)
        starts.append(len(columns))
    return np.asarray(columns, np.int32), np.asarray(starts, np.int32)


def counts_of(rows: Iterable[Iterable[int]], width: int = 0) -> Csr:
    """How often each column id occurs in each row; as wide as the ids ask for at least."""
    columns, starts = flat(rows)
    shape = (starts.size - 1, max(width, int(columns.max(initial=0)) + 1))
    matrix = sp.csr_matrix((np.ones(columns.size, np.float32), columns, starts), shape=shape)
    matrix.sum_duplicates()
    return matrix


def filled(count: int, dtype: Any) -> NDArray[Any]:
    """Ones, in a mapped temporary file where they are many."""
    ones = scratch(count, dtype)
    ones[:] = 1
    return ones


def row_blocks(matrix: Csr) -> Iterator[slice]:
    """Runs of rows with about `BLOCK` stored values each."""
    rows, stored = matrix.shape[0], int(matrix.indptr[-1])
    bounds = np.searchsorted(matrix.indptr, np.arange(BLOCK, stored + BLOCK, BLOCK), "left")
    bounds = np.unique(np.minimum([0, *bounds, rows], rows))
    for first, end in pairwise(bounds.tolist()):
        yield slice(first, end)


def column_counts(matrix: Csr) -> Ints:
    """How many stored values each column has, (columns,)."""
    counts = np.zeros(matrix.shape[1], dtype=np.int64)
    for at in range(0, matrix.nnz, BLOCK):
        counts += np.bincount(matrix.indices[at : at + BLOCK], minlength=counts.size)
    return counts


def with_data(matrix: Csr, data: Any) -> Csr:
    """The same places with other values.

    The places are shared, so that neither matrix may be sorted in place.
    """
    # scipy's constructor checks what is known to hold here, and takes ten times as long.
    twin = copy(matrix)
    twin.data = np.asarray(data, dtype=np.float32)
    return twin


def _picked(matrix: Csr, places: Ints, starts: Ints) -> Csr:
    twin = copy(matrix)
    twin.data, twin.indices = matrix.data[places], matrix.indices[places]
    twin.indptr = starts.astype(matrix.indptr.dtype)
    twin.has_sorted_indices = False
    twin.sort_indices()
    return twin


def binary(matrix: Csr) -> Csr:
    """A matrix with ones where this one has values."""
    return with_data(matrix, np.ones(matrix.nnz))


def row_of(matrix: Csr) -> Ints:
    """The row of each stored value."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def scale_columns(matrix: Csr, weights: Any) -> Csr:
    """Each column times its weight, (columns,)."""
    return with_data(matrix, matrix.data * weights[matrix.indices])


def scale_rows(matrix: Csr, weights: Any) -> Csr:
    """Each row times its weight, (rows,)."""
    return with_data(matrix, matrix.data * np.repeat(weights, np.diff(matrix.indptr)))


def row_sums(matrix: Csr) -> Floats:
    """The sum of each row, float32, (rows,)."""
    return np.asarray(matrix.sum(axis=1), dtype=np.float32).ravel()


def among(matrix: Csr, columns: Ints) -> Csr:
    """The matrix with all other columns empty."""
    kept = np.zeros(matrix.shape[1], dtype=bool)
    kept[columns] = True
    stored = kept[matrix.indices]
    twin = copy(matrix)
    twin.data, twin.indices = matrix.data[stored], matrix.indices[stored]
    before = np.concatenate([[0], np.cumsum(stored)])
    twin.indptr = before[matrix.indptr].astype(matrix.indptr.dtype)
    return twin


def unit_rows(matrix: Csr) -> Csr:
    """Rows scaled to length 1; empty rows stay."""
    return scale_rows(matrix, row_scales(matrix))


def row_scales(matrix: Csr) -> Floats:
    """What each row is multiplied by in `unit_rows`, (rows,)."""
    squares = np.zeros(matrix.shape[0])
    for rows in row_blocks(matrix):
        starts = matrix.indptr[rows.start : rows.stop + 1]
        row = np.repeat(np.arange(starts.size - 1), np.diff(starts))
        data = matrix.data[starts[0] : starts[-1]].astype(np.float64)
        squares[rows] = np.bincount(row, data**2, minlength=starts.size - 1)
    scales: Floats = 1 / np.maximum(np.sqrt(squares), 1e-12)
    return scales


def top_rows(scores: Csr, k: int) -> Csr:
    """The k highest values of every row, which must not be negative; zeros are left out.

    Rows are sliced one by one: selecting among the few stored values beats any selection over whole
    rows of mostly equal ones (zeros) by far.
    """
    kept, starts = [], scores.indptr
    for row in range(scores.shape[0]):
        first, end = starts[row], starts[row + 1]
        if end - first > k:
            best = np.argpartition(scores.data[first:end], end - first - k)[end - first - k :]
            kept.append(first + best)
        else:
            kept.append(np.arange(first, end))
    places = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
    ends = np.cumsum(np.minimum(np.diff(starts), k))
    stored = scores.data[places] != 0
    if not stored.all():
        counts = np.concatenate([[0], np.cumsum(stored)])
        places, ends = places[stored], counts[ends]
    return _picked(scores, places, np.concatenate([[0], ends]))


def row_max(matrix: Csr) -> Floats:
    """The highest value of every row, which must not be negative; 0 for an empty row."""
    highest = np.zeros(matrix.shape[0], dtype=np.float32)
    filled = np.flatnonzero(np.diff(matrix.indptr))
    if filled.size:
        highest[filled] = np.maximum.reduceat(matrix.data, matrix.indptr[filled])
    return highest


def kth_highest(matrix: Csr, k: int) -> Floats:
    """The k-th highest stored value of every row; 0 where there are fewer."""
    result = np.zeros(matrix.shape[0], dtype=np.float32)
    for row in np.flatnonzero(np.diff(matrix.indptr) >= k):
        values = matrix.data[matrix.indptr[row] : matrix.indptr[row + 1]]
        result[row] = np.partition(values, values.size - k)[values.size - k]
    return result


def values_at(matrix: Csr, places: Ints, scratch: Floats) -> Floats:
    """Values at places of the flattened matrix; `scratch` is as long as that, all zeros before and
    after.
    """
    stored = matrix.indices
    if matrix.shape[0] > 1:
        stored = row_of(matrix) * matrix.shape[1] + stored
    scratch[stored] = matrix.data
    values = scratch[places]
    scratch[stored] = 0
    return values


def top_dense(values: Floats, k: int) -> Csr:
    """The k highest positive values of every row of a dense matrix."""
    if values.shape[1] > k:
        columns = np.sort(np.argpartition(values, -k, axis=1)[:, -k:], axis=1)
        best = np.take_along_axis(values, columns, axis=1)
    else:
        columns = np.broadcast_to(np.arange(values.shape[1]), values.shape)
        best = values
    kept = best > 0
    starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return sp.csr_matrix((best[kept], columns[kept], starts), shape=values.shape)


DIMENSIONS = 128
SPARE, REFINEMENTS = 16, 3
"""Random directions beyond `DIMENSIONS`, and rounds of refining them."""

_SAMPLE = 200_000
"""Most items that directions are computed from; of more, evenly spaced ones."""

LSA_ROWS = 16_384
"""Texts whose points are computed at once."""

GRID = 2048
"""Coordinates are multiples of 1/GRID, so that cosines are exact in float32: in whatever order they
are summed up, alone or in a batch, on whatever machine.
"""


def term_points(tfidf: Csr, df: Ints) -> Floats:
    """Right singular vectors of the items' tf-idf matrix, (vocabulary, dimensions): a text's point
    is its terms' weights times these.

    Terms that fewer than two items have get zeros. The same matrix gives the same values: random
    directions are fixed, each vector's largest entry is positive, and values have the precision of
    float16, in which they are saved.
    """
    kept = np.flatnonzero(df >= 2)
    if tfidf.shape[0] > _SAMPLE:
        tfidf = tfidf[np.arange(_SAMPLE) * tfidf.shape[0] // _SAMPLE]
    directions = _right_vectors(tfidf[:, kept]) if kept.size else np.zeros((0, 0), np.float32)
    points = np.zeros((df.size, directions.shape[1]), dtype=np.float32)
    points[kept] = directions.astype(np.float16)
    return points


def _right_vectors(matrix: Csr) -> Floats:
    transposed = matrix.T.tocsr()
    width = min(DIMENSIONS + SPARE, *matrix.shape)
    basis = np.random.default_rng(0).standard_normal((matrix.shape[1], width), dtype=np.float32)
    for _ in range(REFINEMENTS):
        basis, _ = np.linalg.qr(transposed @ (matrix @ basis))
    left, _ = np.linalg.qr(matrix @ basis)
    _, values, right = np.linalg.svd((transposed @ left).T, full_matrices=False)
    right = right[: min(DIMENSIONS, int((values > 1e-4 * values[:1]).sum()))].T
    largest = right[np.abs(right).argmax(axis=0), np.arange(right.shape[1])]
    vectors: Floats = right * np.sign(largest)
    return vectors


def points(weights: Csr, terms: Floats) -> Floats:
    """Points of length 1 of texts with these term weights, (rows, dimensions); many of them lie in
    a mapped temporary file.
    """
    shape = (weights.shape[0], terms.shape[1])
    result = scratch(shape[0] * shape[1], np.float32).reshape(shape)
    for at in range(0, shape[0], LSA_ROWS):
        result[at : at + LSA_ROWS] = unit(weights[at : at + LSA_ROWS] @ terms)
    return result


def unit(rows: Floats) -> Floats:
    """Rows scaled to length 1, on `GRID`; zeros stay."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    scaled = np.rint(rows * (GRID / np.maximum(lengths, 1e-12))[:, None]) / GRID
    units: Floats = scaled.astype(np.float32)
    return units
