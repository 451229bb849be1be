"""The removal of old snapshots: `cogr-index prune`.

Pruning removes old snapshots from the backend and, where asked, from the store, but never one in
use. In use are the snapshots that an alias of this backend names, that a rollback would go back to,
that serve elsewhere according to this store's histories, and that a training run names.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from cogr.errors import LockedError, SnapshotError
from cogr.records import SIDES, Say, Side
from cogr.snapshots import ID, Manifest, side_of, surveyed
from cogr.snapshots.texts import TEXTS, files_of
from cogr.store import Store
from indexers.backends import Backend
from indexers.backends.memory import INDEXES, index_name_of
from indexers.generators.statistical.generator import old_fits
from indexers.lease import Lease, awaited_lease, lease_to_switch
from indexers.release.history import History, ServingState, kept_histories, previous
from indexers.release.rules import rules_note

_ID = re.compile(rb"\b" + ID.pattern.encode() + rb"\b")


@dataclass(frozen=True)
class Pruned:
    """What a prune removed, or would remove: snapshots from the backend, files from the store, fits
    of `statistical`, items' texts and their indexes. Old snapshots `in_use` stay, with what names
    them.
    """

    from_backend: list[str]
    from_store: list[str]
    fits: list[str]
    texts: list[str]
    in_use: dict[str, str]
    damaged: dict[str, str]


def named_by(store: Store, backend: Backend) -> dict[str, str]:
    """Snapshots in use -> what names them."""
    used: dict[str, str] = {}
    for run in store.list("runs"):
        for name in (name for name in store.list(f"runs/{run}") if name.endswith(".json")):
            used |= {
                id_.decode(): f"the run {run}"
                for id_ in _ID.findall(store.read(f"runs/{run}/{name}"))
            }
    for name in kept_histories(store):
        history = History(store, name)
        state = backend.state(history.places) if name == backend.catalogue else None
        used |= {id_: f"what serves in {where}" for where, id_ in _served(history, state, name)}
        if state is not None:
            used |= dict.fromkeys(_behind(history, state), "a rollback")
            used |= {id_: "what serves" for id_ in state.values() if id_}
    bases = {}
    for id_ in used:
        with contextlib.suppress(SnapshotError):  # Another store's, or damaged.
            if note := rules_note(store, id_):
                bases[note["base"]] = f"the rules of {id_}"
    return bases | used


def _served(history: History, state: ServingState | None, name: str) -> Iterator[tuple[str, str]]:
    # One of the last two serves, whether or not the last switch was made. What a field had last is
    # brought to the index that its name stands for next, unless it stands for none.
    for entry in history.entries[-2:]:
        for place, id_ in entry["serving"].items():
            if _is_there(place, state):
                yield place if "/" in place else name, id_
    for place in history.places:
        if _is_there(place, state) and (last := history.last(place)):
            yield place, last


def _is_there(place: str, state: ServingState | None) -> bool:
    return state is None or "/" not in place or place in state


def _behind(history: History, state: ServingState) -> Iterator[str]:
    for places in (SIDES, *((place,) for place in history.places if place in state)):
        with contextlib.suppress(SnapshotError):  # Nothing served before: no rollback to keep.
            changed = previous(history.entries, state, places)[1]
            yield from (id_ for place, id_ in changed.items() if _is_there(place, state))


def prune(
    store: Store,
    backend: Backend,
    keep: int,
    *,
    files: bool,
    dry_run: bool,
    say: Say = lambda _: None,
) -> Pruned:
    """Remove all snapshots but the newest `keep` of each side and those in use.

    It holds the leases, so no switch can bring a snapshot into use meanwhile. Snapshots that
    another store pushed to the same cluster are left alone. A damaged snapshot counts as older than
    every whole one. With `files`, their files leave the store too, and so do fits that wrote no
    remaining snapshot (the newest ten are kept), texts that no remaining snapshot names, and
    folders that a dead process left unfinished. Raises StorageError where a history is damaged;
    nothing was removed.
    """
    if dry_run:
        return _found(store, backend, keep, files=files)
    # Files belong to all catalogues of the store, indexes to this one. Every process takes several
    # leases in this order, which avoids deadlocks.
    catalogues = sorted({backend.catalogue, *(kept_histories(store) if files else ())})
    with ExitStack() as stack:
        leases = [
            stack.enter_context(awaited_lease(store, lease_to_switch(name), "prune", say))
            for name in catalogues
        ]
        history = History(store, backend.catalogue)
        state = backend.state(history.places)
        history.settle(state)
        history.forget([place for place in history.places if place not in state])
        pruned = _found(store, backend, keep, files=files)
        _remove_all(store, backend, pruned, leases)
    return pruned


def _found(store: Store, backend: Backend, keep: int, *, files: bool) -> Pruned:
    used = named_by(store, backend)
    pushed = {entry.snapshot for entry in backend.list()}
    manifests, damaged = surveyed(store)
    whole = [one.id for one in manifests if one.id not in damaged]
    old = [id_ for side in SIDES for id_ in _old([*damaged, *whole], side, keep)]
    going = [id_ for id_ in old if id_ not in used]
    staying = [one for one in manifests if one.id not in going]
    return Pruned(
        [id_ for id_ in going if id_ in pushed],
        [*going, *_halves(store, {*used, *damaged, *whole})] if files else [],
        old_fits(store, staying) if files else [],
        _unread_texts(store, staying) if files else [],
        {id_: used[id_] for id_ in old if id_ in used},
        damaged,
    )


def _halves(store: Store, known: Collection[str]) -> list[str]:
    """Folders without a manifest that a dead prune or rebuild left."""
    names = [one for one in store.list("snapshots") if ID.fullmatch(one) and one not in known]
    at_rest = [one for one in names if store.is_at_rest(f"snapshots/{one}", "manifest.json")]
    # One that got its manifest since the survey is at rest too, and whole.
    return [one for one in at_rest if not store.exists(f"snapshots/{one}/manifest.json")]


def _unread_texts(store: Store, staying: Sequence[Manifest]) -> list[str]:
    named, read = files_of(staying), {index_name_of(one) for one in staying}
    return [
        *(f"{TEXTS}/{name}" for name in store.list(TEXTS) if name not in named),
        *(
            f"{INDEXES}/{name}"
            for name in store.list(INDEXES)
            if not any(map(name.startswith, read))
        ),
    ]


def _remove_all(store: Store, backend: Backend, pruned: Pruned, leases: Sequence[Lease]) -> None:
    def check() -> None:
        for lease in leases:
            lease.check()

    for id_ in pruned.from_backend:
        check()
        backend.delete(id_)
    for folder in (*(f"snapshots/{id_}" for id_ in pruned.from_store), *pruned.fits):
        check()
        _remove_folder(store, folder, check)
    for path in pruned.texts:
        check()
        store.remove(path)


def _remove_folder(store: Store, folder: str, check: Callable[[], None]) -> None:
    """A folder without a manifest is nothing, so the manifest goes first. If this process slept and
    another one has the lease by now, it may have published the snapshot: the manifest comes back.
    """
    path = f"{folder}/manifest.json"
    manifest = store.read(path) if store.exists(path) else None
    store.remove(path)
    try:
        check()
    except LockedError:
        if manifest is not None:
            store.write(path, manifest)
        raise
    store.remove(folder)


def _old(oldest_first: Sequence[str], side: Side, keep: int) -> list[str]:
    ids = [id_ for id_ in oldest_first if side_of(id_) == side]
    return ids[: max(0, len(ids) - keep)]
