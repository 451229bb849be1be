"""What the commands share: exit status, error sentences, `--json` and the next useful command.

Standard output belongs to the result, a table for people or one JSON object; everything else (progress, messages,
errors) goes to standard error. No command logic here.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, NoReturn

import typer
from rich.console import Console

from cogr.errors import CogrError
from indexers.telemetry import logs

INTERRUPTED = 130
"""Exit status after Ctrl-C."""

PIPED_WIDTH = 120
"""Columns of a table when the output is no terminal (and COLUMNS is not set)."""

# New versions of typer carry a click of their own, older ones import click: this names the right class in both.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]


def run(app: typer.Typer) -> NoReturn:
    """Run a command line and end the process with its exit status.

    A CogrError becomes its one sentence on standard error and its `exit_status`; a wrong option or argument exits
    with 2, Ctrl-C with 130. Anything else is a bug and keeps its traceback.
    """
    try:
        status = app(standalone_mode=False)
    except CogrError as error:
        _fail(str(error), error.exit_status)
    except _UsageError as error:
        _fail(_usage_sentence(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("Interrupted.", INTERRUPTED)
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
    message = " ".join(str(error.format_message()).split())
    context = error.ctx
    if not message or context is None:
        return message
    return f"{message.rstrip('.')}. Run {context.command_path} --help to see what there is."


def emit(json_mode: bool, payload: Mapping[str, Any], human: Callable[[Console], None]) -> None:
    """Write a command's result to standard output.

    Args:
        json_mode: one JSON object on one line, and nothing else.
        payload: what the object says; paths become strings.
        human: writes the same for people. Its console reads no markup, so text from items can be printed as it is.
    """
    if json_mode:
        print(json.dumps(dict(payload), default=_plain, allow_nan=False))
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


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)
