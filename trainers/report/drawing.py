"""Figures as plain SVG: lines with bands, grouped bars, stacked rows. Colours are the page's, by
class name (`page.css`).

Built as an XML tree, so that no text can become markup. It knows nothing of training; `figures`
says what is drawn.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainers.report.scales import Axis, spell, spell_short

WIDTH, HEIGHT = 440, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 46
_ROW, _ROW_LABEL, _ROW_NOTE = 26, 66, 74
_BAR_LABELS = 16
_LETTER = 6.4
_Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Series:
    """One line.

    Attributes:
        tone: class of its colour and mark.
        points: (x, y), in drawing order.
        spread: half the height of the band around each point; none when empty.
        labels: written beside the points; none when empty.
        hollow: places of the points that are drawn as rings.
        marks: whether points are drawn.
        whiskers: the spread as a whisker at each point instead of a band.
    """

    name: str
    tone: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[float] = ()
    labels: Sequence[str] = ()
    hollow: frozenset[int] = frozenset()
    marks: bool = True
    whiskers: bool = False


@dataclass(frozen=True)
class Bars:
    """One colour of a group of bars: a value for each group."""

    name: str
    tone: str
    values: Sequence[float]


@dataclass(frozen=True)
class StackedRow:
    """One horizontal bar.

    Attributes:
        label: before it.
        parts: lengths, one for each tone; 0 where it has none.
        note: after it.
    """

    label: str
    parts: Sequence[float]
    note: str


class _Canvas:
    """An SVG tree with the few shapes that figures need."""

    def __init__(self, title: str, height: float = HEIGHT) -> None:
        box = f"0 0 {WIDTH} {height:g}"
        self.root = ET.Element("svg", {"viewBox": box, "role": "img", "aria-label": title})

    def add(self, shape: str, style: str, tip: str = "", **where: float | str) -> ET.Element:
        named = {
            name.replace("_", "-"): f"{v:.2f}" if isinstance(v, float) else str(v)
            for name, v in where.items()
        }
        made = ET.SubElement(self.root, shape, {"class": style, **named})
        if tip:
            ET.SubElement(made, "title").text = tip
        return made

    def text(
        self, x: float, y: float, text: str, style: str = "", anchor: str = "middle", **where: str
    ) -> None:
        self.add("text", style, x=x, y=y, text_anchor=anchor, **where).text = text

    def __str__(self) -> str:
        return ET.tostring(self.root, encoding="unicode")


class _Frame:
    """The plotting area: grid, ticks, axis names, and where a value lies."""

    def __init__(self, canvas: _Canvas, x: Axis, y: Axis) -> None:
        self.canvas, self._x, self._y = canvas, x, y
        self._full: list[_Box] = []
        self.left, self.right, self.top, self.bottom = _LEFT, WIDTH - _RIGHT, _TOP, HEIGHT - _BOTTOM
        for value, label in y.ticks:
            at = self.y(value)
            canvas.add(
                "line", "zero" if value == 0 else "grid", x1=self.left, x2=self.right, y1=at, y2=at
            )
            canvas.text(self.left - 6, at + 4, label, "tick", "end")
        for value, label in x.ticks:
            canvas.text(self.x(value), self.bottom + 17, label, "tick")
        canvas.text((self.left + self.right) / 2, HEIGHT - 8, x.name, "name")
        middle = (self.top + self.bottom) / 2
        canvas.text(12, middle, y.name, "name", transform=f"rotate(-90 12 {middle:g})")

    def keep_free(self, x: float, y: float) -> None:
        """Let no label lie on a point."""
        self._full.append((x - 6, y - 6, x + 6, y + 6))

    def label(self, x: float, y: float, text: str) -> None:
        """Write beside a point, on the first of its four sides where nothing else stands."""
        width = _LETTER * len(text)
        sides = [(x + 8, y - 7), (x - 8 - width, y - 7), (x + 8, y + 15), (x - 8 - width, y + 15)]
        boxes = [(left, base - 10, left + width, base + 2) for left, base in sides]
        free = [
            box
            for box in boxes
            if box[0] >= self.left and box[2] <= self.right and not self._taken(box)
        ]
        chosen = free[0] if free else boxes[0]
        self._full.append(chosen)
        self.canvas.text(chosen[0], chosen[3] - 2, text, "note strong", "start")

    def _taken(self, box: _Box) -> bool:
        return any(
            box[0] < right and left < box[2] and box[1] < base and top < box[3]
            for left, top, right, base in self._full
        )

    def x(self, value: float) -> float:
        return _between(value, self._x.low, self._x.high, self.left, self.right)

    def y(self, value: float) -> float:
        return _between(value, self._y.low, self._y.high, self.bottom, self.top)


def _between(value: float, low: float, high: float, start: float, end: float) -> float:
    return start + (value - low) / (high - low) * (end - start)


def line_chart(
    title: str, x: Axis, y: Axis, series: Sequence[Series], rules: Sequence[tuple[float, str]] = ()
) -> str:
    """Lines over two axes.

    Args:
        title: for those who can't see it.
        rules: (x, label) of vertical lines.
    """
    frame = _Frame(canvas := _Canvas(title), x, y)
    for value, label in rules:
        at = frame.x(value)
        canvas.add("line", "rule", x1=at, x2=at, y1=frame.top, y2=frame.bottom)
        canvas.text(at + 4, frame.top + 11, label, "note", "start")
    for one in series:
        _line(frame, one)
        for place in one.points if one.marks else ():
            frame.keep_free(frame.x(place[0]), frame.y(place[1]))
    for one in series:
        _marks(frame, one)
    return str(canvas)


def _line(frame: _Frame, series: Series) -> None:
    places = [(frame.x(x), frame.y(y)) for x, y in series.points]
    if series.spread and not series.whiskers:
        above = [
            (frame.x(x), frame.y(y + s))
            for (x, y), s in zip(series.points, series.spread, strict=True)
        ]
        below = [
            (frame.x(x), frame.y(y - s))
            for (x, y), s in zip(series.points, series.spread, strict=True)
        ]
        frame.canvas.add("path", f"band {series.tone}", d=_path([*above, *reversed(below)]) + "Z")
    if len(places) > 1:
        frame.canvas.add("path", f"line {series.tone}", d=_path(places))


def _marks(frame: _Frame, series: Series) -> None:
    for at, (x, y) in enumerate(series.points):
        across, down = frame.x(x), frame.y(y)
        if series.spread and series.whiskers:
            top, end = frame.y(y + series.spread[at]), frame.y(y - series.spread[at])
            frame.canvas.add("line", f"whisker {series.tone}", x1=across, x2=across, y1=top, y2=end)
        label = series.labels[at] if series.labels else ""
        if series.marks or len(series.points) == 1:
            ring = " ring" if at in series.hollow else ""
            tip = ", ".join(part for part in (series.name, label, spell(y)) if part)
            _SHAPES.get(series.tone, _circle)(
                frame.canvas, across, down, f"mark {series.tone}{ring}", tip
            )
        if label:
            frame.label(across, down, label)


def _circle(canvas: _Canvas, x: float, y: float, style: str, tip: str) -> None:
    canvas.add("circle", style, tip, cx=x, cy=y, r=4.2)


def _square(canvas: _Canvas, x: float, y: float, style: str, tip: str) -> None:
    canvas.add("rect", style, tip, x=x - 3.8, y=y - 3.8, width=7.6, height=7.6)


def _triangle(canvas: _Canvas, x: float, y: float, style: str, tip: str) -> None:
    canvas.add(
        "path", style, tip, d=_path([(x, y - 4.8), (x + 4.6, y + 3.6), (x - 4.6, y + 3.6)]) + "Z"
    )


# Lines are told apart by their marks too, not by colour alone.
_SHAPES: dict[str, Callable[[_Canvas, float, float, str, str], None]] = {
    "dev": _square,
    "train": _triangle,
    "item": _square,
    "shared": _triangle,
}


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def bar_chart(title: str, name: str, groups: Sequence[str], bars: Sequence[Bars], y: Axis) -> str:
    """Grouped bars, downwards for values below 0.

    Args:
        name: of the horizontal axis.
        groups: its labels.
    """
    frame = _Frame(canvas := _Canvas(title), Axis.of_names(name, groups), y)
    room = (frame.right - frame.left) / max(1, len(groups))
    width = min(46.0, room * 0.84 / len(bars))
    for group, label in enumerate(groups):
        start = frame.x(group) - width * len(bars) / 2
        for at, one in enumerate(bars):
            value = one.values[group]
            ends = sorted((frame.y(0), frame.y(value)))
            left = start + at * width
            tip = f"{label}, {one.name}: {spell(value)}"
            size = {"width": width - 2, "height": max(0.5, ends[1] - ends[0])}
            canvas.add("rect", f"bar {one.tone}", tip, x=left + 1, y=ends[0], **size)
            if len(groups) * len(bars) <= _BAR_LABELS:
                canvas.text(
                    left + width / 2,
                    ends[1] + 12 if value < 0 else ends[0] - 4,
                    spell_short(value),
                    "value",
                )
    return str(canvas)


def row_chart(
    title: str, name: str, tones: Sequence[tuple[str, str]], rows: Sequence[StackedRow], x: Axis
) -> str:
    """Horizontal bars, each stacked from parts.

    Args:
        name: of the horizontal axis.
        tones: (name, class) of the parts.
    """
    height = _TOP + _ROW * len(rows) + _BOTTOM
    canvas = _Canvas(title, height)
    left, right, bottom = _ROW_LABEL, WIDTH - _ROW_NOTE, height - _BOTTOM
    for value, label in x.ticks:
        at = _between(value, x.low, x.high, left, right)
        canvas.add("line", "grid", x1=at, x2=at, y1=_TOP, y2=bottom)
        canvas.text(at, bottom + 17, label, "tick")
    canvas.text((left + right) / 2, height - 8, name, "name")
    for number, row in enumerate(rows):
        top = _TOP + _ROW * number
        canvas.text(left - 8, top + 17, row.label, "tick", "end")
        borders = [0.0]
        for part in row.parts:
            borders.append(borders[-1] + part)
        places = [_between(border, x.low, x.high, left, right) for border in borders]
        for (tone_name, tone), part, (start, end) in zip(
            tones, row.parts, pairwise(places), strict=True
        ):
            if part > 0:
                tip = f"{row.label}, {tone_name}: {spell(part)}"
                canvas.add(
                    "rect",
                    f"bar {tone}",
                    tip,
                    x=start,
                    y=top + 4,
                    width=end - start,
                    height=_ROW - 8,
                )
        canvas.text(WIDTH - _ROW_NOTE + 8, top + 17, row.note, "value", "start")
    return str(canvas)
