"""cogr-index: from entities to a published index. The commands that change what the backend has:
rebuild, update, publish, rollback, verify, prune; the others are in `snapshots`.

Options and output only; the work is in the packages beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from cogr.errors import CheckFailedError, UserError
from indexers.cli import console, snapshots
from indexers.cli.console import Call, common_options
from indexers.telemetry.terminal import progress_bar

if TYPE_CHECKING:
    from indexers.release.external import ForeignIndex
    from indexers.workspace import Workspace

app = console.program(
    "cogr-index",
    "Generate keywords for a catalogue, store them as snapshots, publish and search them.",
)


@app.command("rebuild")
@common_options()
def _rebuild(
    side: console.SideOption,
    call: Call,
    generator: console.GeneratorOption = None,
    limit: Annotated[
        int | None,
        Option(min=1, help="Only the first N items or queries; the snapshot is never pushed."),
    ] = None,
    push: console.PushOption = True,
    publish: console.PublishOption = True,
    workers: console.WorkersOption = None,
    dry_run: console.DryRunOption = False,
) -> None:
    """Generate keywords for all items or all queries, store them as a snapshot, push, verify and
    publish it.

    After an interruption run it again: it generates only what is missing.
    """
    from indexers.rebuild.run import RebuildRequest, RebuildRun, plan_rebuild

    workspace = call.workspace
    request = RebuildRequest(side, generator, limit, push, publish, workers)
    if dry_run:
        planned = plan_rebuild(workspace, request)
        call.show("This would be done", planned, told=_told(planned))
        return
    outcome = RebuildRun(workspace, request, progress_bar, console.note).carry_out()
    payload = outcome.as_dict()
    call.show("Rebuilt", payload, told=_told(payload))


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    # Figures of prompts and completions only if there were any.
    told = {**values, "generator": f"{values['generator'].get('kind')} ({values['why']})"}
    hidden = {"why", "prompted"}
    if not values["prompted"]:
        hidden |= {"cut_prompts", "truncated"}
    return {name: value for name, value in told.items() if name not in hidden}


CHANGES = 'File of changes, one JSON object a line: a record, or {"id": ..., "deleted": true}.'
LOG = "Query log: its new frequent queries get keywords. Repeatable; .gz is fine."
SAVE = "Add the log's frequent queries to this file of queries, if it lacks them."
SINCE = "Records updated since then, by the data set's own dates, such as 2026-01-31."
COUNT = "Fewest clients that asked a query; fewest searches in a log without clients."


@app.command("update")
@common_options(files=True)
def _update(
    side: Annotated[
        Literal["query", "item", "both"],
        Option(help="Items, queries; or both: items, and known queries that gain by them."),
    ],
    call: Call,
    changed: Annotated[Path | None, Option(help=CHANGES)] = None,
    since: Annotated[datetime | None, console.time_option(SINCE)] = None,
    log: Annotated[list[Path] | None, Option("--from-log", help=LOG)] = None,
    min_count: Annotated[int, Option(min=1, help=COUNT)] = 10,
    save: Annotated[Path | None, Option(help=SAVE)] = None,
    push: console.PushOption = True,
    publish: console.PublishOption = True,
    workers: console.WorkersOption = None,
) -> None:
    """Generate keywords for changed items or queries, copy the others, and publish the new
    snapshot.

    Only the differences are written to the cluster. `statistical` keeps the fit of the snapshot
    that it starts from.
    """
    from indexers.rebuild.update import UpdateRequest, update_both, update_side

    request = UpdateRequest(
        side="item" if side == "both" else side,
        changed=changed,
        since=since,
        log=log or None,
        min_count=min_count,
        save=save,
        push=push,
        publish=publish,
        workers=workers,
    )
    if side == "both":
        both = update_both(call.workspace, request, progress_bar, console.note)
        outcomes = {name: one.as_dict() for name, one in zip(("item", "query"), both, strict=True)}
        call.show("Updated", outcomes, told={name: _told(one) for name, one in outcomes.items()})
        return
    payload = update_side(call.workspace, request, progress_bar, console.note).as_dict()
    call.show("Updated", payload, told=_told(payload))


IntoOption = Annotated[
    str | None,
    Option(
        metavar="INDEX",
        help="An index of your own (or its alias), in place of serving.into.index.",
    ),
]


@app.command("publish")
@common_options()
def _publish(
    call: Call,
    snapshots: Annotated[
        list[str] | None,
        Argument(help="One snapshot, or a pair; with publish.rules or serving.into, what serves."),
    ] = None,
    *,
    gate: Annotated[
        bool,
        Option(
            help="Refuse snapshots with too many failures, or worse than what serves (publish.*)."
        ),
    ] = True,
    switch: Annotated[
        bool, Option(help="Let them serve; --no-switch only pushes them beside what serves.")
    ] = True,
    into: IntoOption = None,
) -> None:
    """Publish snapshots, all of them by one atomic switch.

    What is not in the backend yet is written there and verified first. Items go to a field of the
    index of serving.into, where one is set, and searches use it together with the query snapshot.
    Without a snapshot, --into gives what serves to another index.
    """
    from indexers.release import release

    workspace, ids = _workspace(call, into), snapshots or []
    if into and call.workspace.settings.serving.into.index not in ("", into):
        # The next index of the team, which nothing names yet, gets what serves.
        ids = ids or [id_ for id_ in call.workspace.backend.serving().values() if id_]
    if index := _own_index(workspace):
        if not switch:
            raise UserError("--no-switch is for CoGR's own indexes; leave it out.")
        merged = index.publish(ids, console.note, gate=gate)
        call.show(f"Serving in {index.target.name}", merged.as_dict())
        return
    released = release(workspace, ids, switch=switch, gate=gate, say=console.note)
    if switch:
        call.emit(released.as_dict(), released.table("Serving now").show)
    else:
        call.show("Pushed", {"indexes": dict(released.indexes)})


def _workspace(call: Call, into: str | None) -> Workspace:
    return call.workspace.into(into) if into else call.workspace


def _own_index(workspace: Workspace) -> ForeignIndex | None:
    from indexers.release.external import ForeignIndex

    return ForeignIndex(workspace) if workspace.settings.serving.into.index else None


@app.command("rollback")
@common_options()
def _rollback(
    call: Call,
    to: Annotated[
        list[str] | None,
        Option(help="Snapshot to go back to; by default the one that served before."),
    ] = None,
    into: IntoOption = None,
) -> None:
    """Publish what served before, by the same atomic switch.

    Each rollback goes one step further back.
    """
    from indexers.release import roll_back

    workspace = _workspace(call, into)
    if index := _own_index(workspace):
        merged = index.roll_back(to or [], console.note)
        call.show(f"Serving in {index.target.name}", merged.as_dict())
    else:
        released = roll_back(workspace, to or [], console.note)
        call.emit(released.as_dict(), released.table("Rolled back").show)


@app.command("verify")
@common_options()
def _verify(
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
) -> None:
    """Compare the backend with the snapshot: every document, the count, and live results bit for
    bit.

    In the index of serving.into, compare the keywords of every document. Also check that what
    serves is one pair, which was published together.
    """
    from indexers.serving import verify

    workspace = _workspace(call, into)
    verified, problems = verify(workspace, snapshot, progress_bar, every=not quick)
    if not verified and not problems:
        raise UserError(
            "Nothing serves yet, so there is nothing to verify: run cogr-index rebuild --side "
            "item, or name a snapshot."
        )
    told = {f"{id_}{': equal' if not problems else ''}": one for id_, one in verified.items()}
    call.show("", {"verified": verified, "problems": problems}, told=told)
    if problems:
        raise CheckFailedError(" ".join(problems))


@app.command("prune")
@common_options()
def _prune(
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
    from indexers.release.inventory import prune

    workspace, title = call.workspace, "Would be removed" if dry_run else "Removed"
    store, backend = workspace.store, workspace.backend
    pruned = prune(store, backend, keep, files=files, dry_run=dry_run, say=console.note)
    call.show(title, {"dry_run": dry_run, **asdict(pruned)})


for name, command in snapshots.COMMANDS.items():
    app.command(name)(command)
app.add_typer(snapshots.export_app, name="export")
app.add_typer(snapshots.import_app, name="import")


def main() -> None:
    console.run(app)
