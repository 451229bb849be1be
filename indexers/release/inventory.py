"""What is there, and what of it goes: `cogr-index list` and `cogr-index prune`.

Pruning takes old snapshots out of the backend and, where asked, out of the store; never what is in
use. In use is what an alias of this backend names, what a rollback would go back to, what this
store remembers to serve elsewhere, and what a training run names.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from cogr.errors import SnapshotError
from cogr.records import SIDES, Say, Side
from cogr.snapshots import ID, Manifest, damaged_snapshots, list_snapshots
from cogr.store import Store
from indexers.backends import Backend, Listed, side_of
from indexers.backends.memory import mirror_folder
from indexers.rebuild.lease import Lease, alone
from indexers.release.gate import forget_figures, known_figures
from indexers.release.history import (
    finish_switch,
    kept_histories,
    named_last,
    previous,
    read_history,
)
from indexers.workspace import Workspace

_ID = re.compile(rb"\b" + ID.pattern.encode() + rb"\b")


def listing(workspace: Workspace) -> list[dict[str, Any]]:
    """One row a snapshot, oldest first.

    `state` is serving, standby (pushed and whole), half-written, stored (in the store alone),
    foreign (in the backend alone), or damaged: then `damage` says what is wrong with its files, and
    `serving` whether it serves nevertheless. `f1` is the gate's figure of the snapshot with what
    serves on the other side, where it was measured.
    """
    backend = workspace.backend
    pushed, serving = {entry.snapshot: entry for entry in backend.list()}, backend.serving()
    damaged = damaged_snapshots(workspace.store)
    rows = [_damaged(id_, why, pushed.pop(id_, None)) for id_, why in damaged.items()]
    for manifest in (one for one in list_snapshots(workspace.store) if one.id not in damaged):
        f1 = _f1(workspace, manifest, serving)
        rows.append(_row(manifest, pushed.pop(manifest.id, None)) | {"f1": f1})
    # What another store pushed to the same cluster: it is there, so it is shown.
    return [*rows, *(_foreign(entry) for entry in pushed.values())]


def _damaged(id_: str, why: str, entry: Listed | None) -> dict[str, Any]:
    """A snapshot whose files can't be trusted: what the backend knows of it, and what is wrong."""
    known = entry or Listed(id_, side_of(id_), 0, None, False, False)
    entities = entry.documents if entry else None
    return {
        **_foreign(known),
        "state": "damaged",
        "entities": entities,
        "pushed": known.complete,
        "damage": why,
    }


def _row(manifest: Manifest, entry: Listed | None) -> dict[str, Any]:
    return {
        "snapshot": manifest.id,
        "side": manifest.side,
        "state": _state(entry),
        "entities": manifest.entities,
        "keywords": manifest.keywords,
        "generator": str(manifest.generator.get("kind", "")),
        "parent": manifest.parent,
        "created": manifest.created,
        "pushed": entry is not None and entry.complete,
        "serving": entry is not None and entry.serving,
        "bytes": entry.bytes if entry else None,
    }


def _foreign(entry: Listed) -> dict[str, Any]:
    return {
        "snapshot": entry.snapshot,
        "side": entry.side,
        "state": "serving" if entry.serving else "foreign",
        "entities": entry.documents,
        "keywords": None,
        "generator": "",
        "parent": None,
        "created": "",
        "pushed": entry.complete,
        "serving": entry.serving,
        "bytes": entry.bytes,
        "f1": None,
    }


def _state(entry: Listed | None) -> str:
    if entry is None:
        return "stored"
    if entry.serving:
        return "serving"
    return "standby" if entry.complete else "half-written"


def _f1(
    workspace: Workspace, manifest: Manifest, serving: Mapping[Side, str | None]
) -> float | None:
    other = serving["query" if manifest.side == "item" else "item"]
    if other is None:
        return None
    pair = (manifest.id, other) if manifest.side == "item" else (other, manifest.id)
    figures = known_figures(workspace.store, *pair)
    return figures.f1 if figures else None


@dataclass(frozen=True)
class Pruned:
    """What was removed, or would be.

    Attributes:
        damaged: snapshots that can't be opened, with what is wrong; they count as older than all
            others.
        from_backend: snapshots whose index, or saved mirror, goes.
        from_store: snapshots whose files go.
        in_use: older ones that stay because something names them, with what.
        drafts: indexes that pushes that died have left half made.
    """

    from_backend: list[str]
    from_store: list[str]
    in_use: dict[str, str]
    drafts: list[str]
    damaged: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "from_backend": self.from_backend,
            "from_store": self.from_store,
            "in_use": self.in_use,
            "drafts": self.drafts,
            "damaged": self.damaged,
        }


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
        used |= dict.fromkeys(named_last(store, name), f"what serves by {name}")
    serving = backend.serving()
    with contextlib.suppress(SnapshotError):  # Nothing served before.
        used |= dict.fromkeys(
            previous(store, backend.catalogue, serving).changed.values(), "a rollback"
        )
    return used | {id_: "what serves" for id_ in serving.values() if id_}


def prune(
    store: Store,
    backend: Backend,
    keep: int,
    *,
    files: bool,
    dry_run: bool,
    say: Say = lambda _: None,
) -> Pruned:
    """Remove all but the newest `keep` snapshots of each side, and but what is in use.

    Nobody switches meanwhile: what is found to be idle stays so until it is gone. What another
    store pushed to the same cluster is left alone.

    A damaged snapshot counts as older than every whole one: it goes too, unless it is in use.

    Args:
        files: out of the store too: keyword sets, manifests and saved mirrors.
        dry_run: only say what would go.
        say: says who is waited for.

    Raises:
        StorageError: a history is damaged; nothing was removed.
        LockedError: somebody else switches and does not come to an end.
        ServiceError: the backend is away; the same command goes on.
    """
    if dry_run:
        return _found(store, backend, keep, files=files, dry_run=True)
    # Files are of all catalogues of the store, indexes of this one. Everybody takes several leases
    # in this order.
    catalogues = sorted({backend.catalogue, *(kept_histories(store) if files else ())})
    with ExitStack() as stack:
        leases = [stack.enter_context(alone(store, name, "prune", say)) for name in catalogues]
        for name in catalogues:
            read_history(store, name)  # A damaged one is no reason to remove what it named.
        finish_switch(store, backend.catalogue, backend.serving())
        pruned = _found(store, backend, keep, files=files, dry_run=False)
        _remove_all(store, backend, pruned, leases)
    return pruned


def _found(store: Store, backend: Backend, keep: int, *, files: bool, dry_run: bool) -> Pruned:
    """What goes and what stays; left-behind drafts, which nobody needs, go at once unless
    `dry_run`.
    """
    used = named_by(store, backend)
    pushed = {entry.snapshot for entry in backend.list()}
    damaged = damaged_snapshots(store)
    old = [id_ for side in SIDES for id_ in _beyond(_oldest_first(store, side, damaged), keep)]
    going = [id_ for id_ in old if id_ not in used]
    return Pruned(
        [id_ for id_ in going if id_ in pushed],
        going if files else [],
        {id_: used[id_] for id_ in old if id_ in used},
        list(backend.sweep(dry_run=dry_run)),
        damaged,
    )


def _remove_all(store: Store, backend: Backend, pruned: Pruned, leases: Sequence[Lease]) -> None:
    for remove, ids in (
        (backend.delete, pruned.from_backend),
        (partial(_remove, store), pruned.from_store),
    ):
        for id_ in ids:
            for lease in leases:
                lease.check()
            remove(id_)


def _oldest_first(store: Store, side: Side, damaged: Mapping[str, str]) -> list[str]:
    """The ids of a side."""
    broken = [id_ for id_ in damaged if side_of(id_) == side]
    return [*broken, *(m.id for m in list_snapshots(store, side) if m.id not in damaged)]


def _beyond(oldest_first: list[str], keep: int) -> Iterable[str]:
    return oldest_first[: max(0, len(oldest_first) - keep)]


def _remove(store: Store, id_: str) -> None:
    # Without its manifest a folder is no snapshot: a death in between leaves none that is broken.
    store.remove(f"snapshots/{id_}/manifest.json")
    store.remove(f"snapshots/{id_}")
    store.remove(mirror_folder(id_))
    forget_figures(store, id_)
