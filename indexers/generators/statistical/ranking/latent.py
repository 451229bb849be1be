"""Latent semantic analysis: texts, and sets of items, as points of one space in which texts that
share no word may still be close (Deerwester et al. 1990).

A truncated singular value decomposition of the items' tf-idf matrix, by random projections (Halko,
Martinsson and Tropp 2011).
"""

from __future__ import annotations

import numpy as np

from cogr.mapped import scratch
from indexers.generators.statistical.ranking.matrices import Csr, Floats, Ints

DIMENSIONS = 128
SPARE, REFINEMENTS = 16, 3
"""Random directions beyond `DIMENSIONS`, and rounds of refining them."""

SAMPLE = 200_000
"""Items, evenly spaced, that directions are found from where there are more."""

BLOCK = 16_384
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
    if tfidf.shape[0] > SAMPLE:
        tfidf = tfidf[np.arange(SAMPLE) * tfidf.shape[0] // SAMPLE]
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
    found = scratch(shape[0] * shape[1], np.float32).reshape(shape)
    for at in range(0, shape[0], BLOCK):
        found[at : at + BLOCK] = unit(weights[at : at + BLOCK] @ terms)
    return found


def unit(rows: Floats) -> Floats:
    """Rows scaled to length 1, on `GRID`; zeros stay."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    scaled = np.rint(rows * (GRID / np.maximum(lengths, 1e-12))[:, None]) / GRID
    units: Floats = scaled.astype(np.float32)
    return units
