"""Expansions that were asked for lately, so that a shop's frequent queries are searched without
asking the expander each time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from threading import Lock

from cachetools import TTLCache

from cogr_client.answers import Expansion

SIZE = 1000
"""Queries that are remembered; beyond them the one that was used longest ago is forgotten."""


class Memory:
    """Expansions by query, for some seconds; all of one pair of snapshots. One serves many threads.

    Only what has keywords is kept: the query alone may have keywords by the next time.
    """

    def __init__(self, seconds: float) -> None:
        # As JSON: whoever gets a clause may change it.
        self._known: TTLCache[str, str] = TTLCache(SIZE, seconds)
        self._pair: Mapping[str, str | None] = {}
        self._lock = Lock()

    def get(self, query: str) -> Expansion | None:
        """What is remembered of a query."""
        with self._lock:
            known = self._known.get(query)
        return None if known is None else Expansion.read(said := json.loads(known), said)

    def put(self, query: str, expansion: Expansion) -> None:
        """Remember an answer of the expander.

        One of another pair says that something was published: all else is forgotten.
        """
        with self._lock:
            if expansion.snapshots != self._pair:
                self._known.clear()
                self._pair = expansion.snapshots
            if expansion.source != "none":
                self._known[query] = json.dumps(asdict(expansion))

    def forget(self) -> None:
        """Forget all."""
        with self._lock:
            self._known.clear()
