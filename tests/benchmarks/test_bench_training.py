"""The benchmarks of training run; their figures mean something at full size only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.drill, pytest.mark.model]


def rows_of(name: str, *more: str) -> list[dict[str, Any]]:
    script = Path(__file__).parents[2] / "benchmarks" / name
    command = [sys.executable, str(script), *more, "--quick", "--json"]
    rows: list[dict[str, Any]] = json.loads(subprocess.check_output(command, text=True))["rows"]
    return rows


def test_the_benchmark_of_the_overhead_runs() -> None:
    rows = rows_of("bench_grpo_overhead.py")
    sides = [row["name"].rpartition(", ")[2] for row in rows]
    assert sides == ["query", "query", "item", "item"]
    shares = [row["value"] for row in rows if row["name"].startswith("share of rewards")]
    assert all(0 < share < 50 for share in shares)


def test_the_benchmark_of_the_learning_runs() -> None:
    seed, mean = rows_of("bench_learning.py", "10")
    assert set(seed["notes"]) == {"sft", "round 1", "round 2", "seconds"}
    assert mean["notes"]["gain"] == round(1 - seed["value"], 4)
