"""The commands on what the backend has and what serves: publish, rollback, verify, prune.

Options and output only; the work is in the packages beside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from cogr.errors import CheckFailedError, UserError
from indexers.cli import console
from indexers.cli.console import Call, common_options
from indexers.tables import Table, plain
from indexers.telemetry.terminal import progress_bar

if TYPE_CHECKING:
    from indexers.release import Released

IntoOption = Annotated[
    str | None,
    Option(
        metavar="INDEX",
        help="An index of your own (or its alias), such as the product index, instead of CoGR's.",
    ),
]
FieldOption = Annotated[
    str, Option(help="With --into: name of the keyword field, and prefix of those of snapshots.")
]
IdFieldOption = Annotated[
    str,
    Option(
        "--id-field",
        help="With --into: the documents' field that holds the item's id, such as sku.",
    ),
]


@common_options()
def publish(
    call: Call,
    snapshots: Annotated[
        list[str] | None,
        Argument(
            help="One snapshot, or a pair. With --into or publish.rules, what serves by default."
        ),
    ] = None,
    *,
    gate: Annotated[
        bool, Option(help="First check failures, and compare with what serves, by publish.*.")
    ] = True,
    switch: Annotated[
        bool, Option(help="Let them serve; otherwise only push them, beside what serves.")
    ] = True,
    into: IntoOption = None,
    field: FieldOption = "cogr_keywords",
    id_field: IdFieldOption = "_id",
) -> None:
    """Publish snapshots, all of them by one atomic switch.

    What is not in the backend yet is written there and verified first. With --into, write an item
    snapshot to a field of an index of your own, and let searches use it, together with its query
    snapshot if you name one.
    """
    from indexers.release import release
    from indexers.release.external import ForeignIndex

    workspace = call.workspace
    ids = snapshots or []
    if into and not switch:
        raise UserError("--no-switch and --into exclude each other; leave one of them out.")
    if not ids and not into and workspace.settings.publish.rules:
        ids = [id_ for id_ in workspace.backend.serving().values() if id_]
    if not (ids or into):
        raise UserError("Nothing is named to be published; name a snapshot (cogr-index list).")
    if into:
        index = ForeignIndex(workspace, into, field, id_field)
        merged = index.publish(ids, console.note, gate=gate)
        call.show(f"Serving in {into}", merged.as_dict())
        return
    released = release(workspace, ids, switch=switch, gate=gate, say=console.note)
    if switch:
        _show(call, "Serving now", released)
    else:
        call.show("Pushed", {"indexes": dict(released.indexes)})


@common_options()
def rollback(
    call: Call,
    to: Annotated[
        list[str] | None,
        Option(help="Snapshot to go back to; by default the one that served before."),
    ] = None,
    into: IntoOption = None,
    field: FieldOption = "cogr_keywords",
    id_field: IdFieldOption = "_id",
) -> None:
    """Publish what served before, by the same atomic switch.

    Each rollback goes one step further back.
    """
    from indexers.release import roll_back
    from indexers.release.external import ForeignIndex

    workspace = call.workspace
    ids = to or []
    if into:
        merged = ForeignIndex(workspace, into, field, id_field).roll_back(ids, console.note)
        call.show(f"Serving in {into}", merged.as_dict())
        return
    _show(call, "Rolled back", roll_back(workspace, ids, console.note))


def _show(call: Call, title: str, released: Released) -> None:
    values = {side: id_ or "nothing" for side, id_ in released.serving.items()}
    for side, before in released.before.items():
        same = before == released.serving[side]
        values[side] += " (as before)" if same else f" (before: {before or 'nothing'})"
    call.emit(released.as_dict(), Table.of(title, values).show)


@common_options()
def verify(
    snapshot: Annotated[
        str | None, Argument(help="Id of a snapshot; what serves by default.")
    ] = None,
    *,
    call: Call,
    quick: Annotated[
        bool,
        Option("--quick", help="Compare only a sample of the documents, as before publishing."),
    ] = False,
    into: IntoOption = None,
    field: FieldOption = "cogr_keywords",
    id_field: IdFieldOption = "_id",
) -> None:
    """Compare the backend with the snapshot: every document, the count, and live results bit for
    bit.

    With --into, compare the keywords of every document of an index of your own.
    """
    from cogr.records import SIDES

    workspace = call.workspace
    if into:
        _verify_into(call, into, field, id_field)
        return
    ids = [snapshot] if snapshot else []
    ids = ids or [id_ for side in SIDES if (id_ := workspace.backend.serving().get(side))]
    if not ids:
        raise UserError(
            "Nothing serves yet, so there is nothing to verify: run cogr-index rebuild, or name "
            "a snapshot."
        )
    found = {id_: _verified(call, id_, quick=quick) for id_ in ids}
    told = {f"{id_}: equal": of for id_, of in found.items()}
    call.show("", {"verified": found}, told=told)


def _verify_into(call: Call, into: str, field: str, id_field: str) -> None:
    from indexers.release.external import ForeignIndex

    found = ForeignIndex(call.workspace, into, field, id_field).verify()
    call.show(f"Keywords in {into}", found.as_dict())
    coverage = found.coverage
    if coverage.lacking or coverage.different:
        raise CheckFailedError(
            f"{coverage.spoken(found.index)}; run cogr-index publish --into {into}."
        )


def _verified(call: Call, id_: str, *, quick: bool) -> dict[str, Any]:
    from cogr.snapshots import open_snapshot
    from indexers.release import order

    workspace, opened = call.workspace, open_snapshot(call.workspace.store, id_)
    with progress_bar(f"documents of {id_}", opened.manifest.entities) as advance:
        backend, every = workspace.backend, not quick
        found = order.verify(backend, workspace.store, opened, every=every, advance=advance)
    return plain(found)


@common_options()
def prune(
    call: Call,
    keep: Annotated[
        int, Option(min=0, help="Snapshots of each side to keep, the newest ones.")
    ] = 3,
    files: Annotated[
        bool, Option("--files", help="Remove their files from the store too.")
    ] = False,
    dry_run: console.DryRunOption = False,
) -> None:
    """Remove old snapshots from the backend, but never those that serve or that a training run
    names.
    """
    from indexers.release.inventory import prune as remove

    workspace, title = call.workspace, "Would be removed" if dry_run else "Removed"
    store, backend = workspace.store, workspace.backend
    pruned = remove(store, backend, keep, files=files, dry_run=dry_run, say=console.note)
    call.show(title, {"dry_run": dry_run, **plain(pruned)})
