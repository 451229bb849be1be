"""Timing, options and one table for all benchmarks: medians over repeats, targets, ratios to the
alternatives of the same run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Row:
    """One measured thing.

    Attributes:
        name: what was measured.
        value: the figure, in `unit`.
        unit: us, s, MB or %.
        target: the most it may be; None without one.
        cold: the same at first use, before anything is cached; None where that has no meaning.
        alternatives: name -> the alternative's figure in the same unit.
        notes: what the figure depends on.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    cold: float | None = None
    alternatives: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool | None:
        """Whether the target was met; None without one."""
        return None if self.target is None else self.value <= self.target

    @property
    def ratios(self) -> dict[str, float]:
        """How many times as long each alternative took."""
        return {name: value / self.value for name, value in self.alternatives.items()}


def option_parser(doc: str | None, *, json: bool = False) -> argparse.ArgumentParser:
    """The options of a benchmark, with its docstring as their help; --json for those that show a
    table otherwise.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if json:
        parser.add_argument(
            "--json", action="store_true", help="one JSON object instead of a table"
        )
    return parser


def timed(work: Callable[..., T], *given: Any) -> tuple[T, float, float]:
    """What a call returns, and its seconds: of the clock, and of this process's CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work(*given)
    return found, time.perf_counter() - wall, time.process_time() - cpu


def in_turns(
    names: Iterable[str], rounds: int, warm_up: int = 1
) -> Iterator[tuple[bool, list[str]]]:
    """For each round whether it counts (the first ones warm up), and the order of turns in it: to
    and fro.
    """
    order = list(names)
    for number in range(warm_up + rounds):
        yield number >= warm_up, order if number % 2 else order[::-1]


def microseconds(
    function: Callable[..., object], arguments: Iterable[tuple[Any, ...]], repeats: int
) -> float:
    """Median over the arguments of the median time of one call, after a call that is
    not counted.
    """
    medians = []
    for args in arguments:
        function(*args)
        medians.append(median(_once(function, args) for _ in range(repeats)))
    return median(medians) / 1e3


def first_call_microseconds(
    function: Callable[..., object], arguments: Iterable[tuple[Any, ...]]
) -> float:
    """Median over the arguments of the time of their one and first call."""
    return median(_once(function, args) for args in arguments) / 1e3


def _once(function: Callable[..., object], args: tuple[Any, ...]) -> int:
    start = time.perf_counter_ns()
    function(*args)
    return time.perf_counter_ns() - start


def report(rows: Iterable[Row], *, as_json: bool) -> None:
    """Print the rows: one JSON object at the end, or a table, each row as soon as it is there."""
    if as_json:
        found = [{**asdict(row), "ok": row.ok, "ratios": row.ratios} for row in rows]
        print(json.dumps({"rows": found}, indent=1))
        return
    for row in rows:
        target = (
            "" if row.target is None else f"target {row.target:g}: {'met' if row.ok else 'MISSED'}"
        )
        cold = "" if row.cold is None else f"cold {row.cold:.1f}"
        others = ", ".join(
            f"{name} {row.alternatives[name]:.1f} ({ratio:.1f}x)"
            for name, ratio in row.ratios.items()
        )
        notes = ", ".join(f"{name} {value}" for name, value in row.notes.items())
        print(
            f"{row.name:44} {row.value:10.2f} {row.unit:3} {target:22} {cold:14} {others}  "
            f"{notes}".rstrip(),
            flush=True,
        )
