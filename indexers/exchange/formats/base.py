"""What a format is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cogr.records import Side
from cogr.snapshots import Row, Snapshot


def nothing_beside(_snapshot: Snapshot, _prefix: str) -> Mapping[str, str]:
    """A format of one file."""
    return {}


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        pieces: the file's text, streaming, of a snapshot and the prefix of index names.
        beside: ending -> text of the files beside it.
        side: the only side that it makes sense for; None for both.
    """

    pieces: Callable[[Snapshot, str], Iterator[str]]
    beside: Callable[[Snapshot, str], Mapping[str, str]] = nothing_beside
    side: Side | None = None


def line(value: Any) -> str:
    """One JSON object on a line."""
    return json.dumps(value, ensure_ascii=False) + "\n"


def page(value: Any) -> str:
    """JSON for people."""
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def whole_set(row: Row) -> list[str]:
    """S ∪ {self}: the own text's keyword first."""
    return [word for word in dict.fromkeys((row.self_keyword, *row.keywords)) if word]
