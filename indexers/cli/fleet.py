"""`cogr-index status`: rebuilds on workers, and the end of one."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Option

from cogr.errors import CheckFailedError, UserError
from cogr.records import SIDES, Side
from indexers.cli import console
from indexers.cli.console import Call, common_options
from indexers.tables import show_all

if TYPE_CHECKING:
    from rich.console import Console

    from indexers.fleet.run_files import Overview
    from indexers.workspace import Workspace

STOPPED = 120.0
"""Seconds to wait until a cancelled rebuild has stopped."""


@common_options(backend=False)
def status(
    call: Call,
    side: Annotated[Side | None, Option(help="Only this side.")] = None,
    cancel: Annotated[
        bool, Option("--cancel", help="Stop the rebuild of --side; what was generated is kept.")
    ] = False,
) -> None:
    """Show the state of rebuilds on workers: answers, shards, workers, time left; or stop one.

    Reads the store; needs no broker.
    """
    from indexers.fleet.run_files import overview

    if cancel:
        _cancel(call.workspace, side)
    sides = SIDES if side is None else [side]
    found = [run for one in sides if (run := overview(call.workspace.store, one)) is not None]
    call.emit({"runs": [run.model_dump() for run in found]}, lambda out: _show(out, found))
    for run in found:
        if run.state in ("silent", "interrupted", "cancelled"):
            console.next_command(f"cogr-index rebuild --side {run.side} --workers celery")


def _cancel(workspace: Workspace, side: Side | None) -> None:
    from indexers.fleet.run_files import Cancel, FleetRun, latest_run
    from indexers.lease import read_lease

    if side is None:
        raise UserError("--cancel stops the rebuild of one side; name it with --side.")
    opened = latest_run(workspace.store, side)
    if opened is None or opened[1].state != "running":
        raise UserError(
            f"No rebuild of {side}s on workers is under way in {workspace.store.url}; see "
            "cogr-index status."
        )
    folder, run = opened
    by = f"{getpass.getuser()} on {socket.gethostname()}"
    folder.write(Cancel(by=by), "cancel")
    deadline = time.monotonic() + STOPPED
    while (now := folder.read(FleetRun, "run") or run).state == "running":
        lease = read_lease(workspace.store, side)
        if lease is None or lease.released or abs(time.time() - lease.renewed) > lease.seconds:
            # Nobody coordinates it: workers see that it has ended and leave its shards alone.
            folder.end(state="cancelled", note=f"cancelled by {by}")
        elif time.monotonic() > deadline:
            raise CheckFailedError(
                f"Run {run.id} was asked to stop, but its coordinator has not done so within "
                f"{STOPPED:g} s; see cogr-index status."
            )
        else:
            time.sleep(0.2)
    if now.state == "finished":
        raise UserError(f"Run {run.id} finished before it could be cancelled; see cogr-index list.")


def _show(out: Console, found: Sequence[Overview]) -> None:
    if not found:
        out.print("No rebuild on workers yet: run cogr-index rebuild --side item --workers celery.")
    for run in found:
        title = f"{run.side}s, run {run.id}: {run.state}{f' ({run.note})' if run.note else ''}"
        title_has = {"id", "side", "state", "note", "fingerprint", "generator"}
        show_all(out, title, run.model_dump(exclude=title_has))
