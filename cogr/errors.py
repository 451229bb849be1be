"""The error tree. Every error that a user can meet is one sentence: what is wrong, where, what to
do. Tracebacks are for bugs: anything outside this tree.
"""

from __future__ import annotations

import importlib.util

from cogr.redaction import masked

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


class CogrError(Exception):
    """Base of every error that the toolkit raises on purpose. Its sentence holds no secret."""

    exit_status = 2

    def __init__(self, sentence: str = "") -> None:
        super().__init__(masked(sentence))


class UserError(CogrError):
    """Wrong input of the user; the message says what, where, and what to do."""


class SettingsError(UserError):
    """A configuration file, environment variable or flag is wrong."""


class DataError(UserError):
    """A data set, record or judgement is wrong.

    The message names the file and line where there is one.
    """


class SnapshotError(UserError):
    """A snapshot is unknown, broken, or can't be used with another one."""


class GeneratorError(UserError):
    """A generator can't be set up or can't be used in this way."""


class TrainingError(UserError):
    """A training run can't be set up or can't continue: batch sizes, checkpoints, a changed
    configuration, a loss that is not finite.
    """


class StorageError(UserError):
    """A store can't be read or written: full, read-only, missing."""


class LockedError(UserError):
    """Another process holds the lock.

    Attributes:
        held: who holds what, for messages of those that wait.
    """

    def __init__(self, sentence: str = "", held: str = "") -> None:
        super().__init__(sentence)
        self.held = masked(held)


class MissingExtraError(UserError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': run pip install 'cogr[{extra}]'.")


def require(what: str, extra: str, *packages: str) -> None:
    """Raise MissingExtraError where one of the packages is not installed."""
    if not all(map(importlib.util.find_spec, packages)):
        raise MissingExtraError(what, extra)


class CheckFailedError(CogrError):
    """A gate, a parity check or a verification said no; nothing was switched."""

    exit_status = 1


class ServiceError(CogrError):
    """A service (OpenSearch, an LLM endpoint) can't be reached or refuses; run the command again
    later.
    """

    exit_status = 3
