"""The benchmark of the learning runs; its figures are `make bench-learning`'s."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.model
@pytest.mark.drill
def test_the_benchmark_runs() -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "bench_learning.py"
    found = json.loads(
        subprocess.check_output([sys.executable, str(script), "10", "--quick", "--json"], text=True)
    )
    seed, mean = found["rows"]
    assert set(seed["notes"]) == {"sft", "round 1", "round 2", "seconds"}
    assert mean["notes"]["gain"] == round(1 - seed["value"], 4)
