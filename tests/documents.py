"""The checkout, and the examples in its documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def examples(page: str, language: str) -> list[str]:
    """The fenced blocks of a page that are in this language."""
    text = (DOCS / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
