"""Least-privilege roles for the security plugin, shipped as the JSON files beside.

What each may do: docs/opensearch.md.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

NAMES = ("writer", "publisher", "reader", "merger")


def role(name: str, prefix: str, index: str = "") -> dict[str, Any]:
    """The body of `PUT _plugins/_security/api/roles/<role>`.

    Args:
        name: one of NAMES.
        prefix: the catalogue whose indexes it is for, and no other's.
        index: for `merger`, the product index (or alias) that keywords are written into.
    """
    text = files(__package__).joinpath(f"{name}.json").read_text("utf-8")
    filled: dict[str, Any] = json.loads(text, object_hook=lambda one: _filled(one, prefix, index))
    return filled


def _filled(one: dict[str, Any], prefix: str, index: str) -> dict[str, Any]:
    patterns = one.get("index_patterns")
    if patterns is not None:
        one["index_patterns"] = [_named(pattern, prefix, index) for pattern in patterns]
    return one


def _named(pattern: str, prefix: str, index: str) -> str:
    """Between slashes a pattern is a regular expression."""
    spelled = re.escape(prefix) if pattern.startswith("/") else prefix
    return pattern.replace("PREFIX", spelled).replace("INDEX", index)
