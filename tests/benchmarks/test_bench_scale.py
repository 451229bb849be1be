"""The benchmark of whole catalogues; its figures are `make bench-scale`'s."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.drill
def test_the_benchmark_runs() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "bench_scale.py"
    found = json.loads(
        subprocess.check_output([sys.executable, str(script), "--quick", "--json"], text=True)
    )
    assert set(found) == {"200", "400"}
    steps = "load plan generate assemble push verify publish rerun"
    assert set(found["400"]) >= set(steps.split())
    assert all(row["peak_mb"] > 0 for row in found["400"].values())
