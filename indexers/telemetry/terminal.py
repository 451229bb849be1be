"""What a process shows to whoever runs it: a console that lets no text steer the terminal, progress
as a bar or as lines, and durations.

Commands and libraries use it alike. Lines of text go through `logs.say`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from cogr.records import Advance
from cogr.redaction import visible
from indexers.telemetry import logs

PIPED_WIDTH = 120
"""Columns of a table when the output is not a terminal (and COLUMNS is not set)."""

FIRST_LINE = 5.0
NEXT_LINE = 30.0
"""Seconds after which a line of progress is written, where no bar is shown."""
_TELLING = 0.1
"""Share of the work that must be done before its time left is estimated: the first part often
loads a model.
"""


class _VisibleConsole(Console):
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        if (
            isinstance(renderable, Text)
            and (shown := visible(logs.advised(renderable.plain))) != renderable.plain
        ):
            renderable = Text(shown, renderable.style)
        for segment in super().render(renderable, options):
            # What has no control codes of rich's own is text.
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def console_of(stream: TextIO) -> Console:
    """A console that writes to standard output or standard error, without markup."""
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    return _VisibleConsole(
        stderr=stream is sys.stderr, width=width, markup=False, emoji=False, highlight=False
    )


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Advance]:
    """Print progress and time left on standard error; nothing if there is nothing to do.

    A bar on a terminal; otherwise lines, also in the log: one after 5 seconds, then one every 30,
    and one at the end.
    """
    console = console_of(sys.stderr)
    if not total:
        yield lambda _: None
    elif logs.structured() or not console.is_terminal:
        lines = _Lines(what, total)
        yield lines.advance
        lines.end()
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Left())
        with Progress(*columns, MofNCompleteColumn(), console=console) as progress:
            task = progress.add_task(what, total=total)
            yield lambda count: progress.advance(task, count)


class _Left(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        return super().render(task) if task.percentage >= 100 * _TELLING else Text("-:--:--")


class _Lines:
    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._began = time.monotonic()
        self._next = self._began + FIRST_LINE

    def advance(self, count: int) -> None:
        self._done += count
        now, todo = time.monotonic(), self._total - self._done
        if now >= self._next and todo > 0:
            left = ""
            if self._done >= _TELLING * self._total:
                left = f", {duration(todo * (now - self._began) / self._done)} left"
            logs.say(f"{self._what}: {self._done:,} of {self._total:,}{left}")
            self._next = now + NEXT_LINE

    def end(self) -> None:
        logs.say(f"{self._what}: {self._done:,} in {duration(time.monotonic() - self._began)}")


def duration(seconds: float) -> str:
    """5.2 s, 3:07 min, 2:05 h."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
