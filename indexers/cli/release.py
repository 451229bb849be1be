"""The commands on what the backend has and what serves: push, publish, rollback, verify, prune,
roles.

Options and output only; the work is in the packages beside.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from cogr.errors import CheckFailedError, UserError
from indexers.cli import console
from indexers.cli.console import Call, common_options
from indexers.tables import plain
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
FieldOption = Annotated[str, Option(help="With --into: prefix of the names of the keyword fields.")]


@common_options()
def push(
    snapshot: Annotated[str, Argument(help="Id of a snapshot, or its beginning.")], call: Call
) -> None:
    """Write a snapshot to the backend beside what serves, and verify it there."""
    from cogr.snapshots import open_snapshot
    from indexers.cli import reports
    from indexers.release.verify import push_and_verify

    workspace = call.workspace
    opened = open_snapshot(workspace.store, workspace.known(snapshot))
    pushed, verified = push_and_verify(workspace.backend, workspace.store, opened, say=console.note)
    payload = {"snapshot": opened.id, **plain(pushed), "verified": plain(verified)}
    call.show("Pushed", payload)
    console.next_command(reports.after_look(workspace, opened.id))


@common_options()
def publish(
    snapshots: Annotated[
        list[str] | None,
        Argument(
            help="One snapshot, or a pair; the beginning of an id is enough. With publish.rules "
            "what serves by default, so that changed rules go live."
        ),
    ] = None,
    *,
    call: Call,
    gate: Annotated[
        bool, Option(help="First check failures, and compare with what serves, by publish.*.")
    ] = True,
    into: IntoOption = None,
    field: FieldOption = "cogr_keywords",
) -> None:
    """Publish pushed snapshots, all of them by one atomic switch.

    With --into, write an item snapshot to a field of an index of your own, and switch its search
    template to that field.
    """
    from indexers.release import release

    workspace = call.workspace
    ids = [workspace.known(one) for one in snapshots or []]
    if not ids and workspace.settings.publish.rules:
        ids = [id_ for id_ in workspace.backend.serving().values() if id_ and not into]
    if not ids:
        raise UserError("Nothing is named to be published; name a snapshot (cogr-index list).")
    if into:
        _publish_into(call, ids, into, field, gate=gate)
        return
    _show(call, "Serving now", release(workspace, ids, gate=gate, say=console.note))


@common_options()
def rollback(
    call: Call,
    to: Annotated[
        list[str] | None,
        Option(help="Snapshot to go back to; by default the one that served before."),
    ] = None,
    into: IntoOption = None,
    field: FieldOption = "cogr_keywords",
) -> None:
    """Publish what served before, by the same atomic switch.

    Each rollback goes one step further back.
    """
    from indexers.release import roll_back

    workspace = call.workspace
    ids = [workspace.known(one) for one in to or []]
    if into:
        _publish_into(call, ids, into, field, back=True)
        return
    _show(call, "Rolled back", roll_back(workspace, ids, console.note))


def _publish_into(
    call: Call, ids: list[str], into: str, field: str, *, gate: bool = False, back: bool = False
) -> None:
    """Publish one item snapshot into an index that CoGR does not own, or roll back there."""
    from indexers.backends import side_of
    from indexers.release.external import ForeignIndex

    index = ForeignIndex(call.workspace, into, field)
    if len(ids) > 1 or any(side_of(id_) != "item" for id_ in ids):
        raise UserError(
            "--into takes one item snapshot; queries are published as usual, by a call of their "
            "own."
        )
    if back:
        merged = index.roll_back(ids, console.note)
    else:
        merged = index.publish(ids[0], console.note, gate=gate)
    call.show(f"Serving in {into}", merged.as_dict())
    console.next_command(f"cogr-index prune --into {into} --field {field} --dry-run")


def _show(call: Call, title: str, released: Released) -> None:
    """Print what serves now; and the day of item fields, such as prices, which are as old as their
    snapshot.
    """
    from cogr.snapshots import read_manifest
    from indexers.cli import reports

    for id_ in filter(None, (released.serving[side] for side in released.before)):
        manifest = read_manifest(call.workspace.store, id_)
        if manifest.fields:
            names = ", ".join(manifest.fields)
            console.note(
                f"{id_} has {names} as of {manifest.created}; cogr-index rebuild brings the data's "
                "own."
            )
    call.emit(released.as_dict(), reports.released(title, released).show)
    console.next_command(reports.after_switch(released.serving))


@common_options()
def verify(
    snapshot: Annotated[
        str | None, Argument(help="Id of a snapshot, or its beginning; what serves by default.")
    ] = None,
    *,
    call: Call,
    quick: Annotated[
        bool,
        Option("--quick", help="Compare only a sample of the documents, as before publishing."),
    ] = False,
    queries: Annotated[int, Option(min=0, help="Live queries to compare with the mirror.")] = 100,
    show: Annotated[int, Option(min=0, max=100, help="Differences to show; all are counted.")] = 10,
) -> None:
    """Compare the backend with the snapshot: every document, the count, and live results bit for
    bit.

    After an interruption run it again: it continues.
    """
    from cogr.records import SIDES

    workspace = call.workspace
    ids = [workspace.known(snapshot)] if snapshot else []
    ids = ids or [id_ for side in SIDES if (id_ := workspace.backend.serving().get(side))]
    if not ids:
        raise UserError(
            "Nothing serves yet, so there is nothing to verify: run cogr-index rebuild, or name "
            "a snapshot."
        )
    found = {id_: _verified(call, id_, quick=quick, queries=queries, show=show) for id_ in ids}
    told = {f"{id_}: {'not ' * bool(of.get('differences'))}equal": of for id_, of in found.items()}
    call.show("", {"verified": found}, told=told)
    differing = {id_: count for id_, of in found.items() if (count := of.get("differences"))}
    if differing:
        counts = " and ".join(f"{count:,} entities of {id_}" for id_, count in differing.items())
        raise CheckFailedError(
            f"{counts} are not in the backend as the snapshot says; nothing switches to it any "
            "more: delete its index and push it again."
        )


def _verified(call: Call, id_: str, *, quick: bool, queries: int, show: int) -> dict[str, Any]:
    """One snapshot's verification, as it is emitted."""
    from cogr.snapshots import open_snapshot
    from indexers.release.verify import compare_all, probes

    workspace, backend = call.workspace, call.workspace.backend
    opened = open_snapshot(workspace.store, id_)
    compared: dict[str, Any] = {}
    if not quick:
        with progress_bar(f"documents of {id_}", opened.manifest.entities) as advance:
            whole = compare_all(backend, workspace.store, opened, advance)
        compared = whole.as_dict(show)
        if whole.differences:
            backend.distrust(id_)
            return compared
    asked = probes(backend, workspace.store, opened, queries)
    return compared | plain(backend.verify(opened, asked))


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
    into: IntoOption = None,
    field: FieldOption = "cogr_keywords",
    to: Annotated[
        str | None,
        Option(metavar="INDEX", help="With --into: the new index without the old fields."),
    ] = None,
) -> None:
    """Remove old snapshots from the backend, but never those that serve or that a training run
    names.

    With --into, copy an index of your own without its old keyword fields to a new one, and move its
    alias there.
    """
    from indexers.release.external import ForeignIndex
    from indexers.release.inventory import prune as remove

    workspace, title = call.workspace, "Would be removed" if dry_run else "Removed"
    if into:
        index = ForeignIndex(workspace, into, field)
        dropped = index.prune(keep, None if dry_run else to, console.note, dry_run=dry_run)
        left = to if dropped and to and not dry_run else index.target.index
        call.show(title, {"dry_run": dry_run, "fields": dropped, "index": left})
        return
    store, backend = workspace.store, workspace.backend
    pruned = remove(store, backend, keep, files=files, dry_run=dry_run, say=console.note)
    call.show(title, {"dry_run": dry_run, **plain(pruned)})
    console.next_command("cogr-index list")


@common_options(backend=False)
def roles(call: Call, into: IntoOption = None) -> None:
    """Print least-privilege roles for the configured prefix, as the security plugin's REST API
    takes them.

    With --into, also the role that writes keywords into that index.
    """
    from indexers.backends.opensearch.mapping import ROLES, role

    prefix = call.workspace.settings.opensearch.prefix
    wanted = [name for name in ROLES if into or name != "merger"]
    bodies = {f"{prefix}-{name}": role(name, prefix, into or "") for name in wanted}
    requests = [
        f"PUT _plugins/_security/api/roles/{name}\n{json.dumps(body, indent=1)}"
        for name, body in bodies.items()
    ]
    call.emit({"roles": bodies}, lambda out: out.print("\n\n".join(requests), soft_wrap=True))
