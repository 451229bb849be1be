"""What a verification asks, when another store published what serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.backends import Backend
from indexers.release.order import probes


class Serving:
    """A backend of which only what serves is asked."""

    def __init__(self, query: str) -> None:
        self._query = query

    def serving(self) -> dict[str, Any]:
        return {"item": None, "query": self._query}


def test_probes_come_from_the_serving_queries_that_this_store_has(tmp_path: Path) -> None:
    store = Store(tmp_path)
    items = write_snapshot(store, "item", [Row("a", "Sofa", ("couch", "seat"))], Provenance())
    queries = write_snapshot(store, "query", [Row("q", "green couch", ("couch",))], Provenance())
    here = cast(Backend, Serving(queries.id))
    elsewhere = cast(Backend, Serving("query-r000-0123456789ab"))
    assert probes(here, store, items, 5) == [{"green couch": 1.0, "couch": 1.0}]
    drawn = probes(elsewhere, store, items, 5)
    assert len(drawn) == 5
    assert {word for words in drawn for word in words} <= {"sofa", "couch", "seat"}
