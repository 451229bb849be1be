"""The commands that keep an index up to date and tidy: options and output only, the work is in the
modules beside.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from cogr.log_formats import LogFormat
from indexers.cli import console
from indexers.cli.options import (
    Call,
    ColumnOption,
    CountColumnOption,
    FormatOption,
    ParameterOption,
    SideName,
    SideOption,
    WorkersName,
    common_options,
)
from indexers.cli.release import FieldOption, IntoOption


@common_options()
def update(
    side: SideOption,
    call: Call,
    changed: Annotated[
        Path | None,
        typer.Option(
            "--changed",
            help='Changes, one JSON object a line: a record, or {"id": ..., "deleted": true}.',
        ),
    ] = None,
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
    log: Annotated[
        list[Path] | None,
        typer.Option(
            "--from-log",
            help=(
                "Query log, with --side query: new frequent queries get keywords. Repeatable; "
                ".gz is fine."
            ),
        ),
    ] = None,
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
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            help="Add the log's frequent queries that the data set lacks to its file of queries.",
        ),
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="SNAPSHOT", help="Start from this one; what serves by default."
        ),
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
) -> None:
    """Generate keywords for what changed, carry the rest over, and publish the new snapshot.

    The result equals a rebuild of the changed data. Only what differs is written to the cluster.
    """
    from cogr.datasets.logs import LogOptions
    from indexers.build.update import UpdateRequest, run_update
    from indexers.cli import reports

    time = _time(since) if since is not None else None
    request = UpdateRequest(
        side=side.side,
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
        workers=workers.value if workers else None,
    )
    updated = run_update(call.workspace, request, reports.progress_bar, console.note)
    payload = updated.as_dict()
    call.emit(payload, lambda out: reports.updated(out, payload))
    if (now := updated.outcome.rebuilt.snapshot.id) != updated.parent:
        console.next_command(f"cogr-index diff {updated.parent} {now}")


@common_options(backend=False)
def import_(
    file: Annotated[
        Path, typer.Argument(help="A jsonl or parquet file, as cogr-index export writes it.")
    ],
    side: Annotated[
        SideName,
        typer.Option("--side", help="Whose keywords, where no manifest lies beside the file."),
    ] = SideName.item,
    *,
    call: Call,
) -> None:
    """Make a snapshot of keyword sets in a file: an exported snapshot, or keywords from
    elsewhere.
    """
    from indexers.cli import reports
    from indexers.exchange.importing import import_snapshot

    workspace = call.workspace
    manifest = import_snapshot(
        workspace.store, file, side.side, workspace.settings.keywords.k_max
    ).manifest
    payload = {
        "snapshot": manifest.id,
        "side": manifest.side,
        "entities": manifest.entities,
        "keywords": manifest.keywords,
    }
    call.emit(payload, lambda out: reports.facts(out, "Imported", payload))
    console.next_command(f"cogr-index push {manifest.id}")


@common_options()
def diff(
    before: Annotated[str, typer.Argument(help="Id of the older snapshot, or its beginning.")],
    after: Annotated[str, typer.Argument(help="Id of the newer one, of the same side.")],
    call: Call,
    other: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="SNAPSHOT",
            help="One of the other side, to compare results; what serves by default.",
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="Keywords, entities and queries to name.")
    ] = 10,
    queries: Annotated[
        int, typer.Option("--queries", min=1, help="Queries whose results are compared.")
    ] = 1000,
) -> None:
    """What changed between two snapshots: keywords, entities, and the results of queries."""
    from cogr.snapshots import open_snapshot
    from indexers.cli import reports
    from indexers.exchange.diff import diff as compare
    from indexers.release.push import other_side

    workspace = call.workspace
    old, new = (open_snapshot(workspace.store, workspace.known(id_)) for id_ in (before, after))
    against = (
        workspace.known(other) if other else workspace.backend.serving().get(other_side(old.side))
    )
    found = compare(
        old,
        new,
        open_snapshot(workspace.store, against) if against else None,
        top=top,
        sample=queries,
    )
    call.emit(found.as_dict(), lambda out: reports.differing(out, found))
    console.next_command(reports.after_look(workspace, new.id))


@common_options()
def prune(
    call: Call,
    keep: Annotated[
        int, typer.Option("--keep", min=0, help="Snapshots of each side to keep, the newest ones.")
    ] = 3,
    files: Annotated[
        bool, typer.Option("--files", help="Remove their files from the store too.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed; remove nothing.")
    ] = False,
    into: IntoOption = None,
    field: FieldOption = "cogr_keywords",
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="INDEX", help="With --into: the new index without the old fields."
        ),
    ] = None,
) -> None:
    """Remove old snapshots from the backend; never what serves or what a training run names.

    With --into, old fields go from another team's index: it is copied to a new one, which its alias
    then names.
    """
    from indexers.cli import reports
    from indexers.release.prune import prune as remove

    workspace = call.workspace
    if into:
        _prune_into(call, into, field, keep, None if dry_run else to, dry_run=dry_run)
        return
    pruned = remove(
        workspace.store, workspace.backend, keep, files=files, dry_run=dry_run, say=console.note
    ).as_dict()
    payload = {"dry_run": dry_run, **pruned}
    call.emit(
        payload,
        lambda out: reports.facts(out, "Would be removed" if dry_run else "Removed", pruned),
    )
    console.next_command("cogr-index list")


def _prune_into(
    call: Call, into: str, field: str, keep: int, to: str | None, *, dry_run: bool
) -> None:
    from indexers.cli import reports
    from indexers.release.external import Place

    place = Place(call.workspace, into, field)
    dropped = place.prune(keep, to, console.note, dry_run=dry_run)
    payload = {
        "dry_run": dry_run,
        "fields": dropped,
        "index": to if dropped and to else place.target.index,
    }
    call.emit(
        payload,
        lambda out: reports.facts(out, "Would be removed" if dry_run else "Removed", payload),
    )


def _time(text: str) -> datetime:
    from cogr.datasets.fields import in_utc
    from cogr.errors import SettingsError

    try:
        return in_utc(datetime.fromisoformat(text))
    except ValueError as error:
        raise SettingsError(
            f"--since {text!r} is no time; write one such as 2026-01-31 or 2026-01-31T12:00:00Z."
        ) from error
