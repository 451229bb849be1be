"""Removes old fields from another team's index. A mapping can't drop a field, so the documents are
copied to a new index without them.

The index takes writes meanwhile. Writes are refused (not lost) only during the last step, which
copies the changes since the copy began; then one call moves all of its aliases to the new index.
The team's ingest pipelines don't see the copied documents; the new index gets them at the end.

A note in the store names the blocked index. The next command that opens the backend finds the note
of a dead process and removes its block.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from cogr.errors import CheckFailedError, CogrError, LockedError, ServiceError, UserError
from cogr.records import Say
from cogr.store import Store
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.foreign_field import Target, count, ids_there, scroll
from indexers.backends.opensearch.indexes import put_settings, read_index, refresh, remove_index
from indexers.backends.opensearch.mapping import IndexState
from indexers.lease import switching_lease

log = logging.getLogger(__name__)

LOOK_EVERY = 0.25
_BATCH = 1_000
_SAMPLE = 100
_NOT_COPIED = ("uuid", "creation_date", "provided_name", "version", "blocks", "resize", "routing")
_PIPELINES = ("default_pipeline", "final_pipeline")
_FOLDER = "blocks"


def move_without(
    cluster: Cluster,
    target: Target,
    dropped: Collection[str],
    to: str,
    store: Store,
    catalogue: str,
) -> int:
    """Copy the index to a new one without these fields, and move its aliases there. Returns the
    number of documents. The caller holds the catalogue's lease.

    The old index stays, blocked for writes, for its owners to remove. The same call goes on after a
    death.

    Raises:
        UserError: the target is not an alias, or the new index exists and is no such copy.
        CheckFailedError: the copy differs; the old index takes writes again.
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
    with writes_blocked(cluster, target, store, catalogue):
        now = _map_what_is_new(cluster, old, to, dropped)
        copy_documents(cluster, old, to, dropped, {"range": {"_seq_no": {"gt": since}}})
        documents = _without_gone(cluster, old, to)
        _compare_some(cluster, old, to, dropped)
        pipelines = {name: now.settings.get(name) for name in _PIPELINES}
        put_settings(cluster, to, pipelines, f"setting the pipelines of {to}")
        _move_aliases(cluster, now, to)
    return documents


def _make(cluster: Cluster, target: Target, dropped: Collection[str], to: str) -> None:
    """Create the new index without pipelines, unless an earlier call has."""
    there, kept = read_index(cluster, to), _kept(target.state, dropped)
    if there is None:
        settings = {k: v for k, v in target.state.settings.items() if k not in _NOT_COPIED}
        settings |= dict.fromkeys(_PIPELINES, "_none")
        mappings = {**target.state.mappings, "properties": kept}
        body = {"settings": {"index": settings}, "mappings": mappings}
        cluster.call("PUT", f"/{to}", body=body, doing=f"creating the index {to}", exists_ok=True)
        made = read_index(cluster, to)
        if made is not None and made.aliases:
            remove_index(cluster, to)
            raise UserError(
                f"An index template gives {to} the aliases {', '.join(made.aliases)}; name an "
                "index that no template matches."
            )
    elif there.aliases or set(dropped) & set(there.properties) or kept.keys() - there.properties:
        raise UserError(
            f"The index {to} exists and is not a copy of {target.index} without old fields; name "
            "another."
        )
    else:
        off = dict.fromkeys(_PIPELINES, "_none")
        put_settings(cluster, to, off, f"setting the pipelines of {to}")


def _kept(state: IndexState, dropped: Collection[str]) -> dict[str, Any]:
    return {name: one for name, one in state.properties.items() if name not in dropped}


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


def _map_what_is_new(cluster: Cluster, old: str, to: str, dropped: Collection[str]) -> IndexState:
    """Map fields that the old index got during the copy in the new index, with the same types.
    Returns the old index as it is now.
    """
    state = read_index(cluster, old)
    if state is None:
        raise UserError(f"The index {old} was removed while it was copied; nothing was switched.")
    body = {"properties": _kept(state, dropped)}
    cluster.call("PUT", f"/{to}/_mapping", body=body, doing=f"adding fields to {to}")
    return state


def copy_documents(
    cluster: Cluster,
    old: str,
    to: str,
    dropped: Collection[str],
    query: Mapping[str, Any] | None = None,
) -> None:
    """Copy all documents, or those that a query finds, by the cluster's own reindex; existing ones
    are overwritten.
    """
    refresh(cluster, old)  # A reindex reads what a search sees.
    source = {"index": old, "_source": {"excludes": sorted(dropped)}}
    body = {
        "source": source | ({"query": query} if query else {}),
        "dest": {"index": to, "pipeline": "_none"},
    }
    doing = f"copying {old} to {to}"
    task = cluster.call(
        "POST", "/_reindex", body=body, params={"wait_for_completion": "false"}, doing=doing
    )["task"]
    while not (answer := cluster.call("GET", f"/_tasks/{task}", doing=doing))["completed"]:
        time.sleep(LOOK_EVERY)
    if failures := answer.get("response", {}).get("failures") or answer.get("error"):
        raise ServiceError(
            f"{doing[0].upper()}{doing[1:]} at {cluster.url} failed: {str(failures)[:300]}."
        )
    refresh(cluster, to)


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
            doing = f"removing documents from {to}"
            if gone:
                cluster.call("POST", f"/{to}/_delete_by_query", body=query, doing=doing)
    if (found := count(cluster, to, everything)) != documents:
        raise CheckFailedError(
            f"{to} has {found} documents, {old} {documents}; remove {to} and try again."
        )
    return documents


def _compare_some(cluster: Cluster, old: str, to: str, dropped: Collection[str]) -> None:
    """Compare some documents, drawn at random, with their copies."""
    body = {
        "size": _SAMPLE,
        "query": {"function_score": {"random_score": {}}},
        "_source": {"excludes": sorted(dropped)},
    }
    doing = f"comparing {old} with {to}"
    hits = cluster.call("POST", f"/{old}/_search", body=body, doing=doing)["hits"]["hits"]
    wanted = [
        {"_id": hit["_id"]} | ({"routing": hit["_routing"]} if "_routing" in hit else {})
        for hit in hits
    ]
    if not wanted:
        return
    copies = cluster.call("POST", f"/{to}/_mget", body={"docs": wanted}, doing=doing)["docs"]
    for hit, made in zip(hits, copies, strict=True):
        if made.get("_source") != hit["_source"]:
            raise CheckFailedError(
                f"The document {hit['_id']!r} differs between {old} and its copy {to}; nothing "
                f"was switched. Remove {to} and try again."
            )


def _move_aliases(cluster: Cluster, old: IndexState, to: str) -> None:
    """Move every alias with its filter, routing and write index, all by one call."""
    actions = [
        action
        for alias, options in old.alias_options.items()
        for action in (
            {"remove": {"index": old.name, "alias": alias, "must_exist": True}},
            {"add": {"index": to, "alias": alias, **options}},
        )
    ]
    doing = f"moving the aliases of {old.name}"
    cluster.call("POST", "/_aliases", body={"actions": actions}, doing=doing)


@contextmanager
def writes_blocked(
    cluster: Cluster, target: Target, store: Store, catalogue: str
) -> Iterator[None]:
    """Refuse writes to the target's index during the `with` block, and after it where the alias has
    moved.

    SIGTERM acts as Ctrl-C does: the index takes writes again before the process ends. An index that
    was blocked before stays blocked. While the caller holds the catalogue's lease, no other process
    removes the block.
    """
    path, index = f"{_FOLDER}/{catalogue}.json", target.index
    if target.state.write_blocked:
        yield
        return
    with _ending_on_sigterm():
        store.write_json(path, {"cluster": cluster.url, "index": index, "alias": target.name})
        try:
            cluster.call("PUT", f"/{index}/_block/write", doing=f"blocking writes to {index}")
            yield
        finally:
            _lift_noted(cluster, store, path)


def remove_stale_write_blocks(cluster: Cluster, store: Store, say: Say) -> None:
    """Remove the blocks that dead processes have left on this cluster. A failure is only a warning,
    since the command has another purpose.
    """
    try:
        for name in store.list(_FOLDER):
            doing, lifted = "lifting a write block", None
            with (
                suppress(LockedError),
                switching_lease(store, name.removesuffix(".json"), doing, patience=0),
            ):
                lifted = _lift_noted(cluster, store, f"{_FOLDER}/{name}")
            if lifted:
                say(
                    f"{lifted} takes writes again: a prune that died had left it blocked. Run "
                    "that command again."
                )
    except (CogrError, OSError, ValueError) as error:
        log.warning("Write blocks that a dead prune may have left can't be lifted: %s", error)


def _lift_noted(cluster: Cluster, store: Store, path: str) -> str | None:
    """Remove a noted block and its note; returns the index. If the alias has moved, the copy was
    complete, and the old index stays blocked for its owners to remove.
    """
    note = store.read_json(path) if store.exists(path) else {}
    if note.get("cluster") != cluster.url:
        return None
    state = read_index(cluster, note["index"])
    lifted = state is not None and note["alias"] in state.aliases
    if lifted:
        doing = f"letting {note['index']} take writes again"
        put_settings(cluster, note["index"], {"blocks.write": None}, doing)
    store.remove(path)
    return str(note["index"]) if lifted else None


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
