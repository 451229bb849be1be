"""Logs of our own packages on standard error: lines for people, or one JSON object a line.

A line carries what it is about (run, shard, snapshot, worker, side) by `bound`. The text of an
unexpected error may quote an item, so that it is shown at the level debug alone; above, a line has
the error's class and where it was raised.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any

from cogr.redaction import masked, one_line, visible
from cogr.settings.telemetry import LogSettings

PACKAGES = ("cogr", "indexers", "trainers", "ops")
FIELDS = ("side", "run", "snapshot", "shard", "worker", "stage")
"""What `bound` knows, and the fields of a JSON line beside time, level, logger and message."""

_SAYS = logging.getLogger("cogr.says")
_NOTHING: Mapping[str, str] = MappingProxyType({})
_bound: ContextVar[Mapping[str, str]] = ContextVar("cogr_log_fields", default=_NOTHING)

_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _State:
    """How this process logs."""

    verbose = False
    settings = LogSettings()


@contextmanager
def bound(**fields: str | None) -> Iterator[None]:
    """Put fields on every line that this context logs.

    A thread has them when it runs in a copy of the context.
    """
    unknown = fields.keys() - set(FIELDS)
    if unknown:
        raise ValueError(f"logs have no field {sorted(unknown)[0]}")
    token = _bound.set({**_bound.get(), **{name: value for name, value in fields.items() if value}})
    try:
        yield
    finally:
        _bound.reset(token)


def set_verbosity(verbose: bool) -> None:
    """What -v asks for, until and beside what the settings say."""
    _State.verbose = verbose
    configure(LogSettings())


def configure(settings: LogSettings) -> None:
    """Log our own packages as the settings say.

    Libraries are heard from warnings on, and only in JSON, to keep lines whole.
    """
    _State.settings = settings
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    level = min(level, logging.INFO) if _State.verbose else level
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


def show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python would print as a traceback; as one line of the log where that is JSON."""
    if structured():
        _SAYS.critical("this is a bug", exc_info=(kind, error, trace))
    else:
        told = "".join(traceback.format_exception(kind, error, trace))
        print(visible(masked(told)), end="", file=sys.stderr, flush=True)


def structured() -> bool:
    """Whether lines are JSON, so that nothing else belongs on standard error."""
    return _State.settings.format == "json"


def say(message: str, level: int = logging.INFO) -> None:
    """One line for whoever runs the command, whatever the level of the log."""
    if structured():
        _SAYS.log(level, "%s", message)
    else:
        # Not through the log: a line for people has no time and no logger, and is never wrapped.
        line = message.lstrip("\n")
        print("\n" * (len(message) - len(line)) + one_line(line), file=sys.stderr, flush=True)


class _Printable(logging.Formatter):
    """One line a message; no secrets, and nothing that steers a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return visible(masked(super().format(record)))


class _Discreet(_Printable):
    """Leaves the text of an error out unless everything is logged."""

    def formatException(self, raised: Any) -> str:  # noqa: N802  (logging's name)
        if logging.getLogger("cogr").isEnabledFor(logging.DEBUG):
            return super().formatException(raised)
        frames = "".join(traceback.format_tb(raised[2]))
        return f"{frames}{_class(raised)} (its text is logged at the level debug)"


class _Text(_Discreet):
    """For people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class _Json(_Discreet):
    """One object a line, ASCII, so that no text can break a line or a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        seconds, fraction = divmod(record.created, 1)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(fraction * 1000):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
            **_bound.get(),
            **_trace(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line |= {
                "error": _class(record.exc_info),
                "traceback": masked(self.formatException(record.exc_info)),
            }
        return json.dumps(line, ensure_ascii=True, default=str)


def _class(raised: _Raised) -> str:
    return raised[0].__name__ if raised[0] is not None else ""


def _trace() -> dict[str, str]:
    """Ids of the span under way, where traces are on."""
    from indexers.telemetry.traces import present

    return present()
