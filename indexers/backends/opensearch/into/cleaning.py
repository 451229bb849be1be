"""Old fields out of a team's index. A mapping never forgets a field, so the documents are copied to a new index without them.

While it copies, the old index takes no writes (they are refused, not lost); then one alias call puts the new one in its place.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from cogr.errors import CheckFailedError, ServiceError, UserError
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import read_index, refresh
from indexers.backends.opensearch.into.filling import count
from indexers.backends.opensearch.into.target import Target

_LOOK_EVERY = 0.5
_NOT_COPIED = ("uuid", "creation_date", "provided_name", "version", "blocks", "resize", "routing")


def move_without(cluster: Cluster, target: Target, dropped: Collection[str], to: str) -> int:
    """Copy the index to a new one without these fields, and let the alias name that; the number of documents.

    The old index stays, blocked for writes, for its owners to remove. The same call goes on after a death.

    Raises:
        UserError: the target is no alias, or the new index is something else.
        CheckFailedError: the copy has another number of documents; the old index takes writes again.
        ServiceError: the cluster went away or refuses; the old index takes writes again where it can be reached.
    """
    if not target.is_alias:
        raise UserError(
            f"{target.name} is an index, and a field can only be left out in a new one: let clients use an alias of it, and give --into the alias."
        )
    _make(cluster, target, dropped, to)
    old, moved = target.index, False
    cluster.call("PUT", f"/{old}/_block/write", doing=f"blocking writes to {old}")
    try:
        _copy(cluster, old, to, dropped)
        documents = count(cluster, to, {"match_all": {}})
        if documents != count(cluster, old, {"match_all": {}}):
            raise CheckFailedError(f"{to} has {documents} documents, {old} another number; remove {to} and try again.")
        actions = [
            {"remove": {"index": old, "alias": target.name, "must_exist": True}},
            {"add": {"index": to, "alias": target.name, **_alias_options(target)}},
        ]
        cluster.call("POST", "/_aliases", body={"actions": actions}, doing=f"switching the alias {target.name}")
        moved = True
    finally:
        if not moved:
            body = {"index": {"blocks.write": None}}
            cluster.call("PUT", f"/{old}/_settings", body=body, doing=f"letting {old} take writes again")
    return documents


def _alias_options(target: Target) -> dict[str, Any]:
    return dict(target.state.alias_options.get(target.name, {}))


def _make(cluster: Cluster, target: Target, dropped: Collection[str], to: str) -> None:
    there = read_index(cluster, to)
    if there is None:
        mappings = {**target.state.mappings}
        mappings["properties"] = {name: one for name, one in target.state.properties.items() if name not in dropped}
        settings = {key: value for key, value in target.state.settings.items() if key not in _NOT_COPIED}
        body = {"settings": {"index": settings}, "mappings": mappings}
        cluster.call("PUT", f"/{to}", body=body, doing=f"creating the index {to}", exists_ok=True)
    elif there.aliases or set(dropped) & set(there.properties) or not set(there.properties) >= _kept(target, dropped):
        raise UserError(f"The index {to} is there and is no copy of {target.index} without old fields; name another.")


def _kept(target: Target, dropped: Collection[str]) -> set[str]:
    return set(target.state.properties) - set(dropped)


def _copy(cluster: Cluster, old: str, to: str, dropped: Collection[str]) -> None:
    """Copy by the cluster's own reindex, over whatever a copy that died has left: the old index took writes after it.

    A reindex reads what a search sees, so the last writes are made visible first.
    """
    refresh(cluster, old)
    body = {"source": {"index": old, "_source": {"excludes": sorted(dropped)}}, "dest": {"index": to}}
    doing = f"copying {old} to {to}"
    task = cluster.call("POST", "/_reindex", body=body, params={"wait_for_completion": "false"}, doing=doing)["task"]
    while not (answer := cluster.call("GET", f"/_tasks/{task}", doing=doing))["completed"]:
        time.sleep(_LOOK_EVERY)
    failures = answer.get("response", {}).get("failures") or answer.get("error")
    if failures:
        raise ServiceError(f"{doing[0].upper()}{doing[1:]} at {cluster.url} failed: {str(failures)[:300]}.")
    refresh(cluster, to)
