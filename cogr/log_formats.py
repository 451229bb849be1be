"""How query logs are written, as the choices of options; imports nothing, so that every command
starts at once.
"""

from __future__ import annotations

from enum import StrEnum

CLICKS = ("click", "item_click", "product_click", "add_to_cart", "purchase")
"""UBI's `action_name` of events that count as a click, unless told otherwise."""


class LogFormat(StrEnum):
    """How a log is written, as an option's choices."""

    auto = "auto"
    jsonl = "jsonl"
    csv = "csv"
    ubi = "ubi"
    access = "access"
    text = "text"
