"""One table for terminal, notebook and page.

Texts of items are untrusted: they are escaped in HTML, and the console of
`indexers.telemetry.terminal` shows characters that control a terminal as escapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from cogr.errors import require
from cogr.redaction import visible

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console

MAX_WIDTH = 300
"""Most characters of a text that a page or a table shows."""


@dataclass(frozen=True, repr=False)
class Table:
    """Rows of named values with a title and notes.

    Attributes:
        rows: column -> value; a column that a row lacks is empty.
        notes: sentences below the table.
        head: whether the names of the columns are shown.
    """

    title: str
    rows: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    head: bool = True

    @classmethod
    def of(cls, title: str, values: Mapping[Any, Any], notes: Sequence[str] = ()) -> Table:
        """Names and values, one a row."""
        rows = [{"what": str(k).replace("_", " "), "value": v} for k, v in values.items()]
        return cls(title, rows, notes, head=False)

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in the order in which rows have them."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def _are_texts(self) -> list[bool]:
        """Column by column, whether it has no number, so that its cells begin on the left."""
        return [
            not any(isinstance(row.get(name), int | float) for row in self.rows)
            for name in self.columns
        ]

    def cells(self, longest: int = MAX_WIDTH) -> list[list[str]]:
        """The values of each row as texts; "" for a column that it lacks."""
        names = self.columns
        return [
            [short(spell(row[name]), longest) if name in row else "" for name in names]
            for row in self.rows
        ]

    def show(self, out: Console, longest: int = 120) -> None:
        """Print title, rows and notes on a terminal."""
        from rich.table import Table as Drawn
        from rich.text import Text

        look: dict[str, Any] = {} if self.head else {"box": None, "show_header": False}
        drawn = Drawn(**look)
        for at, name in enumerate(self.columns):
            drawn.add_column(Text(name), no_wrap=self.head and not at, overflow="fold")
        for row in self.cells(longest):
            drawn.add_row(*map(Text, row))
        if self.title:
            out.print(Text(self.title, "bold"))
        if self.rows:
            out.print(drawn)
        for note in self.notes:
            out.print(note)

    def to_pandas(self) -> DataFrame:
        """The rows as a frame. Raises MissingExtraError without pandas."""
        require("A table for pandas", "notebook", "pandas")
        from pandas import DataFrame

        return DataFrame(list(self.rows))

    def __repr__(self) -> str:
        lines = [
            ", ".join(f"{name} {cell}" for name, cell in zip(self.columns, cells, strict=True))
            for cells in self.cells()
        ]
        return "\n".join([self.title, *lines, *self.notes])

    def _repr_html_(self) -> str:
        kinds = [' class="text"' * text for text in self._are_texts]
        names = "".join(
            f'<th scope="col"{kind}>{_html(name)}</th>'
            for name, kind in zip(self.columns, kinds, strict=True)
        )
        body = "".join(
            f'<tr><th scope="row">{_html(first)}</th>'
            + "".join(
                f"<td{kind}>{_html(cell)}</td>" for cell, kind in zip(cells, kinds[1:], strict=True)
            )
            + "</tr>"
            for first, *cells in self.cells()
        )
        head = f"<thead><tr>{names}</tr></thead>" if self.head else ""
        caption = f"<caption>{_html(self.title)}</caption>" if self.title else ""
        notes = "".join(f'<p class="note">{_html(note)}</p>' for note in self.notes)
        return f'<div class="wide"><table>{caption}{head}<tbody>{body}</tbody></table></div>{notes}'

    __html__ = _repr_html_  # Jinja takes it as it is.


def show_all(
    out: Console, title: str, values: Mapping[Any, Any], notes: Sequence[str] = ()
) -> None:
    """Print any result: its names and values as a table, and then one for each list of records and
    each mapping that holds mappings or lists.
    """
    apart = {name: value for name, value in values.items() if _is_deep(value)}
    Table.of(title, {name: value for name, value in values.items() if name not in apart}).show(out)
    for name, value in apart.items():
        heading = name.replace("_", " ")
        if isinstance(value, Mapping):
            show_all(out, heading, value)
        else:
            Table(heading, value).show(out)
    Table("", (), notes).show(out)


def _is_deep(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(isinstance(inner, Mapping | list | tuple) for inner in value.values())
    return isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value[:1])


def spell(value: Any) -> str:
    """A value as a reader wants it: thousands apart, three decimals, yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {spell(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(spell, value)) or "none"
    return "none" if value is None else str(value)


def short(text: str, longest: int = MAX_WIDTH) -> str:
    """Untrusted text on one line, without control characters, and not too long."""
    line = visible(" ".join(text.split()), keep="")
    line = "".join(c if c.isprintable() or c in _JOINERS else "\ufffd" for c in line)
    return line if len(line) <= longest else line[: longest - 1] + "…"


_JOINERS = "\u200c\u200d"


def _html(text: str) -> str:
    return f"<bdi>{escape(text)}</bdi>"
