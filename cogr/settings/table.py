"""The base of every table of settings, and the checks of values that several tables share.

Unknown keys are errors, defaults are checked too, and no value is out of all bounds. A URL that is
refused is never repeated, since it may have a password in it. A `/`, `?` or `#` in a password ends
the part of a URL that has one; libraries then take the rest for host, port or path, and say so.
Such a URL is refused before any library sees it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, SecretStr, field_validator

MAX_SECONDS = 2_000_000.0
"""Seconds that a setting may have at most, 23 days: what the time-out of a socket can be."""
_LARGEST = 2**53
_MAX_NAME = 255
_ESCAPE = (
    "it has an @ behind its host; in a user, a password or a path write %40 for @, %2F for /, "
    "%3F for ? and %23 for #"
)


def sound(value: Any) -> Any:
    """A value as it is. Raises ValueError for one that no file system, no JSON and no other
    language can take.
    """
    text, kept = value, "\t\n\r"
    if isinstance(value, SecretStr):
        # A line break at its end comes from a file, and no header takes it.
        text, kept = value.get_secret_value(), ""
    if isinstance(text, str) and any(
        unicodedata.category(sign) in ("Cc", "Cs") and sign not in kept for sign in text
    ):
        raise ValueError("it contains a line break or a control character")
    members = [*value, *value.values()] if isinstance(value, dict) else value
    for inner in members if isinstance(members, list | tuple) else ():
        sound(inner)
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"input should be at most {_LARGEST}")
    return value


def usable_path(value: str | None) -> str | None:
    """The validator of a file, a folder or a URL.

    Raises ValueError for a name that no file system accepts.
    """
    try:
        parts = Path(value or "").expanduser().parts
    except RuntimeError as error:
        raise ValueError("there is no user of this name") from error
    if any(len(part.encode()) > _MAX_NAME for part in parts):
        raise ValueError("the name is too long for a file")
    return value


class SettingsTable(BaseModel):
    """One table of the configuration, in which an unknown key is an error."""

    # What is refused may have a secret in it.
    model_config = ConfigDict(
        extra="forbid", validate_default=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    _sound = field_validator("*")(sound)


def http_url(url: str | None) -> str | None:
    """The validator of a setting that names a service by HTTP. Raises ValueError."""
    if url is not None:
        check_url(url, ("http", "https"), "http://host:port")
    return url


def check_url(
    url: str, schemes: Collection[str], example: str, *, host: bool = True
) -> SplitResult:
    """The parts of a URL.

    Args:
        example: a right one, for the refusal.

    Raises:
        ValueError: it is none, as one sentence that does not repeat it.
    """
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError(f"it contains a space or a control character; write it as {example}")
    begin, separator, rest = url.partition("://")
    if not separator or begin.lower() not in schemes:
        raise ValueError(f"it is not a URL; write it as {example}")
    if "@" in rest[len(re.split(r"[/?#]", rest, maxsplit=1)[0]) :]:
        raise ValueError(_ESCAPE)
    try:
        parts = urlsplit(url)
        port, name = parts.port, parts.hostname or ""
        (name if ":" not in name else "").encode("idna")
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"the host or port is invalid; write it as {example}") from None
    if host and not name:
        raise ValueError(f"the host is missing; write it as {example}")
    return parts
