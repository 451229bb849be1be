"""URLs of settings: one check for all of them. What is refused is never repeated, since it may have
a password in it.

A `/`, `?` or `#` in a password ends the part of a URL that has one, and libraries then take the
rest for host, port or path, and say so. Such a URL is refused before any library sees it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

_ESCAPE = (
    "it has an @ behind its host; in a user, a password or a path write %40 for @, %2F for /, "
    "%3F for ? and %23 for #"
)

_WITH_HOST = ("http", "https", "ftp", "sftp", "ssh", "smb", "webhdfs", "hdfs")
"""Schemes of stores that have a host before the path, and maybe a port; others have a
bucket there.
"""


def http_url(url: str | None) -> str | None:
    """The validator of a setting that names a service by HTTP. Raises ValueError."""
    if url is not None:
        check_url(url, ("http", "https"), "http://host:port")
    return url


def store_url(url: str) -> str:
    """The validator of a folder or fsspec URL, in whose path an @ may stand. Raises ValueError."""
    begin, _, rest = url.partition("://")
    authority = _authority(rest)
    # user:pass/word@host, us/er:password@host: what looks like a user and is read as host and path.
    if "@" in rest[len(authority) :] and ":" in rest.rpartition("@")[0]:
        raise ValueError(_ESCAPE)
    if begin in _WITH_HOST:
        _split(url, f"{begin}://host/folder")
    return url


def check_url(
    url: str, schemes: Collection[str], example: str, *, host: bool = True
) -> SplitResult:
    """The parts of a URL.

    Args:
        schemes: what it may begin with.
        example: a right one, for the refusal.
        host: it must name a host.

    Raises:
        ValueError: it is none, as one sentence that does not repeat it.
    """
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError(f"it has a space or a control character in it; write it as {example}")
    begin, found, rest = url.partition("://")
    if not found or begin.lower() not in schemes:
        raise ValueError(f"it is no URL; write it as {example}")
    if "@" in rest[len(_authority(rest)) :]:
        raise ValueError(_ESCAPE)
    parts = _split(url, example)
    if host and not parts.hostname:
        raise ValueError(f"it names no host; write it as {example}")
    return parts


def _split(url: str, example: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port, name = parts.port, parts.hostname or ""
        if ":" not in name:
            name.encode("idna")
    except ValueError as error:
        raise ValueError(f"its host or its port is none; write it as {example}") from error
    if port == 0:
        raise ValueError(f"its host or its port is none; write it as {example}")
    return parts


def _authority(rest: str) -> str:
    """User, password, host and port: what stands between the slashes and the path."""
    return re.split(r"[/?#]", rest, maxsplit=1)[0]
