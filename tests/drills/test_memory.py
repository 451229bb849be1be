"""The coordinator's memory does not follow the size of the catalogue."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED = 150
"""Megabytes that 90,000 items more may cost; as objects they cost 230.

Ten of them are numbers an item, the rest full batches.
"""


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="anonymous memory is told by /proc"
)
def test_ten_times_the_items_take_little_more_memory() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "bench_scale.py"
    asked = [sys.executable, str(script), "--no-server", "--items", "10000", "100000", "--json"]
    found = json.loads(subprocess.check_output(asked, text=True))
    few, many = (
        max(stage["anon_mb"] for stage in found[size].values()) for size in ("10000", "100000")
    )
    print(f"10,000 items: {few:.0f} MB, 100,000: {many:.0f} MB")
    assert many < few + ALLOWED
