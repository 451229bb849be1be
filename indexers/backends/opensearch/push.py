"""Push: one snapshot into its own write-once index, which nothing serves yet.

In full: create -> bulk -> refresh -> merge -> check -> write block -> replicas -> mark complete.
Every step checks what is done already, so the same call goes on after a death at any point.
`backend` switches the alias.

By difference, where the parent's index exists: clone it (hard links) -> change documents -> freeze
-> clone again -> merge; then as above from the check on. The second clone makes scores exact: an
index keeps deleted documents for the recovery of copies for up to half a minute, and they count in
the statistics behind scores. A new clone has no copies to recover, so its merge drops them at once.
If a step fails, the snapshot is written in full instead.

The bulk writer has threads, and retries of whole requests and of single documents:
`helpers.parallel_bulk` of opensearch-py never retries, and `streaming_bulk` has one connection.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

from cogr.differences import differences
from cogr.errors import CheckFailedError, CogrError, DataError, ServiceError
from cogr.snapshots import Snapshot
from cogr.snapshots.texts import texts_of
from indexers.backends import Pushed, language_of
from indexers.backends.opensearch.client import (
    BULK_THREADS,
    Cluster,
    Refusal,
    service_error,
    waits,
)
from indexers.backends.opensearch.indexes import (
    LEASE_SECONDS,
    LOOK_EVERY,
    IndexState,
    block_writes,
    check_count,
    check_scored,
    documents,
    documents_of,
    draft_name,
    index_name,
    index_settings,
    mapping,
    mark,
    merge,
    meta_of,
    pushed_index,
    read_index,
    refresh,
    remove_index,
    searched,
    stats,
)
from indexers.text import DETECT

CHUNK_BYTES = 1 << 20
"""Largest bulk body in bytes: what a proxy lets through by default (nginx), and as fast as four
times as much (docs/LOG.md, 2026-11-28); a longer document is sent alone.
"""
CHUNK_DOCUMENTS = 2000
"""Most documents of a bulk request."""
MAX_ID = 512
"""Longest `_id` in bytes (OpenSearch's own limit)."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode

# An earlier attempt or push has created or removed the document, or another program has changed or
# removed it.
_DONE_BY_OTHERS = (("create", 409), ("delete", 404), ("update", 409), ("update", 404))
_TRIES_ON_A_SHARD = 20

Document = Mapping[str, Any]
_Meta = Mapping[str, Any]


def write_documents(
    cluster: Cluster,
    index: str,
    documents: Iterable[tuple[str, Document | None]],
    *,
    replace: bool = False,
) -> int:
    """Create documents, and leave existing ones unchanged; or `replace` them, and remove them where
    the document is None. Returns how many were written. Repeating it changes nothing more. Memory:
    BULK_THREADS + 2 chunks. Raises DataError and ServiceError.
    """
    write = "index" if replace else "create"
    entries = (entry("delete" if one is None else write, id_, one) for id_, one in documents)
    return _send_all(cluster, index, entries)


_MERGE = "ctx._source.putAll(params.fields); for (name in params.gone) { ctx._source.remove(name) }"


def merge_into_documents(
    cluster: Cluster,
    index: str,
    changes: Iterable[tuple[Mapping[str, Any], Document]],
    gone: Sequence[str] = (),
) -> int:
    """Set some fields of the documents of these hits, and remove those that are `gone`; the shard
    itself reads, merges and writes, so that no other write is lost. Where a hit has its sequence
    number, a document that was written since is left alone. Returns how many were updated. Memory
    and errors as of `write_documents`.
    """
    return _send_all(cluster, index, (_merging(hit, fields, gone) for hit, fields in changes))


def _merging(hit: Mapping[str, Any], fields: Document, gone: Sequence[str]) -> bytes:
    action: dict[str, Any] = {"_id": hit["_id"]}
    if "_seq_no" in hit:
        action |= {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
    else:
        action["retry_on_conflict"] = _TRIES_ON_A_SHARD
    if "_routing" in hit:
        action["routing"] = hit["_routing"]
    change: dict[str, Any] = {"doc": fields}
    if gone:
        change = {"script": {"source": _MERGE, "params": {"fields": fields, "gone": [*gone]}}}
    return f"{_encode({'update': action})}\n{_encode(change)}\n".encode()


def _send_all(cluster: Cluster, index: str, entries: Iterable[bytes]) -> int:
    stop, done, pending = threading.Event(), 0, deque[Future[int]]()
    with ThreadPoolExecutor(BULK_THREADS, thread_name_prefix="bulk") as pool:
        try:
            for chunk in chunks(entries, CHUNK_DOCUMENTS):
                if len(pending) > BULK_THREADS:
                    done += pending.popleft().result()
                pending.append(pool.submit(_send, cluster, index, chunk, stop))
            done += sum(future.result() for future in pending)
        except BaseException:
            # Ctrl-C or a lost cluster: the other threads stop at their next wait.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return done


def entry(operation: str, id_: str, document: Document | None) -> bytes:
    """The action line, and the document's line where there is one."""
    if len(id_) * 4 > MAX_ID and len(id_.encode()) > MAX_ID:
        raise DataError(
            f"The id {id_[:40]!r}... is longer than the {MAX_ID} bytes that OpenSearch "
            "takes; shorten it."
        )
    action = f'{{"{operation}":{{"_id":{_encode(id_)}}}}}\n'
    return (action if document is None else f"{action}{_encode(document)}\n").encode()


def chunks(entries: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    """Lists of bulk entries, by count and bytes."""
    chunk: list[bytes] = []
    size = 0
    for entry in entries:
        if chunk and (len(chunk) == most or size + len(entry) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += len(entry)
    if chunk:
        yield chunk


def _send(cluster: Cluster, index: str, chunk: list[bytes], stop: threading.Event) -> int:
    written, pauses = 0, waits()
    params = {"filter_path": "errors,items.*.status,items.*.error.type,items.*.error.reason"}
    while True:
        answer, refusal = cluster.try_once("POST", f"/{index}/_bulk", b"".join(chunk), params)
        if refusal is None:
            new, chunk, refusal = _sort_out(chunk, answer)
            written += new
        if refusal is None:
            return written
        wait = next(pauses, None) if refusal.is_transient else None
        if wait is None:
            raise service_error(refusal, cluster.url, f"writing to the index {index}")
        if stop.wait(wait):
            raise ServiceError(f"Writing to the index {index} was abandoned.")


def _sort_out(
    chunk: list[bytes], answer: Mapping[str, Any]
) -> tuple[int, list[bytes], Refusal | None]:
    if not answer["errors"]:
        return len(chunk), [], None
    written, again, worst = 0, [], None
    for entry, item in zip(chunk, answer["items"], strict=True):
        ((operation, result),) = item.items()
        status, error = result["status"], result.get("error", {})
        if status < 300:
            written += 1
        elif (operation, status) not in _DONE_BY_OTHERS:
            again.append(entry)
            refusal = Refusal(status, str(error.get("type", "")), str(error.get("reason", "")))
            worst = refusal if worst is None or not refusal.is_transient else worst
    return written, again, worst


REPLICA_SECONDS = 1800.0
"""Longest wait for replicas, in seconds."""


def push(cluster: Cluster, snapshot: Snapshot, base: Snapshot | None = None) -> Pushed:
    """Write a snapshot to its index and freeze it. Idempotent; goes on after an interruption.

    Where the index of `base`, the snapshot's parent, exists, only the difference is written. Raises
    CheckFailedError where the index holds another number of documents, ServiceError where another
    index has the name.
    """
    started = time.perf_counter()
    meta = meta_of(snapshot.manifest, _analyser_of(cluster, snapshot))
    copied = _copy_and_change(cluster, base, snapshot, meta) if base else None
    state = _open_index(cluster, snapshot, meta)
    written = copied or 0
    if not state.complete:
        if not state.write_blocked:
            written += _fill(cluster, state, snapshot)
        # The push of a clone may have died before its merge. A node that died while writing may
        # fill gaps in the sequence of operations with no-ops, which count as deleted documents.
        merge(cluster, state.name, LEASE_SECONDS)
        check_count(cluster, state.name, snapshot)
        if not state.write_blocked:
            block_writes(cluster, state.name)
            check_count(cluster, state.name, snapshot)
    _set_replicas(cluster, state)
    if not state.complete:
        mark(cluster, state, complete=True)
    return Pushed(state.name, snapshot.manifest.entities, written, time.perf_counter() - started)


def _open_index(cluster: Cluster, snapshot: Snapshot, meta: _Meta) -> IndexState:
    name = index_name(cluster.settings.prefix, snapshot.id)
    state = read_index(cluster, name)
    if state is not None and _is_stale(cluster, state, meta):
        remove_index(cluster, name)
        state = None
    if state is None:
        body = {
            "settings": index_settings(cluster.settings.shards, meta.get("text_analyzer", "")),
            "mappings": mapping(snapshot.side, cluster.version, meta),
        }
        doing = f"creating {name}, opensearch.text_analyzer is {cluster.settings.text_analyzer}"
        cluster.call("PUT", f"/{name}", body=body, doing=doing, exists_ok=True)
        state = pushed_index(cluster, snapshot.id)
    check_scored(state, cluster.version)
    return state


def _analyser_of(cluster: Cluster, snapshot: Snapshot) -> str:
    named = cluster.settings.text_analyzer
    return language_of(snapshot) if named == DETECT and snapshot.side == "item" else named


def _is_stale(cluster: Cluster, state: IndexState, meta: _Meta) -> bool:
    if not state.snapshot:
        raise ServiceError(
            f"The index {state.name} at {cluster.url} was not written by cogr; remove it or "
            "choose another opensearch.prefix."
        )
    same = all(state.meta.get(key) == meta[key] for key in ("snapshot", "content_hash"))
    if same and (state.complete or state.shards == cluster.settings.shards):
        return False
    if state.aliases:
        raise ServiceError(
            f"The index {state.name} at {cluster.url} holds other content than the snapshot and "
            f"serves as {state.aliases[0]}; publish another snapshot first."
        )
    return True


def _fill(cluster: Cluster, state: IndexState, snapshot: Snapshot) -> int:
    refresh(cluster, state.name)
    if stats(cluster, state.name, "docs")["docs"]["count"] == snapshot.manifest.entities:
        return 0
    written = write_documents(cluster, state.name, searched(documents(snapshot), state.meta))
    refresh(cluster, state.name)
    return written


def _set_replicas(cluster: Cluster, state: IndexState) -> None:
    wanted, name = cluster.settings.replicas, state.name
    if state.replicas != wanted:
        doing = f"adding replicas to the index {name}"
        body = {"index": {"number_of_replicas": wanted}}
        cluster.call("PUT", f"/{name}/_settings", body=body, doing=doing)
    if not wanted or state.complete:
        return
    deadline, doing = time.monotonic() + REPLICA_SECONDS, f"waiting for the replicas of {name}"
    while True:
        health = cluster.call("GET", f"/_cluster/health/{name}", doing=doing)
        if health["status"] == "green" or int(health["number_of_data_nodes"]) <= wanted:
            return
        if time.monotonic() > deadline:
            raise ServiceError(
                f"The replicas of the index {name} at {cluster.url} are not ready after "
                f"{REPLICA_SECONDS / 60:.0f} minutes; see its health, then run the same command "
                "again."
            )
        time.sleep(LOOK_EVERY)


LARGEST_SHARE = 0.5
"""Largest share of changed entities for a push by difference; with more, a full write costs about
the same.
"""
_FIRST = 500
"""Changes that are read while the cluster makes the first clone; reading more would only compete
for the processor.
"""
CLONE = "_clone"
_READY = {"wait_for_status": "yellow", "wait_for_no_initializing_shards": "true", "timeout": "50s"}
"""What the cluster waits for after a clone, less than TIMEOUT."""
_UNBLOCKED = {
    f"blocks.{one}": None
    for one in ("write", "read", "metadata", "read_only", "read_only_allow_delete")
}
"""An operator, or a disk that was full, may have left blocks on the parent's index."""
_log = logging.getLogger(__name__)


_READ_ALIKE = ("fields", "text_analyzer", "search_text")
"""What of the `_meta` says how an index reads its documents."""


def _copy_and_change(
    cluster: Cluster, base: Snapshot, snapshot: Snapshot, meta: _Meta
) -> int | None:
    name, old = (index_name(cluster.settings.prefix, one.id) for one in (snapshot, base))
    source = read_index(cluster, old)
    draft = draft_name(cluster.settings.prefix, snapshot.side)
    # An index left by a dead push, perhaps after its second clone.
    remove_index(cluster, draft)
    if source is None or read_index(cluster, name) or not _fit(cluster, source, base, meta):
        return None
    try:
        written = _change_clone(cluster, source, draft, base, snapshot, meta)
        # Without a refresh the clone takes three times as long.
        refresh(cluster, draft)
        block_writes(cluster, draft)
        _clone(cluster, draft, name, {})
        merge(cluster, name)
        check_count(cluster, name, snapshot)
    except CogrError as why:
        _log.info("no push by difference: %s", why)
        remove_index(cluster, name)
        return None
    finally:
        remove_index(cluster, draft)
    return written


def _fit(cluster: Cluster, state: IndexState, base: Snapshot, meta: _Meta) -> bool:
    return (
        (state.snapshot, state.meta.get("content_hash")) == (base.id, base.manifest.content_hash)
        and (state.complete and state.verified and state.write_blocked)
        and state.shards == cluster.settings.shards
        and all(state.meta.get(name) == meta.get(name) for name in _READ_ALIKE)
    )


def _change_clone(
    cluster: Cluster,
    source: IndexState,
    draft: str,
    base: Snapshot,
    snapshot: Snapshot,
    meta: _Meta,
) -> int:
    changes = searched(_changes(base, snapshot), source.meta)
    with ThreadPoolExecutor(1, "changes") as reader:
        # The first changes are read while the cluster copies.
        first = reader.submit(list[tuple[str, Document | None]], islice(changes, _FIRST))
        _clone(cluster, source.name, draft, _UNBLOCKED)
        cluster.call(
            "PUT", f"/{draft}/_mapping", body={"_meta": meta}, doing=f"naming the index {draft}"
        )
        return write_documents(cluster, draft, chain(first.result(), changes), replace=True)


def _changes(base: Snapshot, snapshot: Snapshot) -> Iterator[tuple[str, Document | None]]:
    left = LARGEST_SHARE * snapshot.manifest.entities
    changes, kept = differences(base, snapshot), texts_of(snapshot)
    while some := list(islice(changes, _FIRST)):
        if (left := left - len(some)) < 0:
            raise CheckFailedError(f"more than {LARGEST_SHARE:.0%} of {snapshot.id} differs")
        rows = (one.after for one in some if one.after)
        written = dict(documents_of(rows, snapshot.side, kept))
        yield from ((one.id, written.get(one.id)) for one in some)


def _clone(cluster: Cluster, source: str, target: str, settings: dict[str, Any]) -> None:
    body = {"settings": {"index": {"number_of_replicas": 0, **settings}}}
    path, doing = f"/{source}/{CLONE}/{target}", f"cloning the index {source}"
    cluster.call("POST", path, body=body, doing=doing, exists_ok=True)
    cluster.call("GET", f"/_cluster/health/{target}", params=_READY, doing=doing)
