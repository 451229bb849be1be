"""The generator `statistical`: answers both sides from a fitted artefact. No language model, no prompt is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import batched
from types import TracebackType
from typing import Self
