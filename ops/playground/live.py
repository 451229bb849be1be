"""The same search at the cluster, compared with the mirror: items, order and scores,
bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ops.playground.world import Opened

if TYPE_CHECKING:
    from indexers.backends.opensearch import OpenSearchBackend


def compare(
    backend: OpenSearchBackend, items: Opened, keywords: Sequence[str], size: int
) -> dict[str, Any]:
    """Search the snapshot's own index.

    Raises:
        SnapshotError: the snapshot is not pushed.
        ServiceError: the cluster is away or refuses.
    """
    started = time.perf_counter()
    found = backend.search(keywords, size=size, snapshot=items.manifest.id)
    seconds = time.perf_counter() - started
    mirror = items.mirror.scored_by(backend.cluster.version.bm25)
    expected = mirror.search(keywords, size)
    same = found.total == expected.total and [(hit.id, hit.score) for hit in found.hits] == list(
        zip(expected.ids, expected.scores.tolist(), strict=True)
    )
    return {
        "same": same,
        "total": found.total,
        "expected": expected.total,
        "milliseconds": 1000 * seconds,
    }
