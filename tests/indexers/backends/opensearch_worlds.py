"""Prefixes of a test's own on a running node, gone with the test, and indexes of another team."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from cogr.settings.serving import OpenSearchSettings
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import refresh
from indexers.backends.opensearch.push import write_documents
from tests.commands import sets


@contextmanager
def prefix_of(server: OpenSearchSettings, **changes: Any) -> Iterator[Cluster]:
    """The node under a new prefix, and with these settings; what lies under it goes at the end."""
    own = {"prefix": f"test-{uuid.uuid4().hex[:8]}", **changes}
    with closing(Cluster(server.model_copy(update=own))) as cluster:
        try:
            yield cluster
        finally:
            cluster.call("DELETE", f"/{own['prefix']}-*", doing="cleaning up")
            template = f"/_scripts/{own['prefix']}-search"
            cluster.call("DELETE", template, doing="cleaning up", missing_ok=True)


@contextmanager
def backend_of(
    server: OpenSearchSettings, store: Store, shards: int = 1, **changes: Any
) -> Iterator[OpenSearchBackend]:
    """A backend over the node under a new prefix."""
    with (
        prefix_of(server, shards=shards, **changes) as cluster,
        closing(OpenSearchBackend(cluster.settings, store)) as backend,
    ):
        yield backend


def filled(
    cluster: Cluster, name: str, documents: Iterable[tuple[str, Mapping[str, Any]]], **body: Any
) -> str:
    """Make an index of a team, with mappings, settings or aliases, and write documents by their
    ids. Returns its name.
    """
    cluster.call("PUT", f"/{name}", body=body, doing="making an index")
    write_documents(cluster, name, documents)
    refresh(cluster, name)
    return name


def move_alias(cluster: Cluster, alias: str, to: str, old: str = "") -> None:
    """Let an alias name an index, and no longer the old one."""
    actions = [{"add": {"index": to, "alias": alias}}]
    if old:
        actions.append({"remove": {"index": old, "alias": alias}})
    cluster.call("POST", "/_aliases", body={"actions": actions}, doing="moving an alias")


def overrides_of(server: OpenSearchSettings) -> tuple[str, str]:
    """The settings of a workspace over it, as `key=value`."""
    return f"opensearch.url={server.url}", f"opensearch.prefix={server.prefix}"


def flags_of(server: OpenSearchSettings) -> list[str]:
    """The flags of commands that work on it."""
    return sets(*overrides_of(server))


def half_there(cluster: Cluster, index: str, documents: Mapping[str, Any]) -> list[str]:
    """Make an index of two shards of which no node has one. Returns the ids of the documents that
    it could take.
    """
    settings = {"number_of_shards": 2, "number_of_replicas": 0}
    settings["routing.allocation.total_shards_per_node"] = 1
    body, alone = {"settings": settings}, {"wait_for_active_shards": "0"}
    cluster.call("PUT", f"/{index}", body=body, params=alone, doing="making half an index")
    waiting = {"wait_for_no_initializing_shards": "true"}
    cluster.call("GET", f"/_cluster/health/{index}", params=waiting, doing="waiting")
    lines = "".join(
        f"{json.dumps({'create': {'_id': id_}})}\n{json.dumps(one)}\n"
        for id_, one in documents.items()
    )
    now = {"refresh": "true", "timeout": "10ms"}
    answer = cluster.call("POST", f"/{index}/_bulk", body=lines, params=now, doing="filling it")
    items = [one["create"] for one in answer["items"]]
    return [one["_id"] for one in items if one["status"] == 201]
