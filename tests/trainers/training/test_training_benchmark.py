"""The benchmark of the loop's overhead runs; its figures mean something at full size only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.drill
@pytest.mark.model
def test_the_benchmark_of_the_overhead_runs() -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "bench_grpo_overhead.py"
    found = json.loads(
        subprocess.check_output([sys.executable, str(script), "--quick", "--json"], text=True)
    )
    names = [row["name"] for row in found["rows"]]
    assert [name.rpartition(", ")[2] for name in names] == ["query", "query", "item", "item"]
    shares = [row["value"] for row in found["rows"] if row["name"].startswith("share of rewards")]
    assert all(0 < share < 50 for share in shares)
