"""What `examine` found, as one HTML file that needs no network and holds no script.

Texts of queries and items are untrusted: they reach the page only through the template's escaping.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cogr import __version__
from cogr.errors import MissingExtraError
from cogr.redaction import page_template, visible
from cogr.store import Store
from indexers.inspection import Findings

_LONGEST_TEXT = 200


def check_extra() -> None:
    """Raise MissingExtraError where the page can't be written."""
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("The page of cogr-index inspect", "data") from error


def write_page(findings: Findings, file: Path) -> None:
    """Write the page, replacing the file atomically.

    Raises MissingExtraError without jinja2, StorageError when the file can't be written.
    """
    data = render(findings).encode("utf-8", "replace")
    Store(file.resolve().parent).write(file.name, data)


def render(findings: Findings) -> str:
    check_extra()
    return page_template("indexers.inspection", _clean).render(
        found=findings,
        counts=findings.counts,
        spreads=_spreads(findings.counts.as_dict()),
        version=__version__,
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    )


def _clean(text: object) -> str:
    shown = " ".join(visible(str(text)).split())
    return shown if len(shown) <= _LONGEST_TEXT else f"{shown[: _LONGEST_TEXT - 1]}…"


def _spreads(counts: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    """Rows of the table of lengths: name, and mean, median, p95, max."""
    rows = [
        (f"relevant items a query, {split}", spread)
        for split, spread in counts["relevant_per_query"].items()
    ]
    return [
        *rows,
        *((f"words of {name}", lengths["words"]) for name, lengths in counts["lengths"].items()),
    ]
