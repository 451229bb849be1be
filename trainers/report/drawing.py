"""Figures by matplotlib: inline SVG for pages and notebooks, SVG and PNG files for papers."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cogr.store import Store
from indexers.tables import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_SIZE = (6.1, 3.9)
"""Inches, near the width of a paper's text."""
_MOST_POINTS = 240
_INK, _LINE = "#16202a", "#a0acb7"
COLOURS = {
    "blue": "#1d5fc2",
    "orange": "#d9730d",
    "grey": "#7b8794",
    "teal": "#0b8f81",
    "purple": "#9a4fc4",
    "green": "#23913f",
    "red": "#d1443c",
}
LINES = {
    "test": ("blue", "o-"),
    "dev": ("orange", "s-"),
    "train": ("grey", "^--"),
    "queries": ("teal", "o-"),
    "items": ("purple", "s--"),
    "both": ("blue", "^:"),
}
"""Name of a line -> colour and look, so that colour alone tells nothing apart."""
_STYLE: Mapping[str, Any] = {
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


def check_extra() -> None:
    """Raise MissingExtraError where figures and pages can't be made."""
    need("The report", "report", ("matplotlib", "jinja2"))


@dataclass(frozen=True)
class Figure:
    """One picture with its words; `name` is that of its files, `note` how it was measured."""

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
                     self._saved("svg").decode(), flags=re.DOTALL)  # fmt: skip
        svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])
        label = f'<svg role="img" aria-label="{escape(self.title)}"'
        return svg.replace(_INK, "currentColor").replace("<svg", label, 1)

    def _repr_svg_(self) -> str:
        """For notebooks."""
        return self.inline

    def write(self, folder: Path) -> list[Path]:
        """Write <name>.svg and <name>.png; returns them. Raises StorageError."""
        store, names = Store(folder.resolve()), [f"{self.name}.{kind}" for kind in ("svg", "png")]
        for name in names:
            store.write(name, self._saved(name[-3:]))
        return [folder / name for name in names]

    def _saved(self, kind: str) -> bytes:
        from matplotlib import rc_context

        data = io.BytesIO()
        options: dict[str, Any] = {"metadata": {"Date": None}}
        if kind == "png":
            options = {"metadata": {"Software": None}, "dpi": 200, "facecolor": "white"}
        with style(), rc_context({"svg.hashsalt": self.name}):
            self.drawing.savefig(data, format=kind, **options)
        return data.getvalue()


def style() -> AbstractContextManager[None]:
    """Draw alike everywhere: matplotlib's own defaults and ours, whatever the user has set."""
    from matplotlib.style import context

    return context(["default", dict(_STYLE)])


class Canvas:
    """A figure under way."""

    def __init__(self, x: str, y: str) -> None:
        from matplotlib.figure import Figure as Drawing

        self.drawing = Drawing(figsize=_SIZE, layout="constrained")
        self.axes = self.drawing.add_subplot(xlabel=x, ylabel=y)

    def line(
        self, name: str, points: Sequence[tuple[float, float]], hollow: Collection[int] = ()
    ) -> None:
        """A line with a mark at each point; a ring where it is `hollow`."""
        tone, look = LINES[name]
        self.axes.plot(*zip(*points, strict=True), look, color=COLOURS[tone], label=name)
        for at in hollow:
            self.axes.plot(*points[at], look[0], mfc="white", color=COLOURS[tone], zorder=3)

    def steps(self, name: str, tone: str, values: Sequence[float], spread: Sequence[float]) -> None:
        """A line over steps, thinned for a long log; a band where a spread is given."""
        if not values:
            return
        shown, wide = thin(values), thin(spread or [0.0] * len(values))
        at = (np.arange(len(shown)) + 1) * len(values) / len(shown)
        self.axes.plot(at, shown, "-" if len(shown) > 1 else "o", color=COLOURS[tone], label=name)
        self.axes.fill_between(at, shown - wide, shown + wide, color=COLOURS[tone], alpha=0.2, lw=0)

    def rules(self, places: Sequence[float], names: Sequence[str]) -> None:
        """Vertical lines with names."""
        for x, name in zip(places, names, strict=False):
            self.axes.axvline(x, color=_LINE, ls=":", lw=1)
            above: dict[str, Any] = {"transform": self.axes.get_xaxis_transform(), "va": "top"}
            self.axes.text(x, 1, f" {name}", fontsize=8, in_layout=False, **above)

    def bars(
        self,
        groups: Sequence[str],
        kinds: Sequence[tuple[str, str, Sequence[float]]],
        tops: Sequence[str],
    ) -> None:
        """Stacked bars of kinds (name, colour, values), and what stands above each."""
        bottom = np.zeros(len(groups))
        for name, tone, values in kinds:
            look: dict[str, Any] = {"color": COLOURS[tone], "label": name, "alpha": 0.85}
            drawn = self.axes.bar(range(len(groups)), values, 0.6, bottom, **look)
            bottom += values
        self.axes.bar_label(drawn, tops, padding=2, fontsize=8)
        self.names(groups)

    def names(self, labels: Sequence[str]) -> None:
        """Names along the x axis, at 0, 1, ...; only every so many where there are many."""
        every = max(1, math.ceil(len(labels) / 8))
        self.axes.set_xticks(range(0, len(labels), every), labels[::every])

    def equal_f1(self, points: Sequence[tuple[float, float]]) -> None:
        """Lines of equal F1 over a plane of recall and precision that ends above the points."""
        right, top = (min(1.0, 1.15 * max(0.1, *axis)) for axis in zip(*points, strict=True))
        r, p = np.meshgrid(np.linspace(1e-3, right, 100), np.linspace(1e-3, top, 100))
        lines = self.axes.contour(r, p, 2 * p * r / (p + r), 4, colors=_LINE, linewidths=1)
        self.axes.clabel(lines, fmt="F1 %.2g", fontsize=8)
        self.axes.set(xlim=(0, right), ylim=(0, top))

    def done(self, name: str, title: str, note: str = "") -> Figure:
        """The figure, with a legend where it shows several things."""
        labels = self.axes.get_legend_handles_labels()[1]
        if len(labels) > 1:
            self.drawing.legend(
                loc="outside upper left", ncols=2 if len("".join(labels)) > 40 else 4
            )
        # Laid out once: a layout that is made again is off by a hair, and so would its file be.
        self.drawing.draw_without_rendering()
        self.drawing.set_layout_engine("none")
        return Figure(name, title, note, self.drawing)


def thin(values: Sequence[float], most: int = _MOST_POINTS) -> Any:
    """Means of equally long stretches, at most so many: what a figure can show of a long log."""
    parts = np.array_split(np.asarray(values, float), min(len(values), most))
    return np.array([part.mean() for part in parts])
