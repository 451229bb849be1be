"""cogr-index: from entities to a published index. Options and output only; the work is in the modules beside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cogr.errors import SettingsError, UserError
from cogr.records import Side
from indexers import console
from indexers.fleet.commands import add_fleet_commands
from indexers.options import (
    BackendName,
    ConfigOption,
    JsonOption,
    SetOption,
    SideName,
    VerboseOption,
    WorkersName,
    set_verbosity,
)

if TYPE_CHECKING:
    from indexers.workspace import Workspace

app = typer.Typer(
    name="cogr-index",
    help="Write keywords for a catalogue, freeze them, publish them, search them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

add_fleet_commands(app)

SideOption = Annotated[SideName, typer.Option("--side", help="Which side: items or queries.")]
BackendOption = Annotated[BackendName | None, typer.Option("--backend", help="Instead of the configuration's backend.")]

WorkersOption = Annotated[
    WorkersName | None,
    typer.Option("--workers", help="local: in this process; celery: on workers. Instead of rebuild.workers."),
]


@app.command()
def rebuild(
    side: SideOption,
    config: ConfigOption = None,
    set_: SetOption = None,
    generator: Annotated[
        str | None,
        typer.Option("--generator", help="auto, statistical, extractive, vllm, transformers, openai or scripted."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first N entities; never pushed.")
    ] = None,
    push: Annotated[bool, typer.Option("--push/--no-push", help="Write the snapshot to the backend.")] = True,
    publish: Annotated[bool, typer.Option("--publish/--no-publish", help="Let it serve once it is verified.")] = True,
    workers: WorkersOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would do; generate and write nothing.")
    ] = False,
    backend: BackendOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Generate keywords for a whole side, freeze them as a snapshot, push, verify and publish it.

    Run it again after any interruption: it goes on with what is missing.
    """
    from indexers import reports
    from indexers.rebuilding import Wishes, plan_rebuild, run_rebuild
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    _known_generator(generator)
    workspace = Workspace.open(config, set_, backend)
    wishes = Wishes(_side(side), generator, limit, push, publish, workers.value if workers else None)
    if dry_run:
        planned = plan_rebuild(workspace, wishes)
        console.emit(json_, planned, lambda out: reports.facts(out, "This would be done", planned))
        return
    outcome = run_rebuild(workspace, wishes, reports.progress_bar, console.note)
    console.emit(json_, outcome.as_dict(), lambda out: reports.rebuilt(out, outcome))
    console.next_command(reports.after_rebuild(workspace, outcome))


@app.command()
def push(
    snapshot: Annotated[str, typer.Argument(help="Id of a snapshot.")],
    config: ConfigOption = None,
    set_: SetOption = None,
    backend: BackendOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write a snapshot to the backend beside what serves, and verify it there."""
    from cogr.snapshots import open_snapshot
    from indexers import reports
    from indexers.publishing import push_and_verify
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    workspace = Workspace.open(config, set_, backend)
    opened = open_snapshot(workspace.store, snapshot)
    pushed, verified = push_and_verify(
        workspace.backend, workspace.store, opened, workspace.settings.rebuild.verify_queries, console.note
    )
    payload = {"snapshot": snapshot, **reports.plain(pushed), "verified": reports.plain(verified)}
    console.emit(json_, payload, lambda out: reports.facts(out, "Pushed", payload))
    console.next_command(f"cogr-index publish {snapshot}")


@app.command()
def publish(
    snapshots: Annotated[list[str], typer.Argument(help="One snapshot, or an item and a query snapshot as a pair.")],
    config: ConfigOption = None,
    set_: SetOption = None,
    backend: BackendOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Let pushed snapshots serve, all of them by one atomic switch."""
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    _switch(Workspace.open(config, set_, backend), snapshots, json_)


@app.command()
def rollback(
    config: ConfigOption = None,
    set_: SetOption = None,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", help="Snapshot to go back to; what served before the last switch by default."),
    ] = None,
    backend: BackendOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Let what served before serve again, by the same atomic switch."""
    from indexers.history import previous
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    workspace = Workspace.open(config, set_, backend)
    ids = to or list(previous(workspace.store, workspace.backend.name, workspace.backend.serving()).values())
    _switch(workspace, ids, json_)


def _switch(workspace: Workspace, ids: list[str], json_: bool) -> None:
    from indexers import reports
    from indexers.history import remember
    from indexers.publishing import publish as switch

    before = switch(workspace.backend, workspace.store, ids).before
    serving = workspace.backend.serving()
    remember(workspace.store, workspace.backend.name, serving)
    payload = {"serving": serving, "before": before}
    console.emit(json_, payload, lambda out: reports.facts(out, "Serving now", payload["serving"]))
    console.next_command('cogr-index search "some query"')


@app.command()
def verify(
    snapshot: Annotated[str | None, typer.Argument(help="Id of a snapshot; what serves by default.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    queries: Annotated[int, typer.Option("--queries", min=0, help="Live queries to compare with the mirror.")] = 100,
    backend: BackendOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Compare what is in the backend with the snapshot: count, sampled documents, live results bit for bit."""
    from cogr.records import SIDES
    from cogr.snapshots import open_snapshot
    from indexers import reports
    from indexers.publishing import probes
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    workspace = Workspace.open(config, set_, backend)
    ids = [snapshot] if snapshot else [id_ for side in SIDES if (id_ := workspace.backend.serving().get(side))]
    if not ids:
        raise UserError(
            "Nothing serves yet, so there is nothing to verify: run cogr-index rebuild, or name a snapshot."
        )
    found = {}
    for id_ in ids:
        opened = open_snapshot(workspace.store, id_)
        found[id_] = reports.plain(
            workspace.backend.verify(opened, probes(workspace.backend, workspace.store, opened, queries))
        )
    console.emit(json_, {"verified": found}, lambda out: reports.verified(out, found))


@app.command(name="list")
def list_(
    config: ConfigOption = None,
    set_: SetOption = None,
    backend: BackendOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Every snapshot: what it holds, whether it is pushed, which one serves."""
    from indexers import reports
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    rows = reports.listing(Workspace.open(config, set_, backend))
    console.emit(json_, {"snapshots": rows}, lambda out: reports.listed(out, rows))


@app.command()
def search(
    text: Annotated[str, typer.Argument(help="What a shopper types.")],
    config: ConfigOption = None,
    set_: SetOption = None,
    size: Annotated[int, typer.Option("--size", min=1, max=10_000, help="Hits to show.")] = 10,
    keywords: Annotated[
        str | None, typer.Option("--keywords", help="Use these, comma-separated, instead of generated ones.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Each keyword's part of each score.")] = False,
    backend: BackendOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Search what serves: the query's keywords, the matched items, and which keyword matched."""
    from indexers import reports
    from indexers.searching import search as run_search
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    if not text.strip() and not keywords:
        raise UserError('The query is empty: give a text, such as cogr-index search "green sofa".')
    workspace = Workspace.open(config, set_, backend)
    answer = run_search(workspace, text, size=size, keywords=keywords)
    console.emit(json_, answer.as_dict(), lambda out: reports.answer(out, answer, explain=explain))


@app.command()
def export(
    to: Annotated[Path, typer.Argument(help="File to write.")],
    snapshot: Annotated[str | None, typer.Option("--snapshot", help="Id; the newest of the side by default.")] = None,
    side: SideOption = SideName.item,
    format_: Annotated[
        str, typer.Option("--format", help="jsonl, parquet or bulk (an OpenSearch _bulk file).")
    ] = "jsonl",
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write a snapshot's keyword sets to a file for other systems."""
    from indexers import reports
    from indexers.exporting import export as write
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    workspace = Workspace.open(config, set_)
    opened = workspace.snapshot(snapshot, _side(side))
    count = write(opened, to, format_, prefix=workspace.settings.opensearch.prefix)
    payload = {"snapshot": opened.id, "file": str(to), "format": format_, "entities": count}
    console.emit(json_, payload, lambda out: reports.facts(out, "Exported", payload))


@app.command()
def inspect(
    config: ConfigOption = None, set_: SetOption = None, json_: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """What is in the data set, what is wrong with it, and whether it suits CoGR."""
    from cogr.inspect import inspect_dataset
    from indexers import reports
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    report = inspect_dataset(Workspace.open(config, set_).dataset)
    console.emit(json_, report.as_dict(), lambda out: reports.inspected(out, report))
    console.next_command("cogr-index rebuild --side item")


def _side(name: SideName) -> Side:
    return "item" if name is SideName.item else "query"


def _known_generator(name: str | None) -> None:
    from cogr.settings import GeneratorName

    known = GeneratorName.__args__  # type: ignore[attr-defined]
    if name is not None and name not in known:
        raise SettingsError(f"--generator {name!r} is unknown; it is one of {', '.join(known)}.")


def main() -> None:
    """Entry point of cogr-index."""
    console.run(app)


if __name__ == "__main__":
    main()
