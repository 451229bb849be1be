"""The bulk writer: documents to one index, streaming, each created exactly once; or changes of
documents, each made once.

`helpers.parallel_bulk` of opensearch-py never retries, and `streaming_bulk` has one connection.
This writer has threads, and retries of whole requests and of single documents, and it serialises
only once. It knows no snapshots.
"""

from __future__ import annotations

import json
import random
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cogr.errors import DataError, ServiceError
from indexers.backends.opensearch.client import BULK_THREADS, RETRIES, Cluster, wait_before
from indexers.backends.opensearch.errors import Refusal, service_error

CHUNK_BYTES = 4 << 20
"""Largest bulk body in bytes, well under the 10 MiB that the smallest managed nodes accept; a
longer document is sent alone.
"""
CHUNK_DOCUMENTS = 2000
"""Most documents of a bulk request: short ones, of some 50 keywords, fill half of its bytes."""
LONGEST_ID = 512
"""Longest `_id` in bytes (OpenSearch's own limit)."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode

# An earlier attempt or push has created or removed the document, or another program has changed or
# removed it.
_DONE_BY_OTHERS = (("create", 409), ("delete", 404), ("update", 409), ("update", 404))
_TRIES_ON_A_SHARD = 20

Document = Mapping[str, Any]


def write_documents(cluster: Cluster, index: str, documents: Iterable[tuple[str, Document]]) -> int:
    """Create documents; existing ones are left unchanged. Returns how many were new. Memory:
    BULK_THREADS + 2 chunks. Raises DataError and ServiceError.
    """
    return _send_all(cluster, index, (entry("create", id_, one) for id_, one in documents))


def change_documents(
    cluster: Cluster, index: str, changes: Iterable[tuple[str, Document | None]]
) -> int:
    """Replace or create documents, or remove them where the document is None. Returns how many were
    given. Repeating it changes nothing more. Memory and errors as of `write_documents`.
    """
    entries = (entry("delete" if one is None else "index", id_, one) for id_, one in changes)
    return _send_all(cluster, index, entries)


@dataclass(frozen=True, slots=True)
class Seen:
    """A document as it was read. `version` is (sequence number, primary term) of its last change;
    None lets the shard itself read, merge and write it, with retries when another write comes in
    between.
    """

    id: str
    version: tuple[int, int] | None
    routing: str | None = None


_MERGE = "ctx._source.putAll(params.fields); for (name in params.gone) { ctx._source.remove(name) }"


def merge_into_documents(
    cluster: Cluster,
    index: str,
    changes: Iterable[tuple[Seen, Document]],
    gone: Sequence[str] = (),
) -> int:
    """Set some fields of documents that are unchanged since they were read, and remove those that
    are `gone`; others are left alone. Returns how many were updated. Memory and errors as of
    `write_documents`.
    """
    return _send_all(cluster, index, (_merging(seen, fields, gone) for seen, fields in changes))


def _merging(seen: Seen, fields: Document, gone: Sequence[str]) -> bytes:
    action: dict[str, Any] = {"_id": seen.id}
    if seen.version is None:
        action["retry_on_conflict"] = _TRIES_ON_A_SHARD
    else:
        action["if_seq_no"], action["if_primary_term"] = seen.version
    if seen.routing is not None:
        action["routing"] = seen.routing
    change: dict[str, Any] = {"doc": fields}
    if gone:
        change = {"script": {"source": _MERGE, "params": {"fields": fields, "gone": [*gone]}}}
    return f"{_encode({'update': action})}\n{_encode(change)}\n".encode()


def _send_all(cluster: Cluster, index: str, entries: Iterable[bytes]) -> int:
    sender, done, pending = _Sender(cluster, index), 0, deque[Future[int]]()
    with ThreadPoolExecutor(BULK_THREADS, thread_name_prefix="bulk") as pool:
        try:
            for chunk in chunks(entries, CHUNK_DOCUMENTS):
                if len(pending) > BULK_THREADS:
                    done += pending.popleft().result()
                pending.append(pool.submit(sender.send, chunk))
            done += sum(future.result() for future in pending)
        except BaseException:
            # Ctrl-C or a lost cluster: the other threads stop at their next wait.
            sender.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return done


def entry(operation: str, id_: str, document: Document | None) -> bytes:
    """The action line, and the document's line where there is one."""
    if len(id_) * 4 > LONGEST_ID and len(id_.encode()) > LONGEST_ID:
        raise DataError(
            f"The id {id_[:40]!r}... is longer than the {LONGEST_ID} bytes that OpenSearch "
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


class _Sender:
    def __init__(self, cluster: Cluster, index: str) -> None:
        self._cluster, self._index, self._draw = cluster, index, random.Random()
        self._most = CHUNK_DOCUMENTS
        self.stop = threading.Event()

    def send(self, chunk: list[bytes]) -> int:
        if len(chunk) > self._most:
            half = len(chunk) // 2
            return self.send(chunk[:half]) + self.send(chunk[half:])
        written = 0
        params = {"filter_path": "errors,items.*.status,items.*.error.type,items.*.error.reason"}
        for attempt in range(RETRIES + 1):
            answer, refusal = self._cluster.try_once(
                "POST", f"/{self._index}/_bulk", b"".join(chunk), params
            )
            if refusal is None:
                new, chunk, refusal = _sort_out(chunk, answer)
                written += new
            if refusal is None:
                return written
            if refusal.status == 413 and len(chunk) > 1:
                self._most = min(self._most, len(chunk) // 2)
                return written + self.send(chunk)
            if attempt == RETRIES or not refusal.is_transient:
                raise service_error(
                    refusal, self._cluster.url, f"writing to the index {self._index}"
                )
            if self.stop.wait(wait_before(attempt, self._draw)):
                raise ServiceError(f"Writing to the index {self._index} was given up.")
        raise AssertionError("unreachable: the last try returns or raises")


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
