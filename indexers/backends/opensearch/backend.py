"""The backend `opensearch`: the protocol for one cluster and one prefix. Its methods call the
modules of this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cogr.errors import SnapshotError
from cogr.keywords import self_keyword
from cogr.records import Side
from cogr.settings import OpenSearchSettings
from cogr.snapshots import Row, Snapshot, open_snapshot
from cogr.store import Store
from indexers.backends import (
    Keywords,
    Listed,
    Mismatch,
    Pushed,
    SearchResult,
    Verified,
    Words,
    boosts_of,
    check_side,
)
from indexers.backends.memory import mirror_of
from indexers.backends.opensearch import indexes, push, search, verify
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import mark
from indexers.backends.opensearch.mapping import IndexState, alias_name

_TEXTLESS = (
    "The index {index} has no analysed texts: opensearch.text_analyzer was not set when it was "
    "pushed; the next rebuild brings them."
)


class OpenSearchBackend:
    """Snapshots in an OpenSearch cluster: one write-once index each, behind the aliases
    `<prefix>-items` and `<prefix>-queries`.

    Scores are those of a mirror with `cluster.version.bm25`.

    Args:
        settings: the cluster, the prefix, shards and replicas.
        store: keeps the mirrors that verification compares with.
    """

    name = "opensearch"

    def __init__(self, settings: OpenSearchSettings, store: Store) -> None:
        self.cluster = Cluster(settings)
        self.prefix = settings.prefix
        self.catalogue = f"{self.name}-{settings.prefix}"
        self._store = store

    def push(self, snapshot: Snapshot) -> Pushed:
        """See `push.push`. Where the parent is pushed, only the difference is written."""
        parent = snapshot.manifest.parent
        known = parent in self._store.list("snapshots")
        base = open_snapshot(self._store, parent) if parent and known else None
        return push.push(self.cluster, self.prefix, snapshot, base)

    def verify(self, snapshot: Snapshot, queries: Iterable[Keywords]) -> Verified:
        """See `verify.verify`."""
        return verify.verify(
            self.cluster, self.prefix, snapshot, mirror_of(self._store, snapshot), queries
        )

    def compare(
        self, snapshot: Snapshot, rows: Sequence[Row], after: str, *, last: bool
    ) -> Sequence[Mismatch]:
        """See `verify.compare`."""
        index = indexes.complete_index(self.cluster, self.prefix, snapshot.id).name
        return verify.compare(self.cluster, index, snapshot.side, rows, after, last=last)

    def identity(self, snapshot_id: str) -> str:
        """The index's UUID."""
        return indexes.complete_index(self.cluster, self.prefix, snapshot_id).uuid

    def distrust(self, snapshot_id: str) -> None:
        """Remove the mark of a passed verification."""
        mark(
            self.cluster,
            indexes.pushed_index(self.cluster, self.prefix, snapshot_id),
            verified=False,
        )

    def publish(self, snapshots: Mapping[Side, str]) -> Mapping[Side, str | None]:
        """See `indexes.publish`. Before the switch, the stored search template is put in place."""
        search.install_template(self.cluster, self.prefix)
        return indexes.publish(self.cluster, self.prefix, snapshots)

    def serving(self) -> Mapping[Side, str | None]:
        """The snapshot that each side's alias names, or None."""
        return indexes.serving(self.cluster, self.prefix)

    def list(self) -> Sequence[Listed]:
        """Every pushed snapshot under the prefix."""
        return indexes.listed(self.cluster, self.prefix)

    def search(
        self,
        keywords: Keywords,
        *,
        side: Side = "item",
        size: int = 10,
        snapshot: str | None = None,
        explain: bool = False,
        words: Words | None = None,
    ) -> SearchResult:
        """The best entities that have one of `keywords`, or whose texts match the words where the
        index has analysed texts.
        """
        state = self._index(side, snapshot)
        boosts, textless = boosts_of(keywords), ""
        if words and not state.meta.get("text_analyzer"):
            words, textless = None, _TEXTLESS.format(index=state.name)
        found = search.top(self.cluster, state.name, side, boosts, size, explain, words)
        return SearchResult(found.total, found.hits, state.snapshot, textless)

    def retrieved(
        self, keywords: Keywords, *, side: Side = "item", snapshot: str | None = None
    ) -> SearchResult:
        """The whole retrieved set with scores, without texts."""
        state = self._index(side, snapshot)
        found = search.everything(self.cluster, state.name, side, boosts_of(keywords))
        return SearchResult(found.total, found.hits, state.snapshot)

    def lookup(self, text: str, *, snapshot: str | None = None) -> Row | None:
        """The row of a query text; None when the query side does not hold it."""
        state = self._index("query", snapshot)
        return search.lookup(self.cluster, state.name, self_keyword(text))

    def delete(self, snapshot: str) -> None:
        """See `indexes.delete`."""
        indexes.delete(self.cluster, self.prefix, snapshot)

    def sweep(self, *, dry_run: bool) -> Sequence[str]:
        """See `indexes.left_behind`."""
        names = indexes.left_behind(self.cluster, self.prefix)
        for name in () if dry_run else names:
            indexes.remove_index(self.cluster, name)
        return names

    def close(self) -> None:
        """Close the connections."""
        self.cluster.close()

    def _index(self, side: Side, snapshot: str | None) -> IndexState:
        """The index to search: always a concrete one, so that a switch during an answer mixes
        nothing.
        """
        if snapshot is not None:
            check_side(snapshot, side)
            return indexes.pushed_index(self.cluster, self.prefix, snapshot)
        state = indexes.serving_index(self.cluster, self.prefix, side)
        if state is None:
            raise SnapshotError(
                f"Nothing serves as {alias_name(self.prefix, side)} at {self.cluster.url}; run "
                "cogr-index publish SNAPSHOT."
            )
        return state
