"""The arithmetic against a golden vector, against Lucene's own definitions spelled again, and its
known edges.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cogr.matching import bm25
from cogr.matching.bm25 import BM25
from cogr.matching.mirror import Mirror

GOLDEN = [
    (BM25(), [0.59534115, 0.38204962, 0.24382064]),
    (BM25(flavour="2.x"), [1.3097506, 0.8405091, 0.5364054]),
]


@pytest.mark.parametrize(("flavour", "scores"), GOLDEN)
def test_golden_vector(flavour: BM25, scores: list[float]) -> None:
    ids, sets = ["d1", "d2", "d3", "d4", "d5"], [["a", "b"], ["a"], ["b", "c", "d"], [], ["e"]]
    ranking = Mirror.from_sets(ids, sets).scored_by(flavour).search(["a", "b"])
    assert ranking.ids == ["d1", "d2", "d3"]
    assert ranking.scores.dtype == np.float32
    assert ranking.scores.tolist() == [float(np.float32(score)) for score in scores]


def f32(value: float) -> float:
    """Round to float32 without numpy.

    Of one operation on float32 values, the double result rounds to the right float32.
    """
    return float(struct.unpack("f", struct.pack("f", value))[0])


def restated_length(length: int) -> int:
    """What is left of a length in one byte, from its definition: 24 values stand for themselves,
    then 4 bits of the rest.
    """
    rest = length - 24
    if rest < 8:
        return length
    step = 1 << (rest.bit_length() - 4)
    return 24 + rest // step * step


def restated_part(n: int, df: int, boost: float, length: int, total: int, how: BM25) -> float:
    """One keyword's part, rounding after every operation."""
    k1, b = f32(how.k1), f32(how.b)
    idf = f32(math.log(1 + (n - df + 0.5) / (df + 0.5)))
    stored = float(restated_length(length))
    inverse = f32(1 / f32(k1 * f32(f32(1 - b) + f32(f32(b * stored) / f32(total / n)))))
    boost = f32(boost)
    factor = f32(boost * f32(1 + k1)) if how.flavour == "2.x" else boost
    weight = f32(factor * idf)
    return f32(weight - f32(weight / f32(1 + inverse)))


flavours = st.builds(
    BM25,
    k1=st.sampled_from([0.9, 1.2, 2.0]),
    b=st.sampled_from([0.0, 0.4, 0.75, 1.0]),
    flavour=st.sampled_from(["3.x", "2.x"]),
)


@given(st.data(), flavours)
def test_part_equals_the_restatement(data: st.DataObject, how: BM25) -> None:
    n = data.draw(st.integers(1, 2_000_000))
    df = data.draw(st.integers(1, n))
    total = data.draw(st.integers(n, n * 60))
    length = data.draw(st.integers(1, 5000))
    boost = data.draw(st.sampled_from([1, 2, 3]) | st.floats(1e-3, 1000))
    weight = bm25.weight(how, bm25.idf(n, df), boost)
    norms = bm25.norm_table(how, bm25.mean_length(total, n))
    parts = bm25.term_scores(np.array([weight]), norms)
    assert parts.dtype == np.float32
    assert float(parts[0, bm25.length_codes(np.array([length]))[0]]) == restated_part(
        n, df, boost, length, total, how
    )


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_stored_lengths_are_ascending_and_exact_up_to_40(lengths: list[int]) -> None:
    stored = bm25.LENGTHS[bm25.length_codes(np.array([*range(42), *lengths]))].tolist()
    assert stored == [*range(41), 40, *map(restated_length, lengths)]
    assert (np.diff(bm25.LENGTHS) > 0).all()
