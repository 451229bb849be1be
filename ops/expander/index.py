"""The precomputed keywords: the query index of an OpenSearch cluster, the memory backend of a store, or nothing.

Each says which pair serves and looks a query up in the query side of a given pair, by the concrete index, never by the alias.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cogr.records import SIDES
from cogr.records import Side as SideName
from cogr.serving_settings import ServingSettings
from cogr.settings import OpenSearchSettings
from cogr.snapshots import read_manifest
from cogr.store import Store
from indexers.backends.opensearch.mapping import IndexState, alias_name
from indexers.backends.opensearch.search import lookup_body
from ops.expander.guard import Guard, RubbishError
from ops.expander.metrics import Metrics
from ops.expander.pair import Pair, Side

if TYPE_CHECKING:
    from indexers.backends.base import Backend


class QueryIndex(Protocol):
    """Where precomputed keywords are."""

    async def pair(self) -> Pair:
        """What serves. Raises AwayError."""
        ...

    async def lookup(self, pair: Pair, text: str) -> tuple[str, ...] | None:
        """Keywords of a normalised text by the pair's query side; None when it has none. Raises AwayError."""
        ...

    async def close(self) -> None: ...


class ClusterIndex:
    """An OpenSearch cluster.

    Raises:
        SettingsError: see `indexers.backends.opensearch.client.Cluster`.
    """

    def __init__(self, cluster: OpenSearchSettings, settings: ServingSettings, metrics: Metrics) -> None:
        from opensearchpy.exceptions import OpenSearchException

        from indexers.backends.opensearch.client import connect_async

        self._client = connect_async(cluster)
        self._aliases: dict[SideName, str] = {side: alias_name(cluster.prefix, side) for side in SIDES}
        self._seconds = settings.index_timeout
        self._guard = Guard("opensearch", settings, metrics, (OpenSearchException,))

    async def pair(self) -> Pair:
        """Both aliases by one request, so that a switch falls wholly before or after it."""
        path = f"/{','.join(self._aliases.values())}"
        params = {"ignore_unavailable": "true"}

        async def ask() -> Pair:
            return self._read_pair(await self._request("GET", path, params, None))

        return await self._guard.call(ask, self._seconds)

    def _read_pair(self, answer: Any) -> Pair:
        sides: dict[SideName, Side] = {}
        for name, found in _mapping(answer).items():
            state = IndexState.read(name, _mapping(found))
            for side, alias in self._aliases.items():
                if alias in state.aliases:
                    if side in sides or not state.snapshot:
                        raise RubbishError("an alias names several indexes, or one that is not ours")
                    meta = state.meta
                    sides[side] = Side(state.snapshot, name, int(meta["round"]), str(meta["normaliser"]))
        return Pair(sides.get("item"), sides.get("query"))

    async def lookup(self, pair: Pair, text: str) -> tuple[str, ...] | None:
        if pair.query is None:
            return None
        path = f"/{pair.query.index}/_search"
        params = {"filter_path": "timed_out,_shards.failed,hits.hits._source.generated"}

        async def ask() -> tuple[str, ...] | None:
            return _read_keywords(await self._request("POST", path, params, lookup_body(text)))

        return await self._guard.call(ask, self._seconds)

    async def _request(self, method: str, path: str, params: Mapping[str, str], body: Any) -> Any:
        more = {**params, "request_timeout": self._seconds}
        return await self._client.transport.perform_request(method, path, params=more, body=body)

    async def close(self) -> None:
        await self._client.close()


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RubbishError("not an object")
    return value


def _read_keywords(answer: Any) -> tuple[str, ...] | None:
    """Keywords in the answer of a lookup. Raises RubbishError when it is none, or only a part of one."""
    found = _mapping(answer)
    if found.get("timed_out") is not False or _mapping(found.get("_shards")).get("failed") != 0:
        raise RubbishError("not a whole answer")
    hits = _mapping(found.get("hits", {})).get("hits", [])
    if not hits:
        return None
    return strings(_mapping(_mapping(hits[0]).get("_source")).get("generated"))


def strings(value: Any) -> tuple[str, ...]:
    """A list of texts. Raises RubbishError when it is something else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise RubbishError("not a list of texts")
    # Lone surrogates can't be sent on: a UnicodeEncodeError is a ValueError.
    "".join(value).encode()
    return tuple(value)


class StoreIndex:
    """The memory backend of a store: for shops that fit into one process.

    Args:
        backend: the memory backend over `store`.
    """

    def __init__(self, backend: Backend, store: Store, settings: ServingSettings, metrics: Metrics) -> None:
        self._backend, self._store = backend, store
        self._seconds = settings.index_timeout
        self._guard = Guard("store", settings, metrics)
        self._sides: dict[str, Side] = {}

    async def pair(self) -> Pair:
        return await self._guard.call(lambda: asyncio.to_thread(self._read_pair), self._seconds)

    def _read_pair(self) -> Pair:
        serving = self._backend.serving()
        self._sides = {id_: self._sides.get(id_) or self._open(id_) for id_ in serving.values() if id_}
        item, query = (self._sides.get(serving.get(side) or "") for side in ("item", "query"))
        return Pair(item, query)

    def _open(self, snapshot: str) -> Side:
        """A snapshot's side, and what lookups read of it, ready."""
        manifest = read_manifest(self._store, snapshot)
        if manifest.side == "query":
            self._backend.lookup("", snapshot=snapshot)
        return Side(snapshot, "", manifest.round, manifest.normaliser)

    async def lookup(self, pair: Pair, text: str) -> tuple[str, ...] | None:
        if pair.query is None:
            return None
        snapshot = pair.query.snapshot

        def ask() -> tuple[str, ...] | None:
            found = self._backend.lookup(text, snapshot=snapshot)
            return None if found is None else tuple(found)

        return await self._guard.call(lambda: asyncio.to_thread(ask), self._seconds)

    async def close(self) -> None:
        self._backend.close()
