"""Draws by matplotlib: inline SVG for the page, SVG and PNG files for papers.

Colours are those of `page.css`. The page's SVG names them as CSS variables and so follows light and
dark; files have the light ones. Each figure has a title and its values in words, and a mark says
its value under the pointer. Nothing here knows of training; `figures` says what is drawn.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cogr.store import Store

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure as Drawing

_WIDTH, _HEIGHT = 440, 280
"""In points: 6.1 inches, near the width of a paper's text."""
_MOST_POINTS = 240
_LONGEST_TEXT = 300
_WIDTHS = (16, 38, 38)
"""Of a table's columns, in letters."""
_SVG = "{http://www.w3.org/2000/svg}"
ET.register_namespace("", _SVG[1:-1])
ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")

# What a line shows -> (colour, mark, dashes): lines are told apart by more than their colour.
LINES = {
    "test": ("blue", "o", "-"),
    "dev": ("orange", "s", "-"),
    "train": ("grey", "^", "--"),
    "queries": ("teal", "o", "-"),
    "items": ("purple", "s", "--"),
    "both": ("blue", "^", ":"),
    "equal rewards": ("blue", "o", "-"),
    "over the budget": ("orange", "s", "--"),
    "unfinished": ("grey", "^", ":"),
}
_sheet = (files("trainers.report") / "page.css").read_text("utf-8")
COLOURS = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", _sheet.partition("@media")[0]))
"""Name -> light colour, as the page's style sheet has them."""
_VARIABLES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
_SMALL: Mapping[str, Any] = {"fontsize": 10.5, "color": COLOURS["quiet"]}
_STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # matplotlib brings it: the same picture everywhere.
    "font.size": 12,
    "svg.fonttype": "none",
    "figure.facecolor": COLOURS["card"],
    "axes.facecolor": "none",
    "axes.edgecolor": COLOURS["strong"],
    "axes.labelcolor": COLOURS["quiet"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": COLOURS["line"],
    "xtick.color": COLOURS["strong"],
    "ytick.color": COLOURS["strong"],
    "xtick.labelcolor": COLOURS["quiet"],
    "ytick.labelcolor": COLOURS["quiet"],
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "legend.labelcolor": COLOURS["quiet"],
}


@dataclass(frozen=True)
class Figure:
    """One picture with its words.

    Attributes:
        name: of its files, without the suffix.
        note: what to see in it, or how it was measured.
        tips: id of a mark -> what it says under the pointer; together they say in words what the
            picture shows.
    """

    name: str
    title: str
    note: str
    drawing: Drawing
    tips: Mapping[str, str]

    @property
    def inline(self) -> str:
        """SVG for the page: colours as CSS variables."""
        return re.sub(r"#[0-9a-f]{6}", lambda c: _VARIABLES.get(c[0], c[0]), self._svg())

    def _repr_svg_(self) -> str:
        """For notebooks."""
        return self._svg()

    def write(self, folder: Path) -> list[Path]:
        """Write <name>.svg and <name>.png in light colours; returns them. Raises StorageError."""
        store = Store(folder.resolve())
        png = self._saved("png", dpi=200, metadata={"Software": None})
        store.write(f"{self.name}.svg", self._svg().encode())
        store.write(f"{self.name}.png", png)
        return [folder / f"{self.name}.svg", folder / f"{self.name}.png"]

    def _svg(self) -> str:
        """Without what concerns the rest of a page: style sheets, ids that other figures have."""
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        root = ET.fromstring(re.sub(rb">\s+<", b"><", self._saved("svg", metadata=nothing)))
        root[:] = [child for child in root if child.find(f"{_SVG}style") is None]
        for group in root.iter(f"{_SVG}g"):
            if tip := self.tips.get(group.attrib.pop("id", "")):
                _say(group, "title", tip)
        words = f"{self.name}-title {self.name}-text"
        root.attrib.update({"role": "img", "aria-labelledby": words}, style="stroke-linejoin:round")
        _say(root, "desc", "; ".join(self.tips.values()), id=f"{self.name}-text")
        _say(root, "title", self.title, id=f"{self.name}-title")
        return ET.tostring(root, encoding="unicode")

    def _saved(self, kind: str, **options: Any) -> bytes:
        from matplotlib import rc_context

        data = io.BytesIO()
        with style(), rc_context({"svg.hashsalt": self.name}):
            self.drawing.savefig(data, format=kind, **options)
        return data.getvalue()


def style() -> AbstractContextManager[None]:
    """Draw alike everywhere: matplotlib's own defaults and ours, whatever the user has set."""
    from matplotlib.style import context

    return context(["default", dict(_STYLE)])


def _say(element: ET.Element, tag: str, text: str, **attributes: str) -> None:
    said = ET.Element(_SVG + tag, attributes)
    said.text = text
    element.insert(0, said)


class Canvas:
    """A figure under way: its axes, and what its marks say."""

    def __init__(self, x: str, y: str) -> None:
        from matplotlib.figure import Figure as Drawing

        self.drawing = Drawing(figsize=(_WIDTH / 72, _HEIGHT / 72), layout="constrained")
        self.axes = self.drawing.add_subplot(xlabel=x, ylabel=y)
        for axis in (self.axes.xaxis, self.axes.yaxis):
            axis.set_major_formatter(lambda value, _: spell(value))
        self.axes.grid(axis="y")
        self._tips: dict[str, str] = {}
        self._marks: list[tuple[float, float]] = []

    def tip(self, artist: Artist, *parts: str) -> None:
        """What a mark says under the pointer."""
        name = f"tip{len(self._tips)}"
        artist.set_gid(name)
        self._tips[name] = ", ".join(parts)

    def marks(
        self,
        name: str,
        points: Sequence[tuple[float, float]],
        labels: Sequence[str],
        hollow: Collection[int] = (),
    ) -> None:
        """A line with a mark at each point; a ring where it is `hollow`."""
        tone, mark, dashes = LINES[name]
        look: dict[str, Any] = {"color": COLOURS[tone], "marker": mark, "ms": 7}
        self.axes.plot(*zip(*points, strict=True), ls=dashes, markevery=[], label=name, **look)
        for at, (x, y) in enumerate(points):
            inside = COLOURS["card" if at in hollow else tone]
            (drawn,) = self.axes.plot(x, y, ls="", mfc=inside, mew=1.6, zorder=3, **look)
            self.tip(drawn, name, labels[at], spell(y))
        self._marks += points

    def steps(self, name: str, values: Sequence[float], spread: Sequence[float] = ()) -> None:
        """A line over steps, thinned for a long log; a band where a spread is given."""
        if not values:
            return
        tone, _, dashes = LINES[name]
        shown = np.array(thin(values))
        at = (np.arange(len(shown)) + 1) * len(values) / len(shown)
        dot = "o" if len(shown) == 1 else None
        (line,) = self.axes.plot(at, shown, ls=dashes, marker=dot, color=COLOURS[tone], label=name)
        if spread:
            wide = np.array(thin(spread))
            band: dict[str, Any] = {"color": COLOURS[tone], "alpha": 0.2, "lw": 0}
            self.axes.fill_between(at, shown - wide, shown + wide, **band)
        ends = {"first": shown[0], "last": shown[-1], "least": min(shown), "most": max(shown)}
        words = [f"{word} {spell(value)}" for word, value in ends.items()]
        self.tip(line, name, f"{len(values):,} steps", *words)
        self.axes.set_xlim(0, max(1.0, self.axes.dataLim.x1))

    def rules(self, places: Iterable[float], names: Sequence[str]) -> None:
        """Vertical lines; not every one is named where there are many."""
        above = self.axes.get_xaxis_transform()
        for at, (x, name) in enumerate(zip(places, names, strict=False)):
            self.axes.axvline(x, color=COLOURS["strong"], ls=(0, (3, 3)), lw=1)
            if at % _every(names, 5) == 0:
                # Out of the layout, which would go on changing with each drawing.
                place: dict[str, Any] = {"transform": above, "va": "top", "in_layout": False}
                self.axes.text(x, 1, f" {name}", **place, **_SMALL)

    def bars(
        self,
        groups: Sequence[str],
        kinds: Sequence[tuple[str, str, Sequence[float]]],
        tops: Sequence[str] = (),
    ) -> None:
        """Grouped bars, downwards for values below 0; `kinds` are (name, colour, values). With
        `tops`, what stands above each group, its bars are stacked.
        """
        if not groups:
            return
        at, width = np.arange(len(groups)), 0.6 if tops else 0.84 / len(kinds)
        bottom = np.zeros(len(groups))
        for kind, (name, tone, values) in enumerate(kinds):
            places = at if tops else at + (kind - (len(kinds) - 1) / 2) * width
            look: dict[str, Any] = {"color": COLOURS[tone], "label": name}
            drawn = self.axes.bar(places, values, width * 0.94, bottom, **look)
            for bar, group, value in zip(drawn, groups, values, strict=True):
                self.tip(bar, group, name, spell(value))
            if tops:
                bottom += values
            elif len(groups) * len(kinds) <= 16:
                self.axes.bar_label(drawn, fmt=lambda v: spell(v, 2), padding=2, **_SMALL)
        if tops:
            shown = ["" if at % _every(tops) else top for at, top in enumerate(tops)]
            self.axes.bar_label(drawn, shown, padding=2, **_SMALL)
        self.axes.axhline(0, color=COLOURS["strong"], lw=1)
        self.names(groups)
        self.from_zero()

    def names(self, labels: Sequence[str]) -> None:
        """Names along the x axis, at 0, 1, ...; only every so many where there are many."""
        every = _every(labels)
        self.axes.set_xticks(range(0, len(labels), every), labels[::every])
        self.axes.set_xlim(-0.5, len(labels) - 0.5)

    def from_zero(self, *also: float) -> None:
        """Have 0 on the y axis, all values, and what else is given."""
        low, high = self.axes.dataLim.intervaly
        low, high = min(0.0, low, *also), max(0.0, high, *also)
        room = 0.1 * (high - low or 1.0)
        self.axes.set_ylim(low - room * (low < 0), high + room)

    def equal_f1(self, points: Iterable[tuple[float, float]]) -> None:
        """Lines of equal F1 over a plane of recall and precision that ends above the points."""
        right, top = (min(1.0, 1.15 * max(0.1, *axis)) for axis in zip(*points, strict=True))
        r, p = np.meshgrid(np.linspace(1e-3, right, 100), np.linspace(1e-3, top, 100))
        look: dict[str, Any] = {"colors": COLOURS["line"], "linewidths": 1.2}
        lines = self.axes.contour(r, p, 2 * p * r / (p + r), 4, **look)
        self.axes.clabel(lines, fmt="F1 %.2g", fontsize=10.5, colors=COLOURS["quiet"])
        self.axes.set(xlim=(0, right), ylim=(0, top))
        self.axes.grid(visible=False)

    def label(self, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
        """Name points, each on the first side where no other name and no mark is."""
        from matplotlib.transforms import Bbox

        self.drawing.draw_without_rendering()
        self._marks += points
        centres = self.axes.transData.transform(np.reshape(self._marks, (-1, 2)))
        taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in centres]
        behind = {"boxstyle": "square,pad=0", "fc": COLOURS["card"], "ec": "none", "alpha": 0.8}
        look: dict[str, Any] = {"textcoords": "offset points", "bbox": behind, **_SMALL}
        for point, name in zip(points, names, strict=True):
            text = self.axes.annotate(name, point, (7, 5), parse_math=False, **look)
            for y, x in product((5, -14, 19, -28, 33), (7, -7)):
                text.set(position=(x, y), ha="left" if x > 0 else "right")
                box, room = text.get_window_extent(), self.axes.bbox
                inside = room.x0 < box.x0 and box.x1 < room.x1 and room.y0 < box.y0
                if inside and not box.count_overlaps(taken):
                    break
            taken.append(box)

    @classmethod
    def of_table(cls, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Canvas:
        """A table whose cells are wrapped."""
        cells = [
            [textwrap.fill(cell, width) for cell, width in zip(row, _WIDTHS, strict=True)]
            for row in (head, *rows)
        ]
        tall = [0.6 + max(1 + cell.count("\n") for cell in row) for row in cells]
        canvas, shares = cls("", ""), np.array(_WIDTHS) / sum(_WIDTHS)
        canvas.drawing.set_figheight((60 + 11 * sum(tall)) / 72)
        canvas.axes.set_axis_off()
        look: dict[str, Any] = {"cellLoc": "left", "edges": "horizontal", "bbox": (0, 0, 1, 1)}
        table = canvas.axes.table(cells, colWidths=list(shares), **look)
        table.auto_set_font_size(False)
        table.set_fontsize(8)
        for (row, column), cell in table.get_celld().items():
            cell.set(height=tall[row], edgecolor=COLOURS["line"])
            cell.get_text().set(parse_math=False, weight="bold" if row == 0 else "normal")
            if row and column == 0:
                canvas.tip(cell.get_text(), "; ".join(rows[row - 1]))
        return canvas

    def logarithmic(self) -> None:
        """A logarithmic y axis with plain numbers."""
        from matplotlib.ticker import LogLocator

        self.axes.set_yscale("log")
        self.axes.autoscale(axis="y")
        self.axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        self.axes.yaxis.set_major_formatter(lambda value, _: spell(value))
        self.axes.yaxis.set_minor_formatter("")

    def done(self, name: str, title: str, note: str = "") -> Figure:
        """The figure, with a legend where it shows several things."""
        handles, labels = self.axes.get_legend_handles_labels()
        if len(handles) > 1:
            columns = 2 if sum(map(len, labels)) > 40 else len(handles)
            self.drawing.legend(loc="outside upper left", ncols=columns)
        # Laid out once: a layout that is made again is off by a hair, and so would its file be.
        self.drawing.draw_without_rendering()
        self.drawing.set_layout_engine("none")
        return Figure(name, title, note, self.drawing, self._tips)


def clean(text: str) -> str:
    """Text of an item on one line: no control or direction characters, not too long."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return shown if len(shown) <= _LONGEST_TEXT else shown[: _LONGEST_TEXT - 1] + "…"


def spell(value: float, digits: int = 4) -> str:
    """A number as a reader wants it: whole ones in full, thousands apart."""
    whole = value == round(value) or abs(value) >= 1000
    return (f"{value:,.0f}" if whole else f"{value:.{digits}g}").replace("-", "−")


def _every(names: Sequence[str], most: int = 7) -> int:
    """Of how many names one is shown, so that at most so many are."""
    return max(1, math.ceil(len(names) / most))


def thin(values: Sequence[float], most: int = _MOST_POINTS) -> list[float]:
    """Means of equally long stretches, at most so many: what a figure can show of a long log."""
    return [float(part.mean()) for part in np.array_split(values, min(len(values), most))]
