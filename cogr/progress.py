"""How a piece of work that takes its time tells its caller how far it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

Say = Callable[[str], None]
"""Tells a person one line."""
Advance = Callable[[int], None]
"""Adds so many to what is done."""
ProgressBar = Callable[[str, int], AbstractContextManager[Advance]]
"""Shows, while a block runs, what is being done and how far it is of so many."""
