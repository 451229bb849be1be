"""Damage done to one of the files below a folder."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

Harm = Callable[[bytes, random.Random], bytes | None]
"""What damage makes of a file's bytes; None removes it."""


def _flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))] if data else b""


def _zeros(data: bytes, draw: random.Random) -> bytes:
    """A page that never reached the disk."""
    start = draw.randrange(len(data)) if data else 0
    return data[:start] + bytes(len(data) - start)


OTHER = (b"[]", b"{}", b"null", b"7", b'"x"', b"[1]", b'{"a": 1}', b"[[]]", b"\xff\xfe")


def _other_json(_: bytes, draw: random.Random) -> bytes:
    return draw.choice((*OTHER, b"[" * 100_000))


HARMS: dict[str, Harm] = {
    "flipped": _flip,
    "cut": _cut,
    "empty": lambda data, draw: b"",
    "zeros": _zeros,
    "other": _other_json,
    "gone": lambda data, draw: None,
}


def damage(file: Path, how: str, draw: random.Random) -> None:
    """Do one file harm."""
    after = HARMS[how](file.read_bytes(), draw)
    if after is None:
        file.unlink()
    else:
        file.write_bytes(after)


def files_below(folder: Path, without: Sequence[str] = ()) -> Iterator[Path]:
    """Every file, in a fixed order, but those whose path has one of these parts."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not set(file.relative_to(folder).parts) & set(without):
            yield file
