"""The order in which every snapshot goes live: set-aside check -> rules -> push -> verify -> gate
-> switch -> history.

`rebuild`, `update`, `publish`, `publish --into`, `cogr-train run --publish`, `cogr-train
publish`, `Project.release` and the demo call `release`; `rollback` calls `roll_back`, which begins
at the switch. Nothing else switches.

Only the switch and its entry in the history are made under the catalogue's lease; the slow steps
before them hold none. If another process switched meanwhile, the gate compares again with what
serves then.

The backend says what serves; the history, by which a rollback finds its destination, says what
served before. It is a stack, and written before the switch: a publish puts an entry on it, a
rollback a note of where it goes back to, which after the switch takes off what is above. Where a
process died in between, what serves tells whether its switch was made, and `settle` leaves the
entries up to that one.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from cogr.errors import CheckFailedError, CogrError, SnapshotError, StorageError, UserError
from cogr.records import Advance, Say, Side
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
from indexers.lease import Lease, switching_lease
from indexers.release.gate import HeldOutF1, Verdict, check_gate
from indexers.release.rules import with_rules
from indexers.tables import Table
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace

KEPT = 200
Serving = Mapping[Side, str | None]

log = logging.getLogger(__name__)


class Entry(TypedDict):
    """One switch; of a rollback under way also the number of the entry that it goes back to."""

    time: str
    serving: dict[Side, str]
    back_to: NotRequired[int]


_ENTRIES = TypeAdapter(list[Entry])


def _path(catalogue: str) -> str:
    return f"history-{catalogue}.json"


def read_history(store: Store, catalogue: str) -> list[Entry]:
    """Every remembered switch, oldest first, the last one perhaps not made. Raises StorageError
    when the file is damaged.
    """
    path = _path(catalogue)
    try:
        return _ENTRIES.validate_json(store.read(path))
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise StorageError(
            f"The history {path} in {store.url} is damaged; restore it from a backup, or remove "
            "it: what was published before is then forgotten, and the next publish begins a new "
            "one."
        ) from error


def kept_histories(store: Store) -> list[str]:
    """The catalogues that have a history: backends, and fields of other indexes."""
    names = (re.fullmatch(r"history-(.*)\.json", name) for name in store.list(""))
    return [name[1] for name in names if name]


def settle(store: Store, catalogue: str, serving: Serving) -> tuple[list[Entry], Serving | None]:
    """Leave the entries up to what serves. Returns them, and what served before a rollback that
    switched and died before its end.
    """
    entries, now, before = read_history(store, catalogue), _named(serving), None
    settled = entries
    if entries and (back_to := entries[-1].get("back_to")) is not None:
        settled = entries[:-1]
        if entries[-1]["serving"] == now:
            settled, before = entries[: back_to + 1], entries[-2]["serving"]
    if (newest := _newest(settled, now)) is not None:
        settled = settled[: newest + 1]
    if settled != entries:
        store.write_json(_path(catalogue), settled)
    return settled, before


def previous(entries: Sequence[Entry], serving: Serving) -> tuple[int, dict[Side, str]]:
    """The newest entry with something that does not serve now: its number, and these snapshots.
    Raises SnapshotError when there is none.
    """
    for number in reversed(range(len(entries))):
        then = entries[number]["serving"]
        if changed := {side: id_ for side, id_ in then.items() if serving.get(side) != id_}:
            return number, changed
    raise SnapshotError(
        "Nothing was published before what serves now; name a snapshot with --to (cogr-index "
        "list shows them)."
    )


def _newest(entries: Sequence[Entry], serving: Mapping[Side, str]) -> int | None:
    found = [number for number, entry in enumerate(entries) if entry["serving"] == serving]
    return found[-1] if found else None


def _named(serving: Serving) -> dict[Side, str]:
    return {side: id_ for side, id_ in serving.items() if id_}


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
    verified = verify(backend, snapshot)
    say(
        f"verified {verified.documents} documents, {verified.sampled} sampled, {verified.scores} "
        f"scores of {verified.queries} queries"
    )
    return pushed


def verify(
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
        """For --json."""
        found = {"serving": dict(self.serving), "before": dict(self.before)}
        return found | ({"gate": self.verdict.as_dict()} if self.verdict else {})

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
    """

    own = True
    """Whether item snapshots are pushed to the backend."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self.store, self.backend = workspace, workspace.store, workspace.backend
        self.catalogue = self.backend.catalogue
        """The name of its history and its lease."""

    def serving(self) -> Serving:
        """The snapshots that serve now, by side."""
        return self.backend.serving()

    def prepare(self, ids: Sequence[str], say: Say) -> None:
        """The slow steps before a switch."""

    def switch(self, ids: Sequence[str]) -> Serving:
        """Switch by one atomic call. Returns what served before on these sides."""
        named, outcome = _sides(self.store, ids), "failed"
        try:
            with stage("publish", "pair" if len(named) > 1 else next(iter(named), "pair")):
                before = self.backend.publish(named)
            outcome = "switched"
        finally:
            prometheus.PUBLISHES.labels(outcome).inc()
        return before


def release(
    workspace: Workspace,
    ids: Sequence[str],
    *,
    push: bool = True,
    switch: bool = True,
    gate: bool = True,
    rules: bool = True,
    held_out: HeldOutF1 | None = None,
    say: Say = lambda _: None,
    check_lease: Callable[[], None] = lambda: None,
    into: Destination | None = None,
) -> Released:
    """Let snapshots serve, at most one a side, by one atomic switch, and enter it in the history.

    A snapshot that the gate refuses stays pushed and verified. With `publish.rules`, what serves is
    the snapshots with these rules.

    Args:
        push: push to the backend and verify first what is not there, or did not pass its last
            verification.
        switch: False ends before the gate.
        gate: False overrules the checks of set-aside entities and of rounds, and the gate. The
            setting `publish.tolerance = 1` turns off the gate alone.
        rules: False leaves `publish.rules` alone, as for a rollback.
        check_lease: called just before the switch; raises when this process has lost the lease of
            its rebuild.

    Raises SnapshotError, DataError, CheckFailedError, LockedError and ServiceError.
    """
    from indexers.release import destination  # It builds on this module.

    store, place = workspace.store, into or destination(workspace)
    if gate:
        _check_set_aside(workspace, ids)
    indexes: dict[Side, str] = {}
    ids = with_rules(workspace, ids, say, both=place.own) if rules else ids
    own = [id_ for id_ in ids if place.own or side_of(id_) == "query"]
    there = {one.snapshot for one in workspace.backend.list() if one.complete}
    new = [id_ for id_ in own if id_ not in there] if push else []
    for snapshot in [open_snapshot(store, id_) for id_ in new]:
        indexes[snapshot.side] = push_and_verify(workspace.backend, snapshot, say).index
    if not switch:
        return Released({}, {}, indexes=indexes)
    compare = gate and workspace.settings.publish.tolerance < 1
    while True:
        seen, verdict = place.serving(), None
        _check_rounds(workspace, ids, seen, say, refused=gate and (place.own or len(ids) > 1))
        if compare:
            serving = {**workspace.backend.serving(), **seen}
            verdict = check_gate(workspace, ids, serving, held_out)
        place.prepare(ids, say)
        doing = f"publish of {' and '.join(ids)}"
        with switching_lease(store, place.catalogue, doing, say) as lease:
            now = place.serving()
            entries, _ = settle(store, place.catalogue, now)
            if gate and now != seen:
                say(f"What serves has changed meanwhile ({_spoken(now)}): it is compared again.")
                continue
            check_lease()
            done = _switch(place, lease, ids, now, entries)
            return replace(done, verdict=verdict, indexes=indexes)


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

    store, place = workspace.store, into or destination(workspace)
    seen = place.serving()
    with switching_lease(store, place.catalogue, "rollback", say) as lease:
        now = place.serving()
        if now != seen and not to:
            raise UserError(
                f"Somebody else has switched meanwhile: {_spoken(now)} serves now. Nothing was "
                "rolled back; run the same command again to go back from there."
            )
        lease.check()
        entries, before = settle(store, place.catalogue, now)
        if before is not None and not to:
            say("The rollback before this one had switched and died; it is finished now.")
            gone = {side: id_ for side, id_ in before.items() if id_ != now.get(side)}
            return Released(now, gone)
        if to:
            number, ids = _newest(entries, _named({**now, **_sides(store, to)})), [*to]
        else:
            number, then = previous(entries, now)
            ids = [*then.values()]
        _check_rounds(workspace, ids, now, say, refused=False)
        place.prepare(ids, say)
        return _switch(place, lease, ids, now, entries, number)


def _switch(
    place: Destination,
    lease: Lease,
    ids: Sequence[str],
    now: Serving,
    entries: Sequence[Entry],
    back_to: int | None = None,
) -> Released:
    store, path = place.store, _path(place.catalogue)
    after = {**now, **_sides(store, ids)}
    made: Entry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "serving": _named(after),
    }
    if back_to is not None:
        store.write_json(path, [*entries, {**made, "back_to": back_to}])
    elif not entries or entries[-1]["serving"] != made["serving"]:
        store.write_json(path, [*entries[1 - KEPT :], made])
    try:
        lease.check()
        before = place.switch(ids)
    except CogrError:
        with suppress(CogrError):
            settle(store, place.catalogue, place.serving())
        raise
    if back_to is not None:
        store.write_json(path, entries[: back_to + 1])
    return Released(after, before)


def _spoken(serving: Serving) -> str:
    return " and ".join(id_ for id_ in serving.values() if id_) or "nothing"


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
    workspace: Workspace, ids: Sequence[str], seen: Serving, say: Say, *, refused: bool
) -> None:
    store, switched = workspace.store, _sides(workspace.store, ids)
    after = {**workspace.backend.serving(), **seen, **switched}
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
            "call, or overrule this by cogr-index publish --no-gate."
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
