"""The precomputed keywords: the query index of an OpenSearch cluster, or the memory backend of a
store.

It tells which pair serves, and looks a query up in the query side of a given pair, in the concrete
index, never by the alias. Every answer is made from one `Pair`, so that rounds never mix.
"""

from __future__ import annotations

from cogr.errors import ServiceError
from cogr.snapshots import Row
from indexers.backends import Bodies, Live, Pair, open_live
from indexers.search import Found
from indexers.workspace import Workspace
from ops.expander.upstream import BadAnswerError, Metrics, Upstream


class QueryIndex:
    """Where precomputed keywords are: a cluster or a store, behind a circuit breaker."""

    def __init__(self, live: Live, seconds: float, metrics: Metrics) -> None:
        self._live, self._seconds = live, seconds
        self._upstream = Upstream(live.name, metrics, live.errors)
        self._metrics = metrics

    async def pair(self) -> Pair:
        """What serves, read by one request. Raises UnavailableError, and BadAnswerError where an
        alias names several indexes, or one that `cogr-index` did not make.
        """
        pair = await self._upstream.call(self._live.pair, self._live.patience)
        # Outside the breaker: it must not open for bad contents, because the cluster works.
        if isinstance(pair, ServiceError):
            raise BadAnswerError(str(pair))
        if pair.coverage is not None:
            self._metrics.coverage.set(pair.coverage)
        return pair

    async def lookup(self, pair: Pair, text: str) -> Row | None:
        """The row of a text in the pair's query side. Raises UnavailableError."""
        query = pair.query
        if query is None or not pair.matches:
            return None
        return await self._upstream.call(lambda: self._live.lookup(query, text), self._seconds)

    def bodies(self, pair: Pair, found: Found) -> Bodies:
        """The queries to send to the index."""
        return self._live.bodies(pair.item, found.keywords, found.words)

    async def close(self) -> None:
        await self._live.close()


def make_index(workspace: Workspace, metrics: Metrics) -> QueryIndex:
    """The configured query index: of a cluster, or in memory. Raises SettingsError."""
    live = open_live(workspace.settings, workspace.backend)
    return QueryIndex(live, workspace.settings.serving.index_timeout, metrics)
