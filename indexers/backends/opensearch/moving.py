"""Old fields out of another team's index. A mapping never forgets a field, so the documents are
copied to a new index without them.

The index takes writes meanwhile. Only for the last step, which copies what was changed since the
copy began, writes are refused (not lost); then one alias call puts the new index in its place.

A note in the store says which index is blocked and for whom. It is removed with the block. The next
command that opens the backend finds the note of a process that died, and takes the block back.
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
from indexers.backends.opensearch.field import Target, count, ids_there, scroll
from indexers.backends.opensearch.indexes import read_index, refresh
from indexers.rebuild.lease import alone

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
    """Copy the index to a new one without these fields, and let the alias name that; the number of
    documents.

    The old index stays, blocked for writes, for its owners to remove. The same call goes on after a
    death.

    Args:
        store: keeps the note of the block (`blocks`).
        catalogue: whose lease the caller holds.

    Raises:
        UserError: the target is no alias, or the new index is something else.
        CheckFailedError: the copy has another number of documents; the old index takes writes
            again.
        ServiceError: the cluster went away or refuses; the old index takes writes again where it
            can be reached.
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
    """The number of a write before which none is missing in a copy that begins now, whatever the
    shard.
    """
    params = {"level": "shards"}
    answer = cluster.call(
        "GET", f"/{index}/_stats/docs", params=params, doing=f"looking at the writes to {index}"
    )
    copies = [copy for shard in answer["indices"][index]["shards"].values() for copy in shard]
    return min(
        int(copy["seq_no"]["local_checkpoint"]) for copy in copies if copy["routing"]["primary"]
    )


def _map_what_is_new(cluster: Cluster, old: str, to: str, dropped: Collection[str]) -> None:
    """Fields that the old index has got while it was copied are the same kind of field
    in the copy.
    """
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
    """Remove from the copy what the old index has no more; the number of documents that
    both have.
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
    """Copy by the cluster's own reindex, everything or what a query finds, over whatever is there
    already.

    A reindex reads what a search sees, so the last writes are made visible first.
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
    """A block while it is held. `stays` is set when the index is not to take writes any more."""

    stays: bool = False


@contextmanager
def writes_blocked(
    cluster: Cluster, target: Target, store: Store, catalogue: str
) -> Iterator[Block]:
    """No writes to the target's index for the time of the block, nor after it where `Block.stays`
    is set.

    SIGTERM in between ends the process as Ctrl-C does: the index takes writes again first. An index
    that was blocked before stays so.

    Args:
        catalogue: whose lease the caller holds; while it is held, nobody takes the block back.
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


def lift_left(cluster: Cluster, store: Store, say: Say) -> None:
    """Take back the blocks that dead processes have left on this cluster.

    What can't be is a warning: it is not what was asked for.
    """
    try:
        for name in store.list(_FOLDER):
            with (
                suppress(LockedError),
                alone(store, name.removesuffix(".json"), "lifting a write block", patience=0),
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
    # An alias that has moved on says that the copy was whole: the old index is for its owners to
    # remove.
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
    """SIGTERM as SystemExit, so that what is open is closed; only the main thread gets
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
