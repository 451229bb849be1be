"""The base of every table of settings: unknown keys are errors, defaults are checked too, and no value is out of all bounds."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

LONGEST = 2_000_000.0
"""Seconds that a setting may have at most, 23 days: what the time-out of a socket can be."""
_LARGEST = 2**53
_CONTROLS = frozenset(map(chr, (*range(32), 127))) - set("\t\n\r")


def sound(value: Any) -> Any:
    """A value as it is. Raises ValueError for one that no file system, no JSON and no other language can take."""
    if isinstance(value, str) and not _CONTROLS.isdisjoint(value):
        raise ValueError("it has a control character in it")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"input should be at most {_LARGEST}")
    return value


class Table(BaseModel):
    """One table of the configuration."""

    # What is refused may have a secret in it.
    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False, hide_input_in_errors=True)

    _sound = field_validator("*")(sound)
