"""cogr-index: from entities to a published index.

Options and output only; the work is in the modules beside.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cogr.errors import UserError
from indexers.cli import console, upkeep
from indexers.cli import fleet as fleet_commands
from indexers.cli import release as serving
from indexers.cli.options import (
    Call,
    FormatName,
    GeneratorOption,
    SideName,
    SideOption,
    WorkersName,
    add_version,
    common_options,
)

app = typer.Typer(
    name="cogr-index",
    help="Write keywords for a catalogue, freeze them, publish them, search them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
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
    push: Annotated[
        bool, typer.Option("--push/--no-push", help="Write the snapshot to the backend.")
    ] = True,
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Let it serve once it is verified.")
    ] = True,
    workers: Annotated[
        WorkersName | None,
        typer.Option(
            "--workers",
            help="local: in this process; celery: on workers. Instead of rebuild.workers.",
        ),
    ] = None,
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
    from indexers.build.report import empty_sets
    from indexers.build.run import RebuildRequest, plan_rebuild, run_rebuild
    from indexers.cli import reports

    workspace = call.workspace
    named = generator.value if generator else None
    request = RebuildRequest(
        side.side, named, limit, push, publish, workers.value if workers else None
    )
    if dry_run:
        planned = plan_rebuild(workspace, request)
        call.emit(planned, lambda out: reports.planned(out, planned))
        return
    outcome = run_rebuild(workspace, request, reports.progress_bar, console.note)
    if show_empty:
        outcome = replace(outcome, empty=empty_sets(outcome.rebuilt.snapshot, most=None))
    call.emit(outcome.as_dict(), lambda out: reports.rebuilt(out, outcome, show_empty=show_empty))
    console.next_command(reports.after_rebuild(workspace, outcome))


app.command()(upkeep.update)
app.command()(fleet_commands.status)
app.command()(fleet_commands.cancel)


@app.command()
@common_options()
def push(
    snapshot: Annotated[str, typer.Argument(help="Id of a snapshot, or its beginning.")],
    call: Call,
) -> None:
    """Write a snapshot to the backend beside what serves, and verify it there."""
    from cogr.snapshots import open_snapshot
    from indexers.cli import reports
    from indexers.release.push import push_and_verify

    workspace = call.workspace
    opened = open_snapshot(workspace.store, workspace.known(snapshot))
    pushed, verified = push_and_verify(
        workspace.backend,
        workspace.store,
        opened,
        workspace.settings.rebuild.verify_queries,
        console.note,
    )
    payload = {"snapshot": opened.id, **reports.plain(pushed), "verified": reports.plain(verified)}
    call.emit(payload, lambda out: reports.facts(out, "Pushed", payload))
    console.next_command(reports.after_look(workspace, opened.id))


app.command()(serving.publish)
app.command()(serving.rollback)
app.command()(serving.verify)
app.command()(serving.roles)


@app.command(name="list")
@common_options()
def list_(call: Call) -> None:
    """Every snapshot: what serves, what stands by, what it holds, its size, its age, and its F1
    where it was measured.
    """
    from indexers.cli.listing import listed, listing

    rows = listing(call.workspace)
    call.emit({"snapshots": rows}, lambda out: listed(out, rows))


@app.command()
@common_options()
def search(
    text: Annotated[str, typer.Argument(help="What a shopper types.")],
    call: Call,
    size: Annotated[int, typer.Option("--size", min=1, max=10_000, help="Hits to show.")] = 10,
    keywords: Annotated[
        str | None,
        typer.Option("--keywords", help="Use these, comma-separated, instead of generated ones."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Each keyword's part of each score.")
    ] = False,
) -> None:
    """Search what serves: the query's keywords, the matched items, and which keyword matched."""
    from indexers.cli import reports
    from indexers.exchange.search import search as run_search

    if not text.strip() and not keywords:
        raise UserError('The query is empty: give a text, such as cogr-index search "green sofa".')
    workspace = call.workspace
    answer = run_search(workspace, text, size=size, keywords=keywords)
    call.emit(answer.as_dict(), lambda out: reports.answer(out, answer, explain=explain))


@app.command()
@common_options()
def export(
    to: Annotated[Path, typer.Argument(help="File to write.")],
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            help="Id, or its beginning; by default what serves, or the newest if nothing does.",
        ),
    ] = None,
    side: SideOption = SideName.item,
    format_: Annotated[
        FormatName,
        typer.Option(
            "--format",
            help="How it is written; bulk is OpenSearch's, synonyms Solr's. See docs/export.md.",
        ),
    ] = FormatName.jsonl,
    *,
    call: Call,
) -> None:
    """Write a snapshot's keyword sets to a file for other systems."""
    from indexers.cli import reports
    from indexers.exchange.export import export as write

    workspace = call.workspace
    opened = workspace.snapshot(snapshot or workspace.backend.serving().get(side.side), side.side)
    written = write(opened, to, format_.value, prefix=workspace.settings.opensearch.prefix)
    payload = {
        "snapshot": opened.id,
        "file": str(to),
        "format": format_.value,
        **reports.plain(written),
    }
    call.emit(payload, lambda out: reports.facts(out, "Exported", payload))


app.command("import")(upkeep.import_)
app.command()(upkeep.diff)
app.command()(upkeep.prune)


@app.command()
@common_options(backend=False)
def inspect(call: Call) -> None:
    """What is in the data set, what is wrong with it, and whether it suits CoGR."""
    from cogr.datasets.inspection import inspect_dataset
    from indexers.cli import reports

    report = inspect_dataset(call.workspace.dataset)
    call.emit(report.as_dict(), lambda out: reports.inspected(out, report))
    console.next_command("cogr-index rebuild --side item")


def main() -> None:
    """Entry point of cogr-index."""
    console.run(app)


if __name__ == "__main__":
    main()
