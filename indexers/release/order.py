"""The order in which every snapshot goes live: set-aside check -> rules -> push -> verify -> gate
-> switch -> history.

`rebuild`, `update`, `publish`, `publish --into`, `cogr-train run --publish`, `cogr-train
publish`, `Project.release` and the demo call `release`; `rollback` calls `roll_back`, which begins
at the switch. Nothing else switches.

Only the switch and its entry in the history are made under the catalogue's lease; the slow steps
before them hold none. If another process switched meanwhile, the gate compares again with what
serves then.

The entry in the history is written before the switch (`history`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cogr.errors import CheckFailedError, CogrError, LockedError, SnapshotError, UserError
from cogr.records import SIDES, Advance, Say, Side
from cogr.snapshots import (
    Snapshot,
    open_snapshot,
    read_manifest,
    read_set_aside,
    side_of,
    why_no_pair,
)
from cogr.store import Store
from indexers.backends import Backend, Keywords, Pushed, Verified
from indexers.backends.memory import mirror_of
from indexers.lease import Lease, awaited_lease, lease_to_switch
from indexers.release.gate import HeldOutF1, Verdict, check_gate
from indexers.release.history import (
    History,
    HistoryEntry,
    Serving,
    ServingState,
    is_half,
    named,
    newest_with,
    previous,
)
from indexers.release.rules import rules_note, with_rules
from indexers.tables import Table
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace

log = logging.getLogger(__name__)


def probes(backend: Backend, snapshot: Snapshot, count: int) -> Sequence[Keywords]:
    """Keyword lists to compare live results with the mirror on.

    For items, the weighted keyword sets of the query snapshot that serves, where this store has it;
    else keywords drawn from the snapshot itself.
    """
    draw, store = random.Random(0), snapshot.store
    asking = backend.serving().get("query")
    if asking and snapshot.side == "item" and asking in store.list("snapshots"):
        try:
            queries = open_snapshot(store, asking)
            entities = queries.manifest.entities
            chosen = draw.sample(range(entities), min(count, entities))
            return [row.weighted for row in queries.rows(chosen)]
        except SnapshotError as error:
            log.warning("Its results are compared on keywords of its own: %s", error)
    words = mirror_of(snapshot).words
    sizes = (min(len(words), draw.randint(1, 15)) for _ in range(count if words else 0))
    return [draw.sample(words, size) for size in sizes]


VERIFY_QUERIES = 100
"""Live queries compared with the mirror after a push: a wrong scoring would show in any of them."""


def push_and_verify(backend: Backend, snapshot: Snapshot, say: Say = lambda _: None) -> Pushed:
    """Write the snapshot beside what serves and compare it there. Raises CheckFailedError where the
    pushed index differs from it, and ServiceError.
    """
    with stage("push", snapshot.side):
        pushed = backend.push(snapshot)
    say(
        f"pushed {pushed.written} of {pushed.documents} documents to {pushed.index} in "
        f"{pushed.seconds:.1f} s"
    )
    verified = verify_snapshot(backend, snapshot)
    say(
        f"verified {verified.documents} documents, {verified.sampled} sampled, {verified.scores} "
        f"scores of {verified.queries} queries"
    )
    return pushed


def verify_snapshot(
    backend: Backend,
    snapshot: Snapshot,
    *,
    every: bool = False,
    advance: Advance = lambda _: None,
) -> Verified:
    """Compare a pushed snapshot with its files, by a sample or `every` document, and live results.
    Raises as `Backend.verify`.
    """
    outcomes = prometheus.VERIFICATIONS
    with stage("verify", snapshot.side):
        try:
            asked = probes(backend, snapshot, VERIFY_QUERIES)
            verified = backend.verify(snapshot, asked, every=every, advance=advance)
        except CheckFailedError:
            outcomes.labels(snapshot.side, "different").inc()
            raise
    outcomes.labels(snapshot.side, "equal").inc()
    return verified


@dataclass(frozen=True)
class Released:
    """The outcome of a release: what serves now (empty where no switch was asked for), what served
    before on the switched sides, the gate's verdict, and where snapshots pushed by this call lie.
    """

    serving: Mapping[Side, str | None]
    before: Mapping[Side, str | None]
    verdict: Verdict | None = None
    indexes: Mapping[Side, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        result = {"serving": dict(self.serving), "before": dict(self.before)}
        return result | ({"gate": self.verdict.as_dict()} if self.verdict else {})

    def table(self, title: str) -> Table:
        """What serves, and what served before on the switched sides."""
        rows = [
            {"side": side, "serves": id_ or "", "before": self.before.get(side) or ""}
            for side, id_ in self.serving.items()
        ]
        return Table(title, rows)


class Destination:
    """Where snapshots serve: by the aliases of a backend; in `external` as a field of an index.
    `destination` opens it.

    Attributes:
        own: whether item snapshots are pushed to the backend.
        items: the place of the item side.
        catalogue: the name of its history and its lease.
    """

    own = True
    items = "item"

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self.store, self.backend = workspace, workspace.store, workspace.backend
        self.catalogue = self.backend.catalogue

    def look(self) -> tuple[History, ServingState]:
        """The history, and what serves in every place of the catalogue."""
        history = History(self.store, self.catalogue)
        return history, self.state(history)

    def state(self, history: History) -> ServingState:
        """What serves in every place that a history names."""
        return self.backend.state(history.places)

    def pair(self, state: ServingState) -> dict[Side, str | None]:
        """The two snapshots that serve here."""
        return {"item": state.get(self.items), "query": state.get("query")}

    def current(self, state: ServingState, _history: History, /) -> list[str]:
        """What a publish without a snapshot publishes: what serves, for the rules of today. Raises
        UserError where there are none, or nothing serves.
        """
        ids = [id_ for id_ in self.pair(state).values() if id_]
        if ids and self.workspace.settings.publish.rules:
            return ids
        raise UserError("No snapshot given; name one (cogr-index list).")

    def placed(self, ids: Sequence[str]) -> dict[str, str]:
        """Place -> snapshot. Raises SnapshotError where two are of one side."""
        sides = _sides(self.store, ids)
        return {self.items if side == "item" else side: id_ for side, id_ in sides.items()}

    def names(self, _place: str, _changes: Mapping[str, str], /) -> bool:
        """Whether a place is another name of the field that changes."""
        return False

    @contextmanager
    def prepared(self, _changes: Mapping[str, str], _say: Say, /) -> Iterator[None]:
        """The slow steps before a switch; for the time of the block nobody undoes them."""
        yield

    def lost(self) -> str:
        """What of the slow steps was undone nevertheless; "" where nothing was."""
        return ""

    def switch(
        self, changes: Mapping[str, str], state: ServingState, check: Callable[[], None]
    ) -> None:
        """Switch from a state by one atomic call. Raises LockedError where another one serves, or
        `check` says that another process has the lease.
        """
        outcome, aliases = "failed", {side: changes[side] for side in SIDES if side in changes}
        try:
            with stage("publish", "pair" if len(changes) > 1 else next(iter(aliases), "item")):
                self.backend.publish(aliases, {side: state.get(side) for side in SIDES})
                self.finish(changes, state, check)
            outcome = "switched"
        finally:
            prometheus.PUBLISHES.labels(outcome).inc()

    def finish(
        self, changes: Mapping[str, str], state: ServingState, check: Callable[[], None]
    ) -> None:
        """What is switched after the aliases; where that fails, the aliases are as before."""


class MovedError(CheckFailedError):
    """What a job started from serves no longer: its outcome would undo what came between."""


def release(
    workspace: Workspace,
    ids: Sequence[str],
    *,
    push: bool = True,
    switch: bool = True,
    gate: bool = True,
    held_out: HeldOutF1 | None = None,
    say: Say = lambda _: None,
    check_lease: Callable[[], None] = lambda: None,
    base: Serving | None = None,
    into: Destination | None = None,
) -> Released:
    """Let snapshots serve, at most one a side, by one atomic switch, and enter it in the history.

    A snapshot that the gate refuses stays pushed and verified. With `publish.rules`, what serves is
    the snapshots with these rules. It is a compare and swap: where another process switched after
    the state was read that rules and gate start from, they start again.

    Args:
        ids: none for what serves, to be filled again or to get the rules of today.
        push: push to the backend and verify first what is not there, or did not pass its last
            verification.
        switch: False ends before the gate.
        gate: False overrules the checks of set-aside entities and of rounds, and the gate. The
            setting `publish.tolerance = 1` turns off the gate alone.
        check_lease: called just before the switch; raises when this process has lost the lease of
            its rebuild.
        base: what served when the snapshots were begun, for the sides that start from it.

    Raises SnapshotError, DataError, CheckFailedError, LockedError and ServiceError; MovedError
    where `base` does not serve any more.
    """
    from indexers.release import destination  # It builds on this module.

    place, indexes = into or destination(workspace), dict[Side, str]()
    if gate:
        _check_set_aside(workspace, ids)
    while True:
        history, seen = place.look()
        serving = place.pair(seen)
        if base is not None and switch:
            _check_base(workspace.store, base, serving, history, ids)
        going = ids or place.current(seen, history)
        going = with_rules(workspace, going, serving, history.rolled_back, say)
        if push:
            indexes |= _pushed(place, going, say)
        if not switch:
            return Released({}, {}, indexes=indexes)
        changes, verdict = place.placed(going), None
        _check_rounds(
            workspace.store, going, serving, say, refused=gate and (place.own or len(ids) > 1)
        )
        _check_halves(place, history, changes, seen)
        if gate and workspace.settings.publish.tolerance < 1:
            verdict = check_gate(workspace, going, serving, held_out, say)
        with _turn(place, changes, f"publish of {' and '.join(going)}", say) as lease:
            history, now = place.look()
            again = place.lost()
            if now != seen and not again:
                serves = _spoken(now, history)
                again = f"What serves has changed meanwhile ({serves}): it is compared again."
            if again:
                say(again)
                continue
            check_lease()
            place.placed(going)  # Their files are still there: a prune may have come between.
            _switch(place, lease, changes, now, history)
        return _released(place, changes, now, verdict, indexes)


def _pushed(place: Destination, ids: Sequence[str], say: Say) -> dict[Side, str]:
    there = {one.snapshot for one in place.backend.list() if one.complete}
    own = [id_ for id_ in ids if place.own or side_of(id_) == "query"]
    new = [open_snapshot(place.store, id_) for id_ in own if id_ not in there]
    return {one.side: push_and_verify(place.backend, one, say).index for one in new}


@contextmanager
def _turn(place: Destination, changes: Mapping[str, str], doing: str, say: Say) -> Iterator[Lease]:
    kind = lease_to_switch(place.catalogue)
    with place.prepared(changes, say), awaited_lease(place.store, kind, doing, say) as lease:
        yield lease


def roll_back(
    workspace: Workspace,
    to: Sequence[str],
    say: Say = lambda _: None,
    into: Destination | None = None,
) -> Released:
    """Let what served before serve again: one step further back in the history, or the named
    snapshots.

    Neither the set-aside check nor the gate is asked: in an emergency what served once must be able
    to serve again. If a rollback died after its switch, the next call only finishes it and goes no
    further back.

    Raises as `release`, SnapshotError where nothing was published before, and UserError where
    another process switched meanwhile; then nothing was rolled back.
    """
    from indexers.release import destination

    place = into or destination(workspace)
    history, seen = place.look()
    told, (settled, finishes) = history.entries, history.settled(seen)
    number, changes = None, place.placed(to)
    if to:
        finishes, number = None, newest_with(settled, named({**seen, **changes}))
    elif not finishes:
        number, changes = _step_back(place, settled, seen)
    _check_rounds(workspace.store, [*changes.values()], place.pair(seen), say, refused=False)
    _check_halves(place, history, changes, seen)
    with _turn(place, changes, "rollback", say) as lease:
        history, now = place.look()
        if now != seen or history.entries != told:
            raise UserError(
                f"Another process switched to {_spoken(now, history)} in the meantime. Nothing was "
                "rolled back; run the same command again to go back from there."
            )
        lease.check()
        if finishes:
            history.settle(now)
            say("The previous rollback switched and died; it is finished now.")
            gone = [where for where in finishes if finishes[where] != now.get(where)]
            return _released(place, {w: str(now[w]) for w in gone}, {**now, **finishes})
        place.placed([*changes.values()])
        _switch(place, lease, changes, now, history, number)
    return _released(place, changes, now)


def _step_back(
    place: Destination, entries: Sequence[HistoryEntry], state: ServingState
) -> tuple[int, dict[str, str]]:
    number, changed = previous(entries, state, (*SIDES, place.items))
    others = [where for where in changed if "/" in where and where != place.items]
    if place.own and others and "query" in changed:
        index, _, field = others[0].rpartition("/")
        raise UserError(
            f"The queries serve together with the field {field} of {index}, which that switch "
            f"changed too; run cogr-index rollback --into {index}, so that both go back."
        )
    return number, {where: id_ for where, id_ in changed.items() if where not in others}


def _released(
    place: Destination,
    changes: Mapping[str, str],
    now: ServingState,
    verdict: Verdict | None = None,
    indexes: Mapping[Side, str] | None = None,
) -> Released:
    after, before = place.pair({**now, **changes}), place.pair(now)
    places: dict[Side, str] = {"item": place.items, "query": "query"}
    gone = {side: before[side] for side, where in places.items() if where in changes}
    return Released(after, gone, verdict, indexes or {})


def _switch(
    place: Destination,
    lease: Lease,
    changes: Mapping[str, str],
    now: ServingState,
    history: History,
    back_to: int | None = None,
) -> None:
    """The entry is written before the switch, both by compare and swap, so a process that slept
    past its lease is refused here or by the cluster. If this one is refused, it restores the
    entries that it replaced.
    """
    told = history.entries
    history.settle(now)
    twins = {where: changes[place.items] for where in now if place.names(where, changes)}
    entries, after = history.entries, named({**now, **changes, **twins})
    rolled_back = {*history.rolled_back}
    if back_to is not None:
        rolled_back |= {_rules_digest(place.store, now.get(where)) for where in changes}
    rolled_back -= {"", *(_rules_digest(place.store, id_) for id_ in changes.values())}
    paired = {*history.paired, *([place.items] if not place.own and "query" in changes else ())}
    made: HistoryEntry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "by": lease.holder,
        "serving": after,
        "paired": sorted(paired),
        "rolled_back": sorted(rolled_back),
    }
    if back_to is not None:
        history.write([*entries, {**made, "back_to": back_to}])
    elif not entries or entries[-1]["serving"] != after:
        history.write([*entries, made])
    try:
        lease.check()
        place.switch(changes, now, lease.check)
    except CogrError:
        with suppress(CogrError):
            state = place.state(history)
            if not is_half(named(state), named(now), after):
                history.write(told)
            history.settle(state)
        raise
    _enter(place, made, entries if back_to is None else entries[:back_to])


_TRIES = 5


def _enter(place: Destination, made: HistoryEntry, before: Sequence[HistoryEntry]) -> None:
    """Make sure that a completed switch is in the history. While this process slept, another may
    have removed its entry or dropped places that are gone; if another has switched since, the
    history is that one's.
    """
    for _ in range(_TRIES):
        history = History(place.store, place.catalogue)
        kept, newest = history.entries, history.newest
        if newest and newest["serving"] == made["serving"] and "back_to" not in newest:
            return
        if named(place.state(history)) != made["serving"]:
            return
        with suppress(LockedError):
            history.write([*(before if len(kept) > len(before) else kept), made])


def _spoken(state: ServingState, history: History) -> str:
    serving = " and ".join(dict.fromkeys(named(state).values())) or "nothing"
    made = history.newest
    return f"{serving}, by {made['by']} at {made['time']}" if made and "by" in made else serving


def _rules_digest(store: Store, id_: str | None) -> str:
    return str(_whole_note(store, id_).get("digest", ""))


def _whole_note(store: Store, id_: str | None) -> Mapping[str, Any]:
    """`rules_note`: a lost or damaged snapshot must not block switching away from it."""
    with suppress(SnapshotError):
        return rules_note(store, id_) if id_ else {}
    return {}


def _check_base(
    store: Store, base: Serving, serving: Serving, history: History, ids: Sequence[str]
) -> None:
    for side, was in base.items():
        now = serving.get(side)
        before, after = (_whole_note(store, id_).get("base", id_) for id_ in (was, now))
        if before != after:
            raise MovedError(
                f"{' and '.join(ids)} started from {was or 'nothing'}, but now "
                f"{_spoken({side: now}, history)}, serves; publishing it would undo that. It is "
                "kept: run the same command again, or publish it anyway with cogr-index publish "
                f"{' '.join(ids)}."
            )


def _check_halves(
    place: Destination, history: History, changes: Mapping[str, str], state: ServingState
) -> None:
    """Queries and a field that were published together have one file of rules, or stay."""
    if not place.own or "query" not in changes:
        return
    was, now = (_rules_digest(place.store, one) for one in (state.get("query"), changes["query"]))
    for where in history.paired:
        if state.get(where) and was != now:
            index, _, field = where.rpartition("/")
            raise UserError(
                f"{changes['query']} was made with other rules than the field {field} of {index}, "
                f"which serves with the queries; give --into {index}, so that both are switched."
            )


def _check_set_aside(workspace: Workspace, ids: Sequence[str]) -> None:
    allowed = workspace.settings.rebuild.max_failure_share
    for manifest in (read_manifest(workspace.store, id_) for id_ in ids):
        share = manifest.set_aside / max(1, manifest.entities)
        if share > allowed:
            known = read_set_aside(workspace.store, manifest.id).items()
            first = "".join(f", the first {id_!r}: {why}" for id_, why in islice(known, 1))
            raise CheckFailedError(
                f"{manifest.set_aside} of {manifest.entities} entities were set aside "
                f"({share:.1%}, rebuild.max_failure_share is {allowed:.1%}){first}; the snapshot "
                f"{manifest.id} is kept and not published, its set_aside.jsonl has the reasons."
            )


def _check_rounds(
    store: Store, ids: Sequence[str], serving: Serving, say: Say, *, refused: bool
) -> None:
    switched = _sides(store, ids)
    after = {**serving, **switched}
    item, query, why = after.get("item"), after.get("query"), ""
    if switched and item and query:
        with suppress(SnapshotError):
            why = why_no_pair(read_manifest(store, item), read_manifest(store, query))
    if not why:
        return
    what = (
        f"{item} and {query} are not a pair: {why}, so the queries' precomputed keywords would not "
        "be used"
    )
    if refused:
        raise CheckFailedError(
            f"{what}. What serves stays; publish an item and a query snapshot of one round in one "
            "call, or overrule this with cogr-index publish --no-gate."
        )
    say(f"Warning: {what}; publish a pair of one round.")


def _sides(store: Store, ids: Sequence[str]) -> dict[Side, str]:
    sides: dict[Side, str] = {}
    for manifest in (read_manifest(store, id_) for id_ in ids):
        if other := sides.get(manifest.side):
            raise SnapshotError(
                f"{other} and {manifest.id} are both of the side {manifest.side}; name one a side."
            )
        sides[manifest.side] = manifest.id
    return sides
