"""Going live: gate, warm-up, switch, history, in this order, with one switch at a time a catalogue.

Gate and warm-up take long and hold no lease; only the switch and its entry in the history are made
under the catalogue's lease. If another process switched meanwhile, the gate compares again with
what serves then. A field of another team's index (`external`) goes live in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from cogr.errors import CogrError, SnapshotError, UserError
from cogr.records import Say, Side
from cogr.store import Store
from indexers.backends import Backend, side_of
from indexers.lease import Lease, switching_lease
from indexers.release.gate import StandIn, Verdict, check
from indexers.release.history import (
    Entry,
    Serving,
    begin_switch,
    entry_of,
    finish_switch,
    previous,
    unfinished_switch,
)
from indexers.release.verify import publish, sides_of, warm_up
from indexers.workspace import Workspace

WARM_UP_QUERIES = 50
"""Searches on a snapshot just before it serves: they open files and fill caches in a second."""


@dataclass(frozen=True)
class Released:
    """The snapshots that serve now, those that served before on the switched sides, and the gate's
    verdict, where it was asked.
    """

    serving: Mapping[Side, str | None]
    before: Mapping[Side, str | None]
    verdict: Verdict | None = None

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        found = {"serving": dict(self.serving), "before": dict(self.before)}
        return found | ({"gate": self.verdict.as_dict()} if self.verdict else {})


class Destination(Protocol):
    """Where snapshots serve: by the aliases of a backend, or as a field of another index."""

    @property
    def catalogue(self) -> str:
        """The name of its history and its lease."""

    def serving(self) -> Serving:
        """The snapshots that serve now, by side."""

    def prepare(self, ids: Sequence[str], seen: Serving, say: Say) -> None:
        """The slow steps before a switch, while `seen` serves. Raises CheckFailedError,
        ServiceError.
        """

    def is_prepared(self, say: Say) -> bool:
        """False where the name stands for another index than when it was prepared."""

    def switch(self, ids: Sequence[str]) -> Serving:
        """Switch by one atomic call. Returns what served before on these sides. Raises
        ServiceError.
        """


@dataclass(frozen=True)
class _Aliases:
    """The aliases of a backend."""

    backend: Backend
    store: Store

    @property
    def catalogue(self) -> str:
        return self.backend.catalogue

    def serving(self) -> Serving:
        return self.backend.serving()

    def prepare(self, ids: Sequence[str], seen: Serving, say: Say) -> None:  # noqa: ARG002
        new = [id_ for id_ in ids if id_ not in seen.values()]
        warm_up(self.backend, self.store, new, WARM_UP_QUERIES)

    def is_prepared(self, say: Say) -> bool:  # noqa: ARG002
        return True

    def switch(self, ids: Sequence[str]) -> Serving:
        return publish(self.backend, self.store, ids).before


def release(
    workspace: Workspace,
    ids: Sequence[str],
    *,
    gate: bool,
    stand_in: StandIn | None = None,
    say: Say = lambda _: None,
    still: Callable[[], None] = lambda: None,
    into: Destination | None = None,
) -> Released:
    """Let pushed and verified snapshots serve, at most one a side, by one atomic switch, and enter
    it in the history.

    Args:
        gate: compare with what serves first.
        stand_in: the figure to use for pairs that have learned the labels that the gate measures
            by.
        still: called just before the switch; raises when this process has lost its lease.
        into: where to publish; the backend's aliases by default.

    Raises:
        SnapshotError: unknown, not pushed, two of one side, or of another normaliser than the other
            side.
        CheckFailedError: the gate says no, or a snapshot is not verified; what serves stays.
        LockedError: another process switches this catalogue and does not finish in time.
        ServiceError: the cluster refuses; what serves stays.
    """
    place = into or _Aliases(workspace.backend, workspace.store)
    while True:
        seen, verdict = place.serving(), None
        with _whole(ids):
            if gate:
                verdict = check(workspace, ids, {**workspace.backend.serving(), **seen}, stand_in)
            place.prepare(ids, seen, say)
        with _turn(workspace, place, f"publish of {' and '.join(ids)}", say) as (lease, now, _):
            if gate and now != seen:
                say(f"What serves has changed meanwhile ({_spoken(now)}): the gate looks again.")
                continue
            if place.is_prepared(say):
                still()
                return _switch(workspace, place, lease, ids, now, verdict=verdict)


def roll_back(
    workspace: Workspace,
    to: Sequence[str],
    say: Say = lambda _: None,
    into: Destination | None = None,
) -> Released:
    """Let what served before serve again: one step further back in the history, or the named
    snapshots.

    If a rollback died after its switch, the next call only finishes it and goes no further back.

    Raises:
        SnapshotError: nothing was published before, or its snapshots are gone.
        UserError: another process switched meanwhile; nothing was rolled back.
        LockedError, CheckFailedError, ServiceError: as of `release`.
    """
    store, place = workspace.store, into or _Aliases(workspace.backend, workspace.store)
    seen = place.serving()
    died = None if to else unfinished_switch(store, place.catalogue, seen)
    while True:
        step = None if to or died else previous(store, place.catalogue, seen)
        ids = list(step.changed.values()) if step else list(to)
        with _whole(ids):
            place.prepare(ids, seen, say)
        with _turn(workspace, place, "rollback", say) as (lease, now, finished):
            if finished and finished["begun"] == "rollback" and not to:
                say("The rollback before this one had switched and died; it is finished now.")
                before = {side: finished["before"].get(side) for side in _changed(finished)}
                return Released(now, before)
            if not to and (now != seen or died):
                raise UserError(
                    f"Somebody else has switched meanwhile: {_spoken(now)} serves now. Nothing was "
                    "rolled back; run the same command "
                    "again to go back from there."
                )
            if place.is_prepared(say):
                step = None if to else previous(store, place.catalogue, now)
                ids = list(step.changed.values()) if step else list(to)
                after = {**now, **sides_of(store, ids)}
                number = step.to if step else entry_of(store, place.catalogue, after)
                return _switch(workspace, place, lease, ids, now, back_to=number)


@contextmanager
def _turn(
    workspace: Workspace, place: Destination, doing: str, say: Say
) -> Iterator[tuple[Lease, Serving, Entry | None]]:
    """The destination's lease, what serves, and a switch that a dead process made without an entry
    in the history.
    """
    with switching_lease(workspace.store, place.catalogue, doing, say) as lease:
        now = place.serving()
        yield lease, now, finish_switch(workspace.store, place.catalogue, now)


@contextmanager
def _whole(ids: Sequence[str]) -> Iterator[None]:
    """Turn a file removed meanwhile into an error that names the snapshots."""
    try:
        yield
    except FileNotFoundError as error:
        raise SnapshotError(
            f"A file of {' and '.join(ids)} was removed meanwhile ({error.filename or error}), "
            "so nothing was switched; see "
            "cogr-index list, and push it again."
        ) from error


def _switch(
    workspace: Workspace,
    place: Destination,
    lease: Lease,
    ids: Sequence[str],
    now: Serving,
    *,
    verdict: Verdict | None = None,
    back_to: int | None = None,
) -> Released:
    """The switch, between two entries in the history, so that the next process sees when this one
    died in between.
    """
    store = workspace.store
    after = {**now, **sides_of(store, ids)}
    begin_switch(store, place.catalogue, now, after, back_to)
    try:
        lease.check()
        before = place.switch(ids)
    except CogrError:
        with suppress(CogrError):
            finish_switch(store, place.catalogue, place.serving())
        raise
    finish_switch(store, place.catalogue, after)
    return Released(after, before, verdict)


def _changed(entry: Entry) -> list[Side]:
    ids = entry["serving"]
    return [side_of(id_) for side, id_ in ids.items() if entry["before"].get(side) != id_]


def _spoken(serving: Serving) -> str:
    return " and ".join(id_ for id_ in serving.values() if id_) or "nothing"
