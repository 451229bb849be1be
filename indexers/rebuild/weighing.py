"""Weights for a query's keywords from a generator that gives none, such as a language model: by the
ranker of `statistical`, where the store has it fitted for this data set.

Nothing is fitted here, and no keyword is added: the retrieved sets stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from cogr.errors import SnapshotError
from cogr.keywords import NORMALISER
from cogr.matching.mirror import Mirror
from cogr.records import Query, Side
from cogr.snapshots import Row, Snapshot
from indexers.generators.protocol import batched
from indexers.generators.statistical import LEAST_QUERIES
from indexers.generators.statistical.generator import Statistical, is_installed
from indexers.workspace import Workspace

_BATCH = 64

Weigh = Callable[[Iterable[Row]], Iterator[Row]]


def weigher(workspace: Workspace, side: Side, writer: str, *, serving: bool = True) -> Weigh | None:
    """What gives rows their weights; None where `writer` gives them itself, or nothing can.

    Args:
        writer: name of the generator that writes the rows.
        serving: weigh for the items that serve, and else for the store's newest ones.
    """
    wanted = side == "query" and workspace.settings.keywords.weights and writer != "statistical"
    if not wanted or not is_installed():
        return None
    if len(workspace.dataset.queries.get("train", ())) < LEAST_QUERIES:
        return None
    with workspace.generator("query", "statistical") as generator:
        assert isinstance(generator, Statistical)
        items = _items(workspace, serving=serving) if generator.is_fitted else None
    return None if items is None else lambda rows: _weighed(generator, items, rows)


def _items(workspace: Workspace, *, serving: bool) -> Snapshot | None:
    """The item snapshot that is weighed for; None where there is none of today's rules."""
    asked = workspace.backend.serving().get("item") if serving else None
    try:
        found = workspace.snapshot(asked, "item")
    except SnapshotError:
        return None
    return found if found.manifest.normaliser == NORMALISER else None


def _weighed(generator: Statistical, items: Snapshot, rows: Iterable[Row]) -> Iterator[Row]:
    mirror = Mirror.build(items)
    for some in batched(rows, _BATCH):
        queries = [Query(row.id, row.text) for row in some]
        sets = [row.keywords for row in some]
        found = generator.artefact.weigh(queries, sets, mirror)
        for row, weights in zip(some, found, strict=True):
            if row.weights or not weights:
                yield row
            else:
                words = (*row.keywords, row.self_keyword)
                yield replace(row, weights=tuple(weights.get(word, 1.0) for word in words))
