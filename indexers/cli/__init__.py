"""cogr-index: from entities to a published index. `rebuild` and `update`; the other commands are in
`release` and `snapshots`.

Options and output only; the work is in the packages beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from indexers.cli import console, release, snapshots
from indexers.cli.console import Call, common_options, time_of
from indexers.telemetry.terminal import progress_bar

app = console.program(
    "cogr-index",
    "Generate keywords for a catalogue, store them as snapshots, publish and search them.",
)


@app.command()
@common_options()
def rebuild(
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
    from indexers.rebuild.run import RebuildRequest, plan_rebuild, rebuild_side

    workspace = call.workspace
    request = RebuildRequest(side, generator, limit, push, publish, workers)
    if dry_run:
        planned = plan_rebuild(workspace, request)
        call.show("This would be done", planned, told=_told(planned))
        return
    outcome = rebuild_side(workspace, request, progress_bar, console.note)
    payload = outcome.as_dict()
    call.show("Rebuilt", payload, told=_told(payload))


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    # Figures of prompts and completions only if there were any.
    told = {**values, "generator": f"{values['generator'].get('kind')} ({values['why']})"}
    hidden = {"why", "prompted"}
    if not values["prompted"]:
        hidden |= {"prompts", "cut_prompts", "truncated"}
    return {name: value for name, value in told.items() if name not in hidden}


ChangedOption = Annotated[
    Path | None,
    Option(
        help='File of changes, one JSON object a line: a record, or {"id": ..., "deleted": true}.'
    ),
]
LogOption = Annotated[
    list[Path] | None,
    Option(
        "--from-log",
        help="Query log: its new frequent queries get keywords. Repeatable; .gz is fine.",
    ),
]
SaveOption = Annotated[
    Path | None,
    Option(help="Add the log's frequent queries to this file of queries, if it lacks them."),
]


@app.command()
@common_options()
def update(
    side: Annotated[
        Literal["query", "item", "both"],
        Option(help="Items, queries; or both: items, and known queries that gain by them."),
    ],
    call: Call,
    changed: ChangedOption = None,
    since: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Records updated since then, by the data set's own dates, such as 2026-01-31.",
        ),
    ] = None,
    log: LogOption = None,
    min_count: Annotated[
        int,
        Option(
            min=1,
            help="Fewest clients that asked a query; fewest searches in a log without clients.",
        ),
    ] = 10,
    save: SaveOption = None,
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

    time = time_of(since) if since is not None else None
    request = UpdateRequest(
        side="item" if side == "both" else side,
        changed=changed,
        since=time,
        log=log or None,
        min_count=min_count,
        save=save,
        push=push,
        publish=publish,
        workers=workers,
    )
    if side == "both":
        both = update_both(call.workspace, request, progress_bar, console.note)
        found = {name: one.as_dict() for name, one in zip(("item", "query"), both, strict=True)}
        call.show("Updated", found, told={name: _told(one) for name, one in found.items()})
        return
    payload = update_side(call.workspace, request, progress_bar, console.note).as_dict()
    call.show("Updated", payload, told=_told(payload))


app.command()(snapshots.status)
app.command()(release.publish)
app.command()(release.rollback)
app.command()(release.verify)
app.command(name="list")(snapshots.list_)
app.command()(snapshots.search)
app.add_typer(snapshots.export_app, name="export")
app.add_typer(snapshots.import_app, name="import")
app.command()(snapshots.diff)
app.command()(release.prune)
app.command()(snapshots.inspect)


def main() -> None:
    """Entry point of cogr-index."""
    console.run(app)
