"""The commands that keep an index up to date and tidy: options and output only, the work is in the modules beside."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from indexers import console
from indexers.options import Call, SideOption, common_options


@common_options()
def update(
    side: SideOption,
    call: Call,
    changed: Annotated[
        Path | None,
        typer.Option("--changed", help='Changes, one JSON object a line: a record, or {"id": ..., "deleted": true}.'),
    ] = None,
    ids: Annotated[
        Path | None, typer.Option("--ids", help="Ids, one a line; the data set says what has become of them.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="What the data set says was updated since then, such as 2026-01-31."
        ),
    ] = None,
    parent: Annotated[
        str | None, typer.Option("--from", metavar="SNAPSHOT", help="Start from this one; what serves by default.")
    ] = None,
    push: Annotated[bool, typer.Option("--push/--no-push", help="Write the snapshot to the backend.")] = True,
    publish: Annotated[bool, typer.Option("--publish/--no-publish", help="Let it serve once it is verified.")] = True,
) -> None:
    """Generate keywords for what changed, carry the rest over, and publish the new snapshot.

    The result equals a rebuild of the changed data. Only what differs is written to the cluster.
    """
    from indexers import reports
    from indexers.updating import UpdateWishes, run_update

    time = _time(since) if since is not None else None
    wishes = UpdateWishes(side.side, changed, ids, time, parent, push, publish)
    updated = run_update(call.workspace, wishes, reports.progress_bar, console.note)
    payload = updated.as_dict()
    call.emit(payload, lambda out: reports.updated(out, payload))
    console.next_command(f"cogr-index diff {updated.parent} {updated.outcome.rebuilt.snapshot.id}")


def _time(text: str) -> datetime:
    from cogr.datasets.fields import in_utc
    from cogr.errors import SettingsError

    try:
        return in_utc(datetime.fromisoformat(text))
    except ValueError as error:
        raise SettingsError(
            f"--since {text!r} is no time; write one such as 2026-01-31 or 2026-01-31T12:00:00Z."
        ) from error
