"""The table that a drill ends with: what was done, and what came of it.

Pytest prints it after the last test.
"""

from __future__ import annotations


class Table:
    """Rows in the order in which they came."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def add(self, drill: str, what: str, result: str) -> None:
        """One thing that was done, and its result."""
        self.rows.append((drill, what, result))

    def lines(self) -> list[str]:
        """The table for a terminal."""
        widths = (
            [max(len(row[column]) for row in self.rows) for column in (0, 1)]
            if self.rows
            else [0, 0]
        )
        return [
            f"{drill:{widths[0]}}  {what:{widths[1]}}  {result}"
            for drill, what, result in self.rows
        ]


TABLE = Table()
