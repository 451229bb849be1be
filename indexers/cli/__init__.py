"""cogr-index: from entities to a published index. `rebuild` and `update`; the other commands are in
`release`, `snapshots`, `exchange` and `fleet`.

Options and output only; the work is in the packages beside.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cogr.records import LogFormat
from indexers.cli import console, exchange, fleet, release, snapshots
from indexers.cli.console import (
    Call,
    ColumnOption,
    CountColumnOption,
    FormatOption,
    GeneratorOption,
    ParameterOption,
    PublishOption,
    PushOption,
    SideOption,
    WorkersOption,
    add_version,
    common_options,
    time_of,
)

app = typer.Typer(
    name="cogr-index",
    help="Write keywords for a catalogue, freeze them, publish them, search them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
add_version(app, "cogr-index")


@app.command()
@common_options()
def rebuild(
    side: SideOption,
    call: Call,
    generator: GeneratorOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first N entities; never pushed.")
    ] = None,
    push: PushOption = True,
    publish: PublishOption = True,
    workers: WorkersOption = None,
    show_empty: Annotated[
        bool,
        typer.Option(
            "--show-empty", help="Name every entity that got no keywords, not only the first ones."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would do; generate and write nothing.")
    ] = False,
) -> None:
    """Generate keywords for a whole side, freeze them as a snapshot, push, verify and publish it.

    Run it again after any interruption: it goes on with what is missing.
    """
    from indexers.cli import reports
    from indexers.rebuild.report import empty_sets
    from indexers.rebuild.run import RebuildRequest, plan_rebuild, run_rebuild

    workspace = call.workspace
    request = RebuildRequest(side, generator, limit, push, publish, workers)
    if dry_run:
        planned = plan_rebuild(workspace, request)
        call.emit(planned, lambda out: reports.planned(out, planned))
        return
    outcome = run_rebuild(workspace, request, reports.progress_bar, console.note)
    if show_empty:
        outcome = replace(outcome, empty=empty_sets(outcome.rebuilt.snapshot, most=None))
    call.emit(outcome.as_dict(), lambda out: reports.rebuilt(out, outcome, show_empty=show_empty))
    console.next_command(reports.after_rebuild(workspace, outcome))


ChangedOption = Annotated[
    Path | None,
    typer.Option(
        "--changed",
        help='Changes, one JSON object a line: a record, or {"id": ..., "deleted": true}.',
    ),
]
LogOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--from-log",
        help=(
            "Query log, with --side query: new frequent queries get keywords. Repeatable; "
            ".gz is fine."
        ),
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option(
        "--save",
        help="Add the log's frequent queries that the data set lacks to its file of queries.",
    ),
]


@app.command()
@common_options()
def update(
    side: SideOption,
    call: Call,
    changed: ChangedOption = None,
    ids: Annotated[
        Path | None,
        typer.Option("--ids", help="Ids, one a line; the data set says what has become of them."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="What the data set says was updated since then, such as 2026-01-31.",
        ),
    ] = None,
    log: LogOption = None,
    format_: FormatOption = LogFormat.auto,
    column: ColumnOption = None,
    count_column: CountColumnOption = None,
    parameter: ParameterOption = "q",
    min_count: Annotated[
        int,
        typer.Option(
            "--min-count", min=1, help="How often a query of the log must have been asked."
        ),
    ] = 10,
    save: SaveOption = None,
    parent: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="SNAPSHOT", help="Start from this one; what serves by default."
        ),
    ] = None,
    push: PushOption = True,
    publish: PublishOption = True,
    workers: WorkersOption = None,
) -> None:
    """Generate keywords for what changed, carry the rest over, and publish the new snapshot.

    The result equals a rebuild of the changed data. Only what differs is written to the cluster.
    """
    from cogr.datasets.query_logs import LogOptions
    from indexers.cli import reports
    from indexers.rebuild.update import UpdateRequest, run_update

    time = time_of(since) if since is not None else None
    request = UpdateRequest(
        side=side,
        changed=changed,
        ids=ids,
        since=time,
        log=log or None,
        log_options=LogOptions(format_, column, count_column, parameter),
        min_count=min_count,
        save=save,
        parent=parent,
        push=push,
        publish=publish,
        workers=workers,
    )
    updated = run_update(call.workspace, request, reports.progress_bar, console.note)
    payload = updated.as_dict()
    call.emit(payload, lambda out: reports.updated(out, payload))
    if command := reports.after_update(updated, call.workspace.backend.serving()):
        console.next_command(command)


app.command()(fleet.status)
app.command()(fleet.cancel)
app.command()(release.push)
app.command()(release.publish)
app.command()(release.rollback)
app.command()(release.verify)
app.command()(release.roles)
app.command(name="list")(snapshots.list_)
app.command()(snapshots.search)
app.add_typer(exchange.export_app, name="export")
app.add_typer(exchange.import_app, name="import")
app.command()(exchange.score)
app.command()(snapshots.diff)
app.command()(release.prune)
app.command()(snapshots.inspect)


def main() -> None:
    """Entry point of cogr-index."""
    console.run(app)


if __name__ == "__main__":
    main()
