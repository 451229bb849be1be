"""Axes of a figure: which range, which ticks, how a number is spelled.

No drawing; that is `drawing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

Tick = tuple[float, str]


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        name: its label, with the unit where there is one.
        ticks: (value, label), ascending.
    """

    name: str
    low: float
    high: float
    ticks: Sequence[Tick]

    @classmethod
    def over(
        cls, name: str, values: Iterable[float], *, zero: bool = True, wanted: int = 6
    ) -> Axis:
        """An axis that holds all values, with round ticks; with 0 on it where `zero`."""
        known = list(values) or [0.0, 1.0]
        low, high = min(known), max(known)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            low, high = (low, low + 1) if zero else (low - 0.5, high + 0.5)
        step = nice_step((high - low) / wanted)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = [round(at * step, 12) for at in range(first, last + 1)]
        return cls(name, ticks[0], ticks[-1], [(tick, spell(tick)) for tick in ticks])

    @classmethod
    def of_names(cls, name: str, labels: Sequence[str], most: int = 8) -> Axis:
        """An axis with one place for each label, at 0, 1, ...; only every so many are written when
        there are many.
        """
        every = max(1, math.ceil(len(labels) / most))
        ticks = [(float(at), label) for at, label in enumerate(labels) if at % every == 0]
        return cls(name, -0.5, len(labels) - 0.5, ticks)


def nice_step(rough: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def spell(value: float) -> str:
    """A number as a reader wants it: no needless digits, thousands apart."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def spell_short(value: float) -> str:
    """A whole number in full, any other with two digits that count: what fits above a bar."""
    return spell(value if value == int(value) else float(f"{value:.2g}"))


def thin(values: Sequence[float], most: int) -> list[float]:
    """Means of equally long stretches, at most so many: what a figure can show of a long log."""
    if len(values) <= most:
        return list(values)
    borders = [round(at * len(values) / most) for at in range(most + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(borders)]
