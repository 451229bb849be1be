"""The base of every table of settings: unknown keys are errors, defaults are checked too, and no
value is out of all bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, SecretStr, field_validator

LONGEST = 2_000_000.0
"""Seconds that a setting may have at most, 23 days: what the time-out of a socket can be."""
_LARGEST = 2**53
_LONGEST_NAME, _LONGEST_PATH = 255, 4000
_CONTROLS = frozenset(map(chr, (*range(32), 127))) - set("\t\n\r")


def sound(value: Any) -> Any:
    """A value as it is. Raises ValueError for one that no file system, no JSON and no other
    language can take.
    """
    if isinstance(value, SecretStr):
        # A line break at its end comes from a file, and no header takes it.
        _check_text(value.get_secret_value(), _CONTROLS | set("\t\n\r"))
    if isinstance(value, str):
        _check_text(value, _CONTROLS)
    for inner in _members(value):
        sound(inner)
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"input should be at most {_LARGEST}")
    return value


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    return value if isinstance(value, tuple) else ()


def usable_path(value: str | None) -> str | None:
    """The validator of a file, a folder or a URL.

    Raises ValueError for a name that no disk can have.
    """
    try:
        parts = Path(value or "").expanduser().parts
    except RuntimeError as error:
        raise ValueError("there is no user of this name, whose home it would be") from error
    if (
        any(len(part.encode()) > _LONGEST_NAME for part in parts)
        or len((value or "").encode()) > _LONGEST_PATH
    ):
        raise ValueError("the name is longer than a file's can be")
    return value


def _check_text(text: str, refused: Collection[str]) -> None:
    if any(character in refused for character in text):
        raise ValueError("it has a line break or another control character in it")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("it is no valid UTF-8")


class Table(BaseModel):
    """One table of the configuration."""

    # What is refused may have a secret in it.
    model_config = ConfigDict(
        extra="forbid", validate_default=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    _sound = field_validator("*")(sound)
