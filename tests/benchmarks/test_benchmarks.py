"""Benchmarks run at a small size; their figures are in the log, or `make bench-scale`'s."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.commands import ran
from tests.documents import ROOT

pytestmark = [pytest.mark.drill, pytest.mark.model, pytest.mark.timeout(1800)]


def told(name: str, *more: str) -> Any:
    return json.loads(ran(sys.executable, ROOT / "benchmarks" / name, *more, "--json"))


def quick(name: str, *more: str) -> Any:
    return told(name, *more, "--quick")


def test_whole_catalogues() -> None:
    found = quick("bench_scale.py")
    assert set(found) == {"200", "400"}
    steps = "load plan generate assemble push verify publish rerun"
    assert set(found["400"]) >= set(steps.split())
    assert all(row["peak_mb"] > 0 for row in found["400"].values())


def test_ten_times_the_items_take_little_more_memory() -> None:
    """150 MB for 90,000 items more, which cost 230 as objects. Ten of them are numbers an item, the
    rest full batches.
    """
    found = told("bench_scale.py", "--no-server", "--items", "10000", "100000")
    few, many = (
        max(stage["anon_mb"] for stage in found[size].values()) for size in ("10000", "100000")
    )
    assert many < few + 150, "the coordinator's memory follows the size of the catalogue"
