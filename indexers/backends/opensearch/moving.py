"""Removes old fields from another team's index. A mapping can't drop a field, so the documents are
copied to a new index without them.

The index takes writes meanwhile. Writes are refused (not lost) only during the last step, which
copies the changes since the copy began; then one alias call switches to the new index.

A note in the store names the blocked index and the process that blocks it. It is removed with the
block. The next command that opens the backend finds the note of a dead process and removes its
block.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cogr.errors import CheckFailedError, CogrError, LockedError, ServiceError, UserError
from cogr.records import Say
from cogr.store import Store
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.foreign_field import Target, count, ids_there, scroll
from indexers.backends.opensearch.indexes import read_index, refresh
from indexers.lease import switching_lease

log = logging.getLogger(__name__)

LOOK_EVERY = 0.25
_BATCH = 1_000
_NOT_COPIED = ("uuid", "creation_date", "provided_name", "version", "blocks", "resize", "routing")


def move_without(
    cluster: Cluster,
    target: Target,
    dropped: Collection[str],
    to: str,
    store: Store,
    catalogue: str,
) -> int:
    """Copy the index to a new one without these fields, and switch the alias to it. Returns the
    number of documents.

    The old index stays, blocked for writes, for its owners to remove. The same call goes on after a
    death.

    Args:
        store: keeps the note of the block (`blocks`).
        catalogue: whose lease the caller holds.

    Raises:
        UserError: the target is no alias, or the new index exists and is no such copy.
        CheckFailedError: the copy has another number of documents; the old index takes writes
            again.
        ServiceError: the cluster can't be reached or refuses; the old index takes writes again as
            soon as it can be reached.
    """
    if not target.is_alias:
        raise UserError(
            f"{target.name} is an index, and a field can only be left out in a new one: let "
            "clients use an alias of it, and give --into the alias."
        )
    _make(cluster, target, dropped, to)
    old, since = target.index, _written_up_to(cluster, target.index)
    copy_documents(cluster, old, to, dropped)
    with writes_blocked(cluster, target, store, catalogue) as block:
        _map_what_is_new(cluster, old, to, dropped)
        copy_documents(cluster, old, to, dropped, {"range": {"_seq_no": {"gt": since}}})
        documents = _without_gone(cluster, old, to)
        actions = [
            {"remove": {"index": old, "alias": target.name, "must_exist": True}},
            {"add": {"index": to, "alias": target.name, **_alias_options(target)}},
        ]
        cluster.call(
            "POST",
            "/_aliases",
            body={"actions": actions},
            doing=f"switching the alias {target.name}",
        )
        block.stays = True
    return documents


def _written_up_to(cluster: Cluster, index: str) -> int:
    """A sequence number up to which every write, in every shard, is in a copy that begins now."""
    params = {"level": "shards"}
    answer = cluster.call(
        "GET", f"/{index}/_stats/docs", params=params, doing=f"looking at the writes to {index}"
    )
    copies = [copy for shard in answer["indices"][index]["shards"].values() for copy in shard]
    return min(
        int(copy["seq_no"]["local_checkpoint"]) for copy in copies if copy["routing"]["primary"]
    )


def _map_what_is_new(cluster: Cluster, old: str, to: str, dropped: Collection[str]) -> None:
    """Map fields that the old index got during the copy in the new index, with the same types."""
    state = read_index(cluster, old)
    fields = (
        {name: one for name, one in state.properties.items() if name not in dropped}
        if state
        else {}
    )
    cluster.call(
        "PUT", f"/{to}/_mapping", body={"properties": fields}, doing=f"adding fields to {to}"
    )


def _without_gone(cluster: Cluster, old: str, to: str) -> int:
    """Remove documents from the copy that the old index has lost. Returns the number of documents
    in both.
    """
    everything: dict[str, Any] = {"match_all": {}}
    documents = count(cluster, old, everything)
    if count(cluster, to, everything) != documents:
        ids = (hit["_id"] for hit in scroll(cluster, to, everything))
        while batch := list(islice(ids, _BATCH)):
            gone = set(batch) - ids_there(cluster, old, batch)
            query = {"query": {"ids": {"values": sorted(gone)}}}
            if gone:
                cluster.call(
                    "POST",
                    f"/{to}/_delete_by_query",
                    body=query,
                    doing=f"removing documents from {to}",
                )
    if (found := count(cluster, to, everything)) != documents:
        raise CheckFailedError(
            f"{to} has {found} documents, {old} {documents}; remove {to} and try again."
        )
    return documents


def _alias_options(target: Target) -> dict[str, Any]:
    return dict(target.state.alias_options.get(target.name, {}))


def _make(cluster: Cluster, target: Target, dropped: Collection[str], to: str) -> None:
    there = read_index(cluster, to)
    if there is None:
        mappings = {**target.state.mappings}
        mappings["properties"] = {
            name: one for name, one in target.state.properties.items() if name not in dropped
        }
        settings = {
            key: value for key, value in target.state.settings.items() if key not in _NOT_COPIED
        }
        body = {"settings": {"index": settings}, "mappings": mappings}
        cluster.call("PUT", f"/{to}", body=body, doing=f"creating the index {to}", exists_ok=True)
    elif (
        there.aliases
        or set(dropped) & set(there.properties)
        or not set(there.properties) >= _kept(target, dropped)
    ):
        raise UserError(
            f"The index {to} is there and is no copy of {target.index} without old fields; name "
            "another."
        )


def _kept(target: Target, dropped: Collection[str]) -> set[str]:
    return set(target.state.properties) - set(dropped)


def copy_documents(
    cluster: Cluster,
    old: str,
    to: str,
    dropped: Collection[str],
    query: Mapping[str, Any] | None = None,
) -> None:
    """Copy all documents, or those that a query finds, by the cluster's own reindex; existing ones
    are overwritten.

    A reindex reads what a search sees, so the index is refreshed first.
    """
    refresh(cluster, old)
    source = {
        "index": old,
        "_source": {"excludes": sorted(dropped)},
        **({"query": query} if query else {}),
    }
    body = {"source": source, "dest": {"index": to}}
    doing = f"copying {old} to {to}"
    task = cluster.call(
        "POST", "/_reindex", body=body, params={"wait_for_completion": "false"}, doing=doing
    )["task"]
    while not (answer := cluster.call("GET", f"/_tasks/{task}", doing=doing))["completed"]:
        time.sleep(LOOK_EVERY)
    failures = answer.get("response", {}).get("failures") or answer.get("error")
    if failures:
        raise ServiceError(
            f"{doing[0].upper()}{doing[1:]} at {cluster.url} failed: {str(failures)[:300]}."
        )
    refresh(cluster, to)


_FOLDER = "blocks"


@dataclass
class Block:
    """A write block. `stays` is set when the index must not take writes again."""

    stays: bool = False


@contextmanager
def writes_blocked(
    cluster: Cluster, target: Target, store: Store, catalogue: str
) -> Iterator[Block]:
    """Refuse writes to the target's index during the `with` block, and after it where `Block.stays`
    is set.

    SIGTERM acts as Ctrl-C does: the index takes writes again before the process ends. An index that
    was blocked before stays blocked.

    Args:
        catalogue: whose lease the caller holds; while it is held, no other process removes the
            block.
    """
    held, path, index = Block(), f"{_FOLDER}/{catalogue}.json", target.index
    if target.state.write_blocked:
        yield held
        return
    with _ending_on_sigterm():
        store.write_json(path, {"cluster": cluster.url, "index": index, "alias": target.name})
        cluster.call("PUT", f"/{index}/_block/write", doing=f"blocking writes to {index}")
        try:
            yield held
        finally:
            if not held.stays:
                _lift(cluster, index)
            store.remove(path)


def remove_stale_write_blocks(cluster: Cluster, store: Store, say: Say) -> None:
    """Remove the blocks that dead processes have left on this cluster.

    A failure is only a warning, since the command has another purpose.
    """
    try:
        for name in store.list(_FOLDER):
            with (
                suppress(LockedError),
                switching_lease(
                    store, name.removesuffix(".json"), "lifting a write block", patience=0
                ),
            ):
                _lift_noted(cluster, store, f"{_FOLDER}/{name}", say)
    except (CogrError, OSError, ValueError) as error:
        log.warning("Write blocks that a dead prune may have left can't be lifted: %s", error)


def _lift_noted(cluster: Cluster, store: Store, path: str, say: Say) -> None:
    if not store.exists(path):
        return
    note = store.read_json(path)
    if note["cluster"] != cluster.url:
        return
    state = read_index(cluster, note["index"])
    # A switched alias shows that the copy was complete: the old index stays blocked for its owners
    # to remove.
    if state is not None and note["alias"] in state.aliases:
        _lift(cluster, state.name)
        say(
            f"{state.name} takes writes again: a prune that died had left it blocked. Run that "
            "command again."
        )
    store.remove(path)


def _lift(cluster: Cluster, index: str) -> None:
    body = {"index": {"blocks.write": None}}
    cluster.call(
        "PUT", f"/{index}/_settings", body=body, doing=f"letting {index} take writes again"
    )


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that `with` blocks end properly; only the main thread gets
    signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
