"""What the commands share: their common options, exit status, error sentences, `--json` and the
next useful command.

A command takes one `Call` in place of the common options. Standard output belongs to the result, a
table for people or one JSON object; everything else (progress, messages, errors) goes to standard
error. `indexers.telemetry.terminal` makes the console, which shows characters that control a
terminal as escapes. No command logic here.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from typer import Option

from cogr import __version__
from cogr.errors import INTERRUPTED, CogrError
from cogr.records import Side
from cogr.redaction import learn_words
from cogr.settings.indexing import GeneratorName
from indexers.telemetry import logs
from indexers.telemetry.terminal import console_of

if TYPE_CHECKING:
    from indexers.workspace import Workspace

# New versions of typer carry a click of their own, older ones import click: this names the right
# class in both.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]


def run(app: typer.Typer) -> NoReturn:
    """Run a command line and end the process with its exit status.

    A CogrError becomes its one sentence on standard error and its `exit_status`; a wrong option or
    argument exits with 2, Ctrl-C with 130. Anything else is a bug and keeps its traceback.
    """
    logs.begin()
    learn_words(sys.argv[1:])
    try:
        status = app(standalone_mode=False)
    except CogrError as error:
        _fail(str(error), error.exit_status)
    except _UsageError as error:
        _fail(_usage_sentence(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except Exception:
        # After typer, which puts its own hook there.
        sys.excepthook = logs.show_bug
        raise
    if status == INTERRUPTED:
        # If Ctrl-C came inside exec("..."), as imports of named tuples have it, CPython ends the
        # process by SIGINT whatever its exit status is. It forgets that at the next exec.
        exec("")
        _fail("Interrupted.", INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(sentence: str, status: int) -> NoReturn:
    if sentence:
        logs.say(sentence, logging.ERROR)
    sys.exit(status)


def _usage_sentence(error: Any) -> str:
    message = " ".join(str(error.format_message()).split()).replace("Value error, ", "")
    context = error.ctx
    if not message or context is None:
        return message
    return f"{message.rstrip('.')}. Run {context.command_path} --help to see what there is."


def emit(json_mode: bool, payload: Mapping[str, Any], human: Callable[[Console], None]) -> None:
    """Write a command's result to standard output."""
    if json_mode:
        # JSON escapes every control character but the last of ASCII's.
        print(json.dumps(dict(payload), default=_plain, allow_nan=False).replace("\x7f", "\\u007f"))
    else:
        human(console_of(sys.stdout))
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


note = logs.say
"""One line for the reader, on standard error, never wrapped."""


def next_command(command: str) -> None:
    """Print the next useful command, ready to run: see `runnable`."""
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


ConfigOption = Annotated[
    Path | None,
    # Whether it can be read is said by who reads it, in our words.
    Option(
        "-c",
        "--config",
        help="Configuration file; ./cogr.toml by default.",
        show_default=False,
        readable=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one setting, e.g. opensearch.prefix=shop. Repeatable.",
    ),
]
JsonOption = Annotated[
    bool, Option("--json", help="Print one JSON object on standard output and nothing else there.")
]
VerboseOption = Annotated[bool, Option("-v", "--verbose", help="Log each step to standard error.")]


BackendName = Literal["memory", "opensearch"]
WorkersName = Literal["local", "celery"]

DryRunOption = Annotated[bool, Option("--dry-run", help="Say what it would do; do nothing else.")]
GeneratorOption = Annotated[
    GeneratorName | None, Option(help="Use this generator instead of the configured one.")
]
SideOption = Annotated[Side, Option(help="Which side: items or queries.")]


class SideName(StrEnum):
    """Sides as choices of an option that repeats: typer takes no list of a Literal."""

    item = "item"
    query = "query"


SidesOption = Annotated[
    list[SideName] | None,
    Option("--side", help="Serve only this side, query or item; repeatable.  [default: both]"),
]
PushOption = Annotated[bool, Option(help="Write the snapshot to the backend.")]
PublishOption = Annotated[bool, Option(help="Publish the snapshot once it is verified.")]
WorkersOption = Annotated[
    WorkersName | None,
    Option(help="Overrides rebuild.workers. local: in this process; celery: on workers."),
]

# How the log of a web server tells searches and clicks.
ItemPathOption = Annotated[
    str | None,
    Option(help="Path of an item, such as /p/{item}: LOG is the access log of a web server."),
]
ParameterOption = Annotated[str, Option(help="URL parameter of the query, with --item-path.")]


@dataclass(frozen=True)
class Call:
    """Values of the common options of a command. See `common_options`."""

    config: Path | None = None
    overrides: list[str] = field(default_factory=list)
    json: bool = False
    program: str = "cogr-index"

    @cached_property
    def workspace(self) -> Workspace:
        """The workspace of the configuration, opened at its first use. Raises SettingsError."""
        from indexers.workspace import Workspace

        workspace = Workspace.open(self.config, self.overrides)
        logs.configure(workspace.settings.log)
        return workspace

    def push_metrics(self, command: str, side: object = None) -> None:
        """Push what the command counted, where the settings were read and name a Pushgateway.

        The group is the command and, as instance, `opensearch.prefix`: deployments that share a
        cluster need different ones, and it stays the same from one Job's pod to the next.
        """
        workspace: Workspace | None = self.__dict__.get("workspace")
        if workspace is None or not workspace.settings.metrics.pushgateway:
            return
        from indexers.telemetry import prometheus

        words = (self.program, command.strip("_"), side if isinstance(side, str) else "")
        settings = workspace.settings
        prometheus.push_metrics(
            settings.metrics, "-".join(filter(None, words)), settings.opensearch.prefix
        )

    def emit(self, payload: Mapping[str, Any], human: Callable[[Console], None]) -> None:
        """Write the command's result, as JSON or for people (`console.emit`)."""
        emit(self.json, payload, human)

    def show(
        self,
        title: str,
        payload: Mapping[str, Any],
        *,
        told: Mapping[str, Any] | None = None,
        hide: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        """Write the result, for people as tables of names and values."""
        from indexers.tables import show_all

        shown = {n: v for n, v in (payload if told is None else told).items() if n != hide}
        self.emit(payload, lambda out: show_all(out, title, shown, notes))


_PROGRAMS = {"indexers": "cogr-index", "trainers": "cogr-train", "ops": "cogr-ops"}


EncodingOption = Annotated[
    str | None, Option(help="Encoding of the files, such as cp1250; detected by default.")
]


def common_options(
    *, json: bool = True, files: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the common options. It takes them as one parameter of the type `Call`.
    `files`: also --encoding, for one that is given text files.

    In --help, --config and --set come at the place of the `Call`, the others at the end.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        place = next(name for name, one in signature.parameters.items() if one.annotation is Call)
        program = _PROGRAMS[command.__module__.partition(".")[0]]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            overrides, json = given.pop("set_") or [], given.pop("json_", False)
            if encoding := given.pop("encoding", None):
                overrides.append(f"dataset.encoding={encoding}")
            call = Call(given.pop("config"), overrides, json, program)
            logs.begin(verbose=given.pop("verbose"), config=call.config)
            try:
                command(**given, **{place: call})
            finally:
                call.push_metrics(command.__name__, given.get("side"))

        called.__signature__ = _spread(signature, place, json, files)  # type: ignore[attr-defined]
        # What typer resolves names by; those of the signature are resolved already.
        called.__annotations__ = {}
        return called

    return decorate


def _spread(signature: inspect.Signature, place: str, json: bool, files: bool) -> inspect.Signature:
    parameters = []
    for name, parameter in signature.parameters.items():
        if name == place:
            parameters += [_option("config", ConfigOption), _option("set_", SetOption)]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    parameters += [_option("encoding", EncodingOption)] if files else []
    parameters += [_option("json_", JsonOption, False)] if json else []
    parameters.append(_option("verbose", VerboseOption, False))
    return signature.replace(parameters=parameters)


def _option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def program(name: str, help_: str) -> typer.Typer:
    """A program without commands yet, with the option --version."""
    app = typer.Typer(
        name=name,
        help=help_,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )

    def show(asked: bool) -> None:
        if asked:
            print(f"{name} {__version__}")
            raise typer.Exit

    @app.callback()
    def main(
        version: bool = Option(
            False, "--version", callback=show, is_eager=True, help="Show the version and exit."
        ),
    ) -> None:
        pass

    return app


def time_option(help_: str) -> Any:
    """The option --since, a day or a time such as 2026-01-31T12:00:00Z; without a zone in UTC."""

    def parse(text: str) -> datetime:
        from cogr.datasets.fields import in_utc

        return in_utc(datetime.fromisoformat(text))

    return Option(metavar="TIME", parser=parse, help=help_)
