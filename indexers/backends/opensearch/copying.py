"""Push by difference: the index of a snapshot from the index of its parent, copied by the cluster,
plus what changed.

clone (hard links) -> change documents -> freeze -> clone once more -> merge; then `push` goes on
with replicas and the mark. The second clone makes it exact: an index keeps deleted documents for
the recovery of copies until a timer lets go of them (half a minute), and till then they count in
the statistics behind scores. A new clone owes nobody anything, so that its merge drops them at
once. Whatever does not work here is no error: the snapshot is written in full instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

from cogr.differences import differences
from cogr.errors import CheckFailedError, ServiceError
from cogr.snapshots import Snapshot
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import (
    check_count,
    drop_deleted,
    merge,
    merging_apart,
    read_index,
    refresh,
)
from indexers.backends.opensearch.mapping import (
    DRAFT,
    LAYOUT,
    IndexState,
    document,
    index_name,
    meta_of,
)
from indexers.backends.opensearch.writer import Document, change_documents

LARGEST_SHARE = 0.5
"""Of more changed entities than this share, a full write costs about as much."""
_FIRST = 500
"""Changes that are read while the cluster makes the first clone; more would only take the processor
from it.
"""
_CLONE = "_clone"
_READY_SECONDS = 120.0
_log = logging.getLogger(__name__)


def copy_and_change(
    cluster: Cluster, prefix: str, base: Snapshot, snapshot: Snapshot
) -> int | None:
    """Make the snapshot's index out of its parent's. It is then merged and frozen, and not yet
    marked.

    Returns:
        The number of documents changed, new or removed; None when it has to be written in full: the
        parent is not pushed and verified, too much differs, or the cluster does not clone.

    Raises:
        ServiceError: the cluster went away.
    """
    name, source = index_name(prefix, snapshot.id), read_index(cluster, index_name(prefix, base.id))
    draft = f"{name}{DRAFT}"
    # Of a push that died, after its second clone even.
    _remove(cluster, draft)
    if (
        read_index(cluster, name) is not None
        or not _fit(cluster, source, base, snapshot)
        or source is None
    ):
        return None
    try:
        written = _change_clone(cluster, source.name, draft, base, snapshot)
        if written is None:
            return None
        # A clone of what was not refreshed takes three times as long.
        refresh(cluster, draft)
        cluster.call("PUT", f"/{draft}/_block/write", doing=f"freezing the index {draft}")
        return written if _finish(cluster, draft, name, snapshot) else None
    except _TooMuchError:
        _log.info(
            "no push by difference: more than %.0f%% of %s differs from %s",
            100 * LARGEST_SHARE,
            snapshot.id,
            base.id,
        )
        return None
    finally:
        _remove(cluster, draft)


def _fit(cluster: Cluster, state: IndexState | None, base: Snapshot, snapshot: Snapshot) -> bool:
    """True when the parent's index is whole, verified, frozen, and made as this one
    would be made.
    """
    return (
        state is not None
        and (state.snapshot, state.meta.get("content_hash"))
        == (base.id, base.manifest.content_hash)
        and (state.complete and state.verified and state.write_blocked)
        and (state.meta.get("layout"), state.shards) == (LAYOUT, cluster.settings.shards)
        and state.meta.get("fields", {}) == snapshot.manifest.fields
    )


class _TooMuchError(Exception):
    """More than LARGEST_SHARE of the entities differ."""


def _change_clone(
    cluster: Cluster, source: str, draft: str, base: Snapshot, snapshot: Snapshot
) -> int | None:
    """Clone an index, change the clone and name it; the number of changes, None when the cluster
    does not clone.
    """
    changes, naming = _changes(base, snapshot), {"_meta": meta_of(snapshot.manifest)}
    with ThreadPoolExecutor(1, "changes") as reader:
        # The first ones are read while the cluster copies.
        first = reader.submit(list[tuple[str, Document | None]], islice(changes, _FIRST))
        if not _clone(cluster, source, draft, {"blocks.write": None}):
            return None
        cluster.call("PUT", f"/{draft}/_mapping", body=naming, doing=f"naming the index {draft}")
        return change_documents(cluster, draft, chain(first.result(), changes))


def _changes(base: Snapshot, snapshot: Snapshot) -> Iterator[tuple[str, Document | None]]:
    limit = LARGEST_SHARE * snapshot.manifest.entities
    for number, difference in enumerate(differences(base, snapshot), 1):
        if number > limit:
            raise _TooMuchError
        row = difference.after
        yield (
            difference.id,
            None
            if row is None
            else document(
                snapshot.side, row.id, row.text, row.self_keyword, row.keywords, row.fields_json
            ),
        )


def _clone(cluster: Cluster, source: str, target: str, settings: dict[str, Any]) -> bool:
    """Clone a frozen index, with other settings; False when the cluster refuses or does not get to
    it.
    """
    body = {"settings": {"index": {"number_of_replicas": 0, **settings}}}
    doing = f"cloning the index {source}"
    try:
        cluster.call("POST", f"/{source}/{_CLONE}/{target}", body=body, doing=doing, exists_ok=True)
    except ServiceError as error:
        _log.info("no push by difference: %s", error)
        return False
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        health: dict[str, Any] = cluster.call("GET", f"/_cluster/health/{target}", doing=doing)
        if health["status"] != "red" and not health["initializing_shards"]:
            return True
        time.sleep(0.2)
    _log.info("no push by difference: %s is not ready after %.0f s", target, _READY_SECONDS)
    return False


def _finish(cluster: Cluster, draft: str, name: str, snapshot: Snapshot) -> bool:
    """The draft's clone under the right name, frozen as the draft is, and merged; False, and gone
    again, when deleted documents are left in it.
    """
    shards = cluster.settings.shards
    if _clone(cluster, draft, name, merging_apart(cluster, draft, shards)):
        drop_deleted(cluster, name)
        merge(cluster, name, shards)
        try:
            check_count(cluster, name, snapshot)
        except CheckFailedError as error:
            _log.info("no push by difference: %s", error)
        else:
            return True
    _remove(cluster, name)
    return False


def _remove(cluster: Cluster, name: str) -> None:
    cluster.call("DELETE", f"/{name}", doing=f"removing the index {name}", missing_ok=True)
