"""Leases: one process at a time rebuilds a side or switches a catalogue. A lease is a row of
write-once files, so it works on any store.

The clocks of the hosts need not agree. Each holder has a term. A process takes over by creating the
file of the next term, which only one process can do. A holder that finds a later term has lost the
lease and stops. A holder increments `beat` regularly; a process that wants to take over watches
that count.
"""

from __future__ import annotations

import contextvars
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ValidationError

from cogr.errors import LockedError, ServiceError, StorageError
from cogr.records import PLURAL, Say, Side
from cogr.store import Store, process_name

log = logging.getLogger(__name__)

REBUILD_SECONDS = 45.0
"""Seconds for which the holder of a side's lease may be silent: a machine may pause for some."""
CATALOGUE_SECONDS = 5.0
"""Seconds for which the holder of a catalogue's lease may be silent. Short, because a switch takes
seconds and others wait for it.
"""
PATIENCE = 300.0
"""Seconds to wait for a live process that switches the catalogue."""
_LOOK_EVERY = 0.05


@dataclass(frozen=True)
class LeaseKind:
    """A right that only one process at a time has on a store: where its lease files lie, its lock
    on a local store, and for messages its name.
    """

    folder: str
    lock: str
    spoken: str

    def path(self, term: int) -> str:
        """The lease file of a term."""
        return f"{self.folder}/{term:06d}.json"


def lease_to_rebuild(side: Side) -> LeaseKind:
    """To rebuild or update a side of a store."""
    return LeaseKind(f"fleet/{side}/lease", f"rebuild-{side}", f"the rebuild of {PLURAL[side]}")


def lease_to_switch(catalogue: str) -> LeaseKind:
    """To switch what serves by a catalogue, to prune it and to write its history."""
    spoken = f"the catalogue {catalogue}"
    return LeaseKind(f"leases/{catalogue}", f"switch-{catalogue}", spoken)


def lease_to_fill(index: str, field: str) -> LeaseKind:
    """To fill a field of an index that another team owns, until searches use it."""
    return LeaseKind(f"leases/fill-{index}-{field}", f"fill-{index}-{field}", f"{field} of {index}")


class LeaseRecord(BaseModel):
    """The content of a lease file. `seconds` is how long its holder may be silent."""

    term: int
    holder: str = ""
    host: str = ""
    since: float = 0
    renewed: float = 0
    seconds: float = 0
    beat: int = 0
    released: bool = False


def latest_lease(store: Store, kind: LeaseKind) -> LeaseRecord | None:
    """The latest lease of a kind; None when there never was one."""
    while names := [name for name in store.list(kind.folder) if re.fullmatch(r"\d{6}\.json", name)]:
        term = int(names[-1].removesuffix(".json"))
        try:
            record = LeaseRecord.model_validate_json(store.read(kind.path(term)))
            return record.model_copy(update={"term": term})
        except FileNotFoundError:
            continue  # A later holder has removed it meanwhile.
        except ValidationError:
            # The process that created the file died before it wrote to it: nobody holds the lease.
            return LeaseRecord(term=term, released=True)
    return None


class Lease:
    """Held from `acquire` to `release`; a thread renews it."""

    def __init__(self, store: Store, kind: LeaseKind, record: LeaseRecord) -> None:
        self._store, self._kind, self._record = store, kind, record
        self._lost, self._ending = threading.Event(), threading.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._renew_for_ever,), name="lease", daemon=True
        )
        self._thread.start()

    @property
    def term(self) -> int:
        """Number of the holder, counted up."""
        return self._record.term

    @property
    def holder(self) -> str:
        """The process that holds it, for messages."""
        return self._record.holder

    def check(self) -> None:
        """Raise LockedError when another process has taken over."""
        if self._lost.is_set() or not self._is_latest():
            self._lost.set()
            raise LockedError(
                f"Another process has taken over {self._kind.spoken} in {self._store.url}, because "
                f"this one was silent for more than {self._record.seconds:g} s. It ends here, and "
                "nothing is lost; cogr-index list says what serves now."
            )

    def stop_renewing(self) -> None:
        """Renew the lease no more: without `release` it runs out, as if this process had died."""
        self._ending.set()
        self._thread.join()

    def release(self) -> None:
        """Give the lease up, so that another process may have it at once."""
        self.stop_renewing()
        if not self._lost.is_set():
            self.write(released=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _renew_for_ever(self) -> None:
        while not self._ending.wait(self._record.seconds / 4):
            try:
                if not self._is_latest():
                    self._lost.set()
                    return
                self.write()
            except (OSError, StorageError, ServiceError) as error:
                log.warning("The lease can't be renewed: %s", error)

    def _is_latest(self) -> bool:
        latest = latest_lease(self._store, self._kind)
        return latest is None or latest.term <= self.term

    def write(self, *, released: bool = False) -> None:
        update = {"renewed": time.time(), "beat": self._record.beat + 1, "released": released}
        self._record = self._record.model_copy(update=update)
        self._store.write(self._kind.path(self.term), self._record.model_dump_json().encode())


@contextmanager
def held_lease(store: Store, kind: LeaseKind, doing: str, seconds: float) -> Iterator[Lease]:
    """Hold a lease on a store for the time of the block: no other process on any host has it.
    Raises LockedError, which names the holder.

    On a local store a file lock is taken first, so that a dead holder on this host is replaced at
    once.
    """
    local = store.is_local
    with (
        store.lock(kind.lock, doing) if local else nullcontext(),
        acquire(store, kind, doing, seconds, has_file_lock=local) as lease,
    ):
        yield lease


@contextmanager
def awaited_lease(
    store: Store,
    kind: LeaseKind,
    doing: str,
    say: Say = log.info,
) -> Iterator[Lease]:
    """Hold a lease for the time of the block, such as of a catalogue: to switch it, to prune it or
    to write its history. `say` gets one message that names the holder waited for.

    A dead holder on this host is replaced at once, a dead one on another host after
    CATALOGUE_SECONDS, twice that at most. Raises LockedError where a live one takes more than
    PATIENCE.
    """
    said, deadline = False, time.monotonic() + PATIENCE
    with ExitStack() as stack:
        while True:
            try:
                lease = stack.enter_context(held_lease(store, kind, doing, CATALOGUE_SECONDS))
                break
            except LockedError as refused:
                if time.monotonic() > deadline:
                    raise
                if not said:
                    say(f"Waiting: {refused.held}.")
                said = True
                time.sleep(_LOOK_EVERY)
        yield lease


def acquire(
    store: Store, kind: LeaseKind, doing: str, seconds: float, *, has_file_lock: bool = False
) -> Lease:
    """Become the holder of a lease. Raises LockedError when another process holds it and lives.

    Args:
        seconds: how long the holder may be silent before it can be replaced.
        has_file_lock: this process has the file lock, so a holder on this host must be dead.
    """
    latest, host, now = latest_lease(store, kind), socket.gethostname(), time.time()
    if latest and not latest.released and not (has_file_lock and latest.host == host):
        _wait_for_silence(store, kind, latest, doing)
    # The term after the one that was read. Of two processes that read at once, one finds that the
    # file exists already.
    term, holder = latest.term + 1 if latest else 1, process_name(doing)
    record = LeaseRecord(
        term=term, holder=holder, host=host, since=now, renewed=now, seconds=seconds
    )
    if not store.create(kind.path(term), record.model_dump_json().encode()):
        held = f"another process took {kind.spoken} in {store.url} first"
        raise LockedError(f"{doing} is refused: {held}; wait for it.", held)
    for name in store.list(kind.folder):
        if name < f"{term:06d}":
            store.remove(f"{kind.folder}/{name}")
    return Lease(store, kind, record)


def _wait_for_silence(store: Store, kind: LeaseKind, seen: LeaseRecord, doing: str) -> None:
    age = time.time() - seen.renewed
    if 0 <= age < seen.seconds:
        raise _refusal(seen, kind, doing, store)
    # Either clock may be wrong; only a change of the file counts.
    deadline = time.monotonic() + seen.seconds
    while time.monotonic() < deadline:
        time.sleep(seen.seconds / 10)
        now = latest_lease(store, kind)
        if now is None or now.released:
            return
        if (now.term, now.beat) != (seen.term, seen.beat):
            raise _refusal(now, kind, doing, store)


def _refusal(seen: LeaseRecord, kind: LeaseKind, doing: str, store: Store) -> LockedError:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seen.since))
    held = f"{seen.holder} holds {kind.spoken} in {store.url} since {since}"
    return LockedError(
        f"{doing} is refused: {held}; wait for it, or end it. If it is dead, this command works "
        f"{seen.seconds:g} s after its last sign of life.",
        held,
    )
