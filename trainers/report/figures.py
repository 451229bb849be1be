"""The report's figures by matplotlib: inline SVG for pages and notebooks."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure as Drawing
from matplotlib.style import context

from cogr.records import SIDES
from trainers.report import Facts
from trainers.training.rounds import round_name

_SIZE = (6.1, 3.9)
"""Inches, near the width of a paper's text."""
_INK, _LINE = "#16202a", "#a0acb7"
_COLOURS = ["#1d5fc2", "#d9730d", "#0b8f81", "#9a4fc4"]
_STYLE: Mapping[str, Any] = {
    # Marks too, so that colour alone tells nothing apart.
    "axes.prop_cycle": f"cycler(color={_COLOURS}, marker=['o', 's', '^', 'D'])",
    "font.family": "DejaVu Sans",  # matplotlib brings it: the same picture everywhere.
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": _LINE,
    "grid.alpha": 0.4,
    "legend.frameon": False,
    **dict.fromkeys(
        ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], _INK
    ),
}


@dataclass(frozen=True)
class Figure:
    """One picture with its words; `note` says how it was measured."""

    name: str
    title: str
    note: str
    drawing: Drawing

    @property
    def inline(self) -> str:
        """SVG for a page: ink has the colour of the page's text, and ids of groups are gone, since
        other figures have the same.
        """
        svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>|<metadata>.*?</metadata>", "",
                     self._saved().decode(), flags=re.DOTALL)  # fmt: skip
        svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])
        label = f'<svg role="img" aria-label="{escape(self.title)}"'
        return svg.replace(_INK, "currentColor").replace("<svg", label, 1)

    def _saved(self) -> bytes:
        data = io.BytesIO()
        with _style(), rc_context({"svg.hashsalt": self.name}):
            self.drawing.savefig(data, format="svg", metadata={"Date": None})
        return data.getvalue()


def _style() -> AbstractContextManager[None]:
    """Draw alike everywhere: matplotlib's own defaults and ours, whatever the user has set."""
    return context(["default", dict(_STYLE)])


def draw(facts: Facts) -> dict[str, list[Figure]]:
    """Section of the page -> its figures; those with nothing to draw are left out."""
    with _style():
        rewards = [one for one in _rewards(facts) if one.drawing.axes[0].has_data()]
        return {"quality": [_f1(facts)], "training": rewards}


def _axes(x: str, y: str) -> Any:
    return Drawing(figsize=_SIZE, layout="constrained").add_subplot(xlabel=x, ylabel=y)


def _done(axes: Any, name: str, title: str, note: str = "") -> Figure:
    drawing = axes.figure
    labels = axes.get_legend_handles_labels()[1]
    if len(labels) > 1:
        drawing.legend(loc="outside upper left", ncols=2 if len("".join(labels)) > 40 else 4)
    # Laid out once: a layout that is made again is off by a hair, and so would its file be.
    drawing.draw_without_rendering()
    drawing.set_layout_engine("none")
    return Figure(name, title, note, drawing)


def _rules(axes: Any, places: Sequence[float], names: Sequence[str]) -> None:
    for x, name in zip(places, names, strict=False):
        axes.axvline(x, color=_LINE, ls=":", lw=1)
        above = {"transform": axes.get_xaxis_transform(), "va": "top"}
        axes.text(x, 1, f" {name}", fontsize=8, in_layout=False, **above)


def _f1(facts: Facts) -> Figure:
    """F1 of every split after each round."""
    axes = _axes("", "F1")
    for split in facts.splits:
        values = [one.figures[split]["f1"] for one in facts.rounds]
        errors = [one.figures[split]["f1_se"] for one in facts.rounds]
        axes.errorbar(
            facts.names, values, errors if split == facts.splits[0] else None, label=split
        )
    axes.set_ylim(0)
    note = (
        f"Of the whole retrieved set, after SFT and each round. Whiskers on {facts.splits[0]}: one "
        "standard error over its queries."
    )
    return _done(axes, "f1", "F1 over rounds", note)


def _rewards(facts: Facts) -> Iterator[Figure]:
    for side in SIDES:
        logs = [log for log in facts.logs if log.side == side and log.round and log.steps]
        axes = _axes("step", "reward")
        mean, spread = (
            np.array([float(one[key]) for log in logs for one in log.steps])
            for key in ("reward", "reward_std")
        )
        if len(at := np.arange(len(mean)) + 1):
            axes.plot(at, mean, marker="" if len(at) > 1 else "o")
            axes.fill_between(at, mean - spread, mean + spread, alpha=0.2, lw=0)
        begun = [0, *accumulate(len(log.steps) for log in logs)]
        _rules(axes, begun, [round_name(log.round) for log in logs])
        note = "Line: the mean of a step. Band: one standard deviation over its completions."
        yield _done(axes, f"reward-{side}", f"Reward of the {side} side", note)
