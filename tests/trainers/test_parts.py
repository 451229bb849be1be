"""A catalogue of parts: what serves finds part numbers, sizes and names in all their spellings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench_statistical import beside_text

from tests.shops import in_memory, parts_records

MIN_PRECISION = {"numbers": 0.95, "sizes": 0.95, "names": 0.85}
"""Mean precision; by single words without digits and units it was 0.02, 0.72 and 0.40."""


@pytest.mark.slow
def test_the_set_is_precise_for_numbers_sizes_and_names_of_5000_parts(tmp_path: Path) -> None:
    _, figures, _ = beside_text(in_memory(*parts_records()), str(tmp_path))
    assert figures["P"].size == 30
    kinds = {"numbers": slice(10), "sizes": slice(10, None, 2), "names": slice(11, None, 2)}
    precision = {kind: float(np.mean(figures["P"][asked])) for kind, asked in kinds.items()}
    assert all(precision[kind] >= least for kind, least in MIN_PRECISION.items()), precision
    assert figures["R"].mean() >= 0.95
