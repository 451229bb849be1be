"""Who coordinates: one at a time, by write-once files, on any store. Nothing here depends on clocks that agree.

Each holder has a term. To take over, the next term's file is created, which only one can do; a holder that finds a later
term than its own has lost and stops. A holder counts up `beat`; whoever wants its place watches that count.
"""

from __future__ import annotations

import contextvars
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from cogr.errors import LockedError, ServiceError, StorageError
from cogr.records import Side
from cogr.store import Store
from indexers.fleet.records import Record

log = logging.getLogger(__name__)


class Holding(Record):
    """The content of a lease file. `seconds` is how long its holder may be silent."""

    term: int
    holder: str
    host: str
    since: float
    renewed: float
    seconds: float
    beat: int = 0
    released: bool = False


def read_lease(store: Store, side: Side) -> Holding | None:
    """The lease of the latest term; None when nobody ever held one."""
    names = _names(store, side)
    while names:
        name = names.pop()
        try:
            return Holding.model_validate_json(store.read(f"{_folder(side)}/{name}"))
        except FileNotFoundError:
            continue
        except ValidationError:
            # Created by a holder that died before its first byte came through: nobody holds it.
            return Holding(
                term=int(name.split(".")[0]), holder="", host="", since=0, renewed=0, seconds=0, released=True
            )
    return None


class Lease:
    """Held from `acquire` to `release`; a thread renews it.

    Attributes:
        term: grows with every holder.
    """

    def __init__(self, store: Store, side: Side, holding: Holding) -> None:
        self._store = store
        self._side = side
        self._holding = holding
        self._lost = threading.Event()
        self._ending = threading.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._renew_for_ever,), name="lease", daemon=True)
        self._thread.start()

    @property
    def term(self) -> int:
        return self._holding.term

    def check(self) -> None:
        """Raise LockedError when another coordinator has taken over."""
        if self._lost.is_set() or not self._is_latest():
            self._lost.set()
            raise LockedError(
                f"Another coordinator has taken over the rebuild of {self._side}s in {self._store.url}, since this one was "
                f"silent for more than fleet.lease_seconds ({self._holding.seconds:g} s); this one ends, nothing is lost."
            )

    def release(self) -> None:
        """Let the next one in at once."""
        self._ending.set()
        self._thread.join()
        if not self._lost.is_set():
            self._write(released=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _renew_for_ever(self) -> None:
        while not self._ending.wait(self._holding.seconds / 4):
            try:
                if not self._is_latest():
                    self._lost.set()
                    return
                self._write()
            except (OSError, StorageError, ServiceError) as error:
                log.warning("The lease can't be renewed: %s", error)

    def _is_latest(self) -> bool:
        latest = read_lease(self._store, self._side)
        return latest is None or latest.term <= self.term

    def _write(self, *, released: bool = False) -> None:
        update = {"renewed": time.time(), "beat": self._holding.beat + 1, "released": released}
        self._holding = self._holding.model_copy(update=update)
        self._store.write(_path(self._side, self.term), self._holding.model_dump_json().encode())


@contextmanager
def hold(store: Store, side: Side, doing: str, seconds: float) -> Iterator[Lease]:
    """Be the only one, on any host, who rebuilds or updates a side of this store for the time of the block.

    On a local store a lock comes first, so that a holder of this host that died is replaced at once.

    Raises:
        LockedError: somebody else is at it; the message says who.
    """
    local = store.is_local
    with (
        store.lock(f"rebuild-{side}", doing) if local else nullcontext(),
        acquire(store, side, doing, seconds, alone_here=local) as lease,
    ):
        yield lease


def acquire(store: Store, side: Side, doing: str, seconds: float, *, alone_here: bool = False) -> Lease:
    """Become the coordinator of a side.

    Args:
        doing: what the holder does, for messages.
        seconds: how long the holder may be silent before it can be replaced.
        alone_here: no other process of this host can be the holder (a lock says so): one of this host is dead.

    Raises:
        LockedError: somebody else holds it and is alive.
    """
    latest = read_lease(store, side)
    if latest is not None and not latest.released and not (alone_here and latest.host == socket.gethostname()):
        _wait_for_silence(store, side, latest, doing)
    now = time.time()
    holder = f"process {os.getpid()} on {socket.gethostname()} ({doing})"
    holding = Holding(
        term=_last_term(store, side) + 1,
        holder=holder,
        host=socket.gethostname(),
        since=now,
        renewed=now,
        seconds=seconds,
    )
    if not store.create(_path(side, holding.term), holding.model_dump_json().encode()):
        raise LockedError(f"{doing} is refused: another coordinator of {side}s in {store.url} was faster; wait for it.")
    for name in store.list(_folder(side)):
        if name < f"{holding.term:06d}":
            store.remove(f"{_folder(side)}/{name}")
    return Lease(store, side, holding)


def _wait_for_silence(store: Store, side: Side, seen: Holding, doing: str) -> None:
    """Return when the holder has been silent for its time, by this process's own clock; raise LockedError when it lives."""
    age = time.time() - seen.renewed
    if 0 <= age < seen.seconds:
        _refuse(seen, doing, store)
    # Its clock or ours may be wrong: what counts is whether it still writes.
    deadline = time.monotonic() + seen.seconds
    while time.monotonic() < deadline:
        time.sleep(seen.seconds / 10)
        now = read_lease(store, side)
        if now is None or now.released:
            return
        if (now.term, now.beat) != (seen.term, seen.beat):
            _refuse(now, doing, store)


def _refuse(held: Holding, doing: str, store: Store) -> None:
    raise LockedError(
        f"{doing} is refused: {held.holder} coordinates it in {store.url} since "
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(held.since))}; wait for it, or cogr-index cancel it. If it is "
        f"dead, this command works {held.seconds:g} s after its last sign of life."
    )


def _last_term(store: Store, side: Side) -> int:
    """By the names of the files: what a damaged one says counts for nothing, but its name is taken."""
    return max((int(name[:-5]) for name in _names(store, side)), default=0)


def _names(store: Store, side: Side) -> list[str]:
    """Of the lease's files, oldest term first."""
    return [name for name in store.list(_folder(side)) if re.fullmatch(r"\d{6}\.json", name)]


def _folder(side: Side) -> str:
    return f"fleet/{side}/lease"


def _path(side: Side, term: int) -> str:
    return f"{_folder(side)}/{term:06d}.json"
