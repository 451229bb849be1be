"""Logs of our own packages on standard error: lines for people, or one JSON object a line.

`bound` adds fields to each line: run, shard, snapshot, worker, side, stage. The text of an
unexpected error may quote an item, so a line has the error's class and place alone.
"""

from __future__ import annotations

import logging
import re
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from cogr.redaction import masked, one_line, visible
from cogr.settings.serving import LogSettings

PACKAGES = ("cogr", "indexers", "trainers", "ops")

_SAYS = logging.getLogger("cogr.says")
_bound: ContextVar[Mapping[str, str]] = ContextVar("cogr_log_fields")


class _State:
    verbose = False
    config: Path | None = None
    settings = LogSettings()


@contextmanager
def bound(**fields: str | None) -> Iterator[None]:
    """Put fields on every line that this context logs: side, run, snapshot, shard, worker, stage.

    A thread has them when it runs in a copy of the context.
    """
    token = _bound.set(
        {**_bound.get({}), **{name: value for name, value in fields.items() if value}}
    )
    try:
        yield
    finally:
        _bound.reset(token)


def begin(*, verbose: bool = False, config: Path | None = None) -> None:
    """Begin a command: apply -v at once, which `configure` keeps when it is called with the
    settings later; `advised` names the configuration.
    """
    _State.verbose, _State.config = verbose, config
    configure(LogSettings())


_COMMAND = re.compile(
    r"\bcogr-(index|train|ops) ((import|export|labels) [a-z-]+|rebuild|update|publish|rollback|"
    r"verify|prune|list|search|diff|inspect|status|run|evaluate|report|serve|worker)\b"
)


def advised(text: str) -> str:
    """A text whose commands name the configuration that this one was given, so that they run as
    they are printed.
    """
    option = f" -c {shlex.quote(str(_State.config))}" if _State.config else ""
    return text if option in text else _COMMAND.sub(rf"\g<0>{option}", text)


def configure(settings: LogSettings) -> None:
    """Log our own packages as the settings say.

    Libraries' warnings are part of the log in JSON alone, so that every line is one object.
    """
    _State.settings = settings
    level = logging.INFO if _State.verbose else logging.WARNING
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if structured() else _Text())
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = not structured()
    _SAYS.setLevel(logging.INFO)
    root = logging.getLogger()
    root.handlers = [one for one in root.handlers if not isinstance(one.formatter, _Json)]
    root.handlers += [handler] if structured() else []
    logging.captureWarnings(structured())
    if logging.lastResort is not None:
        # What libraries log where nobody has set up logging for them.
        logging.lastResort.setFormatter(_Printable())
    sys.excepthook = show_bug


def adopt(package: str) -> None:
    """Log a library's warnings as ours, where it would keep them to itself."""
    if not structured():  # The root's handler has them.
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Text())
        handler.setLevel(logging.WARNING)
        logging.getLogger(package).addHandler(handler)


def show_bug(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """What Python would print as a traceback; as one line of the log where that is JSON."""
    if structured():
        _SAYS.critical("this is a bug", exc_info=(kind, error, where))
    else:
        report = "".join(traceback.format_exception(kind, error, where))
        print(visible(masked(report)), end="", file=sys.stderr, flush=True)


def structured() -> bool:
    """Whether lines are JSON, so that nothing else belongs on standard error."""
    return _State.settings.format == "json"


def say(message: str, level: int = logging.INFO) -> None:
    """One line for whoever runs the command, whatever the level of the log."""
    if structured():
        _SAYS.log(level, "%s", message)
    else:
        # Not through the log: a line for people has no time and no logger, and is never wrapped.
        line = advised(message).lstrip("\n")
        print("\n" * (len(message) - len(line)) + one_line(line), file=sys.stderr, flush=True)


class _Printable(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return visible(masked(super().format(record)))


class _Discreet(logging.Formatter):
    def formatException(self, raised: Any) -> str:  # noqa: N802  (logging's name)
        frames = "".join(traceback.format_tb(raised[2]))
        return f"{frames}{raised[0].__name__ if raised[0] else ''}"


class _Text(_Discreet, _Printable):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class _Json(_Discreet, JsonFormatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def add_fields(
        self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
    ) -> None:
        log_data |= {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
            **_bound.get({}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            log_data["error"] = record.exc_info[0].__name__
            log_data["traceback"] = masked(message_dict["exc_info"])
