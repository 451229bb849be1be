"""BM25 as Lucene computes it, bit for bit: small pure functions, one per formula.

A keyword is one term and a keyword set has each term once, so tf is 1 throughout. Everything is
float32 unless said; the order of operations is Lucene's (`BM25Similarity.java`, `SmallFloat.java`),
because the last bits depend on it. Nothing here knows of postings or mirrors.

    idf   = ln(1 + (N - n + 0.5) / (n + 0.5))                  in float64, then cast
    inv   = 1 / (k1 * ((1 - b) + (b * L) / avgdl))             L: the stored, rounded length
    w     = boost * idf                                        2.x: (boost * (1 + k1)) * idf
    part  = w - w / (1 + tf * inv)
    score = sum of the parts in float64, cast to float32 once
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Flavour = Literal["3.x", "2.x"]


@dataclass(frozen=True, slots=True)
class BM25:
    """Which BM25.

    Attributes:
        flavour: "3.x" for OpenSearch 3 (BM25Similarity); "2.x" keeps the factor (k1 + 1)
            (LegacyBM25Similarity).
    """

    k1: float = 1.2
    b: float = 0.75
    flavour: Flavour = "3.x"


DEFAULT = BM25()
"""What the toolkit's own mapping asks of OpenSearch 3."""


def byte4_to_int(code: int) -> int:
    """The length that a code stands for (`SmallFloat.byte4ToInt`)."""
    bits, shift = (code - _EXACT) & 7, ((code - _EXACT) >> 3) - 1
    return code if shift < 0 else _EXACT + ((bits | 8) << shift)


_EXACT = 24
"""Codes below it stand for themselves: lengths up to 2^31 - 1 leave so many of the 256 free."""

LENGTHS: NDArray[np.int64] = np.array([byte4_to_int(code) for code in range(256)])
"""Stored length of each of the 256 codes, ascending."""


def length_codes(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Lucene's one-byte codes of field lengths, exact up to 40, then of four significant bits
    (`SmallFloat.intToByte4`): the code of the largest stored length that is not above.
    """
    return (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.uint8)


def mean_length(total: int, entities: int) -> np.float32:
    """avgdl = float32(sum of lengths / N); 0 for an empty index."""
    return np.float32(total / entities) if entities else np.float32(0)


def idf(entities: int, df: int) -> np.float32:
    """ln(1 + (N - n + 0.5) / (n + 0.5)) in float64, then cast.

    `entities`: N, with at least one keyword; `df`: n.
    """
    return np.float32(math.log(1 + (entities - df + 0.5) / (df + 0.5)))


def norm_table(bm25: BM25, avgdl: np.float32) -> NDArray[np.float32]:
    """inv of each of the 256 length codes, float32, shape (256,)."""
    one, k1, b = np.float32(1), np.float32(bm25.k1), np.float32(bm25.b)
    stored = LENGTHS.astype(np.float32)
    with np.errstate(divide="ignore"):  # b = 1 and a length of 0, which no entity that scores has
        return one / (k1 * ((one - b) + (b * stored) / avgdl))


def weight(bm25: BM25, idf: np.float32, boost: float = 1.0) -> np.float32:
    """w = boost * idf; in 2.x (boost * (1 + k1)) * idf.

    `boost`: the keyword's weight in the query, above 0; cast to float32 first.
    """
    factor = np.float32(boost)
    if bm25.flavour == "2.x":
        factor = factor * (np.float32(1) + np.float32(bm25.k1))
    return factor * idf


def term_scores(weights: NDArray[np.float32], norms: NDArray[np.float32]) -> NDArray[np.float32]:
    """w - w / (1 + tf * inv) with tf = 1, shape (weights, norms).

    Not idf * tf / (tf + K): the last bits differ.
    """
    weight = weights[:, None]
    return weight - weight / (np.float32(1) + norms)
