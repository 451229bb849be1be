"""`cogr-index status` and `cogr-index cancel`: options, and what they print.

The state is read by `indexers.fleet.run_files`.
"""

from __future__ import annotations

import getpass
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cogr.errors import CheckFailedError, UserError
from cogr.records import SIDES, Side
from indexers.cli import console
from indexers.cli.console import Call, SideOption, common_options
from indexers.telemetry.terminal import console_of, duration

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from indexers.fleet.run_files import Overview
    from indexers.workspace import Workspace

SideChoice = Annotated[Side | None, typer.Option("--side", help="Only this side.")]


@common_options(backend=False)
def status(
    call: Call,
    side: SideChoice = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until nothing runs.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, help="Seconds between two refreshes of --watch.")
    ] = 2.0,
) -> None:
    """Show the state of rebuilds on workers: shards, workers, rates, time left.

    Reads the store; needs no broker.
    """
    found = _look(call.workspace, side)
    if watch:
        found = _watch(call.workspace, side, every, found)
    call.emit({"runs": [run.as_dict() for run in found]}, lambda out: out.print(_drawn(found)))
    for run in found:
        if run.state in ("silent", "interrupted", "cancelled"):
            console.next_command(f"cogr-index rebuild --side {run.side} --workers celery")


@common_options(backend=False)
def cancel(
    side: SideOption,
    call: Call,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait until it has stopped.")
    ] = 120.0,
) -> None:
    """Stop a rebuild on workers: no more shards, workers stop between two answers.

    What was generated is kept.
    """
    run = _cancel(call.workspace, side, wait)
    payload = {"cancelled": run, "side": side}
    call.emit(
        payload, lambda out: out.print(f"Run {run} is cancelled; what was generated is kept.")
    )
    console.next_command(f"cogr-index rebuild --side {side} --workers celery")


def _cancel(workspace: Workspace, side: Side, wait: float) -> str:
    from indexers.fleet.run_files import Cancel, End, latest_run
    from indexers.lease import read_lease

    opened = latest_run(workspace.store, side)
    if opened is None or opened[0].ended is not None:
        raise UserError(
            f"No rebuild of {side}s on workers is under way in {workspace.store.url}; see "
            "cogr-index status."
        )
    folder, run = opened
    by = f"{getpass.getuser()} on {socket.gethostname()}"
    folder.write(Cancel(by=by), "cancel")
    deadline = time.monotonic() + wait
    while folder.ended is None:
        lease = read_lease(workspace.store, side)
        gone = lease is None or lease.released or abs(time.time() - lease.renewed) > lease.seconds
        if gone:
            # Nobody coordinates it: workers see that it has ended and leave its shards alone.
            folder.write(End(state="cancelled", reason=f"cancelled by {by}"), "end")
        elif time.monotonic() > deadline:
            raise CheckFailedError(
                f"Run {run.id} was asked to stop, but its coordinator has not done so within "
                f"{wait:g} s; see cogr-index status."
            )
        else:
            time.sleep(0.2)
    if folder.ended.state == "finished":
        raise UserError(f"Run {run.id} finished before it could be cancelled; see cogr-index list.")
    return run.id


def _look(workspace: Workspace, side: Side | None) -> list[Overview]:
    from indexers.fleet.run_files import overview

    wanted = SIDES if side is None else [side]
    found = (
        overview(workspace.store, name, workspace.settings.fleet.lost_seconds) for name in wanted
    )
    return [run for run in found if run is not None]


def _watch(
    workspace: Workspace, side: Side | None, every: float, found: list[Overview]
) -> list[Overview]:
    """Show the state on standard error until nothing runs any more. Returns the last state."""
    from rich.live import Live

    with Live(
        _drawn(found), console=console_of(sys.stderr), auto_refresh=False, transient=True
    ) as live:
        while any(run.state in ("running", "cancelling") for run in found):
            time.sleep(every)
            found = _look(workspace, side)
            live.update(_drawn(found), refresh=True)
    return found


def _drawn(found: Sequence[Overview]) -> Group:
    from rich.console import Group

    if not found:
        return Group(
            "No rebuild on workers yet: run cogr-index rebuild --side item --workers celery."
        )
    return Group(*(part for run in found for part in _parts(run)))


def _parts(run: Overview) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    shards = f"{run.done} done, {run.running} running, {run.waiting} waiting, {run.failed} given up"
    more = f", {run.unplanned:,} entities not planned yet" if run.unplanned else ""
    left = "" if run.seconds_left is None else f", about {duration(run.seconds_left)} left"
    lines = [
        f"{run.side}s, run {run.run}: {run.state}{f' ({run.note})' if run.note else ''}",
        f"  {run.answered:,} of {run.to_generate:,} answered ({run.entities:,} entities in "
        f"all){left}",
        f"  shards: {shards}{more}",
        f"  {run.items_per_second:,.1f} entities/s, {run.tokens_per_second:,.0f} tokens/s",
    ]
    parts: list[RenderableType] = [Text("\n".join(lines))]
    if run.held:
        table = Table("shard", "worker", "state", "since", "entities", "entities/s", "silent for")
        for held in run.held:
            since = time.strftime("%H:%M:%S", time.localtime(held.since))
            done = f"{held.items:,} of {held.entities:,}"
            silent = f"{held.silent_seconds:.0f} s"
            row = (
                held.shard,
                held.worker,
                held.state,
                since,
                done,
                f"{held.items_per_second:,.1f}",
                silent,
            )
            table.add_row(*(Text(cell) for cell in row))
        parts.append(table)
    parts += [Text(f"  {t.shard}, {t.worker}: {t.state}, {t.reason}") for t in run.troubles[-5:]]
    parts += [
        Text(f"  set aside: {id_}: {reason}") for id_, reason in list(run.set_aside.items())[:20]
    ]
    if run.snapshot:
        parts.append(Text(f"  snapshot {run.snapshot}"))
    return parts
