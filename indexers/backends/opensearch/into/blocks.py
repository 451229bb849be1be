"""The write block on a team's index: short, and taken back whatever becomes of the process that has
set it.

A note in the store says which index is blocked and for whom. It is removed with the block; one that
a dead process has left is found by the next command that opens the backend, which takes the block
back.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cogr.errors import CogrError, LockedError
from cogr.store import Store
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import read_index
from indexers.backends.opensearch.into.target import Target
from indexers.build.lease import alone

log = logging.getLogger(__name__)

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


def lift_left(cluster: Cluster, store: Store, say: Callable[[str], None]) -> None:
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


def _lift_noted(cluster: Cluster, store: Store, path: str, say: Callable[[str], None]) -> None:
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
    """SIGTERM as SystemExit, so that what is open is closed; only the main thread is told of
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
