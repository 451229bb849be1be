"""What the commands share: exit status, error sentences, `--json` and the next useful command.

Standard output belongs to the result, a table for people or one JSON object; everything else
(progress, messages, errors) goes to standard error. Texts of items and of servers go through here
to a terminal, and come out without characters that steer it (`cogr.redaction`). No command logic
here.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from cogr.errors import CogrError
from cogr.redaction import learn_words, visible
from indexers.telemetry import logs

INTERRUPTED = 130
"""Exit status after Ctrl-C."""

PIPED_WIDTH = 120
"""Columns of a table when the output is no terminal (and COLUMNS is not set)."""

# New versions of typer carry a click of their own, older ones import click: this names the right
# class in both.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]


def run(app: typer.Typer) -> NoReturn:
    """Run a command line and end the process with its exit status.

    A CogrError becomes its one sentence on standard error and its `exit_status`; a wrong option or
    argument exits with 2, Ctrl-C with 130. Anything else is a bug and keeps its traceback.
    """
    logs.set_verbosity(False)
    learn_words(sys.argv[1:])
    try:
        status = app(standalone_mode=False)
    except CogrError as error:
        _fail(str(error), error.exit_status)
    except _UsageError as error:
        _fail(_usage_sentence(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("Interrupted.", INTERRUPTED)
    except Exception:
        # After typer, which puts its own hook there.
        sys.excepthook = logs.show_bug
        raise
    if status == INTERRUPTED:
        _fail("Interrupted.", INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(sentence: str, status: int) -> NoReturn:
    """End the process; the sentence is not wrapped and not read as markup."""
    if sentence:
        logs.say(sentence, logging.ERROR)
    sys.exit(status)


def _usage_sentence(error: Any) -> str:
    """One sentence for a usage error, or "" when typer has printed the help instead."""
    message = " ".join(str(error.format_message()).split()).replace("Value error, ", "")
    context = error.ctx
    if not message or context is None:
        return message
    return f"{message.rstrip('.')}. Run {context.command_path} --help to see what there is."


def emit(json_mode: bool, payload: Mapping[str, Any], human: Callable[[Console], None]) -> None:
    """Write a command's result to standard output.

    Args:
        json_mode: one JSON object on one line, and nothing else.
        payload: what the object says; paths become strings.
        human: writes the same for people. Its console reads no markup and shows control characters
            as escapes, so text from items can be printed as it is, best as a plain string.
    """
    if json_mode:
        # JSON escapes every control character but the last of ASCII's.
        print(json.dumps(dict(payload), default=_plain, allow_nan=False).replace("\x7f", "\\u007f"))
    else:
        human(_console(stderr=False))
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """A path as a string; anything else that JSON can't say is a bug."""
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def stderr_console() -> Console:
    """A console for progress and messages."""
    return _console(stderr=True)


def note(message: str) -> None:
    """One line for the reader, on standard error, never wrapped."""
    logs.say(message)


def next_command(command: str) -> None:
    """Say what to type next, as a line that works as it stands: see `runnable`."""
    note(f"Next: {runnable(command)}")


def runnable(command: str) -> str:
    """The command line with the path of its program, where the name alone would not be found.

    A virtual environment that is not activated (`make demo` leaves one) is not on the PATH. The
    path is relative to the working directory where the program lies below it.
    """
    program, space, rest = command.partition(" ")
    beside = Path(sys.executable).parent / program
    if shutil.which(program) or not beside.is_file():
        return command
    if beside.is_relative_to(Path.cwd()):
        beside = beside.relative_to(Path.cwd())
    return f"{shlex.quote(str(beside))}{space}{rest}"


class _VisibleConsole(Console):
    """A console that steers the terminal itself, and lets no text do so: see
    `cogr.redaction.visible`.
    """

    def render_str(self, text: str, *args: Any, **kwargs: Any) -> Text:
        return super().render_str(visible(text), *args, **kwargs)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        if (
            isinstance(renderable, Text)
            and (shown := visible(renderable.plain)) != renderable.plain
        ):
            renderable = Text(shown, renderable.style)
        for segment in super().render(renderable, options):
            # What has no control codes of rich's own is text.
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    return _VisibleConsole(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)
