"""`cogr-ops worker`: options of a worker process for distributed rebuilds.

The work itself is in `indexers.fleet`.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from cogr.errors import SettingsError
from cogr.records import SIDES
from indexers.cli import console
from indexers.cli.options import (
    ConfigOption,
    GeneratorOption,
    SetOption,
    VerboseOption,
    set_verbosity,
)


def _known(sides: list[str] | None) -> list[str] | None:
    """Refuse what is no side, as typer does where an option is not repeatable."""
    for side in sides or ():
        if side not in SIDES:
            raise typer.BadParameter(f"{side!r} is not one of 'query', 'item'.")
    return sides


def worker(
    side: Annotated[
        list[str] | None,
        typer.Option(
            "--side",
            metavar="[query|item]",
            callback=_known,
            help="Serve this side, query or item; repeatable.  [default: both]",
        ),
    ] = None,
    generator: GeneratorOption = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name in cogr-index status.  [default: host-process]"),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Generate keywords for rebuilds on workers (cogr-index rebuild --workers celery). Start one
    for each GPU.

    Needs the configuration and the store of the coordinator. SIGTERM or Ctrl-C ends it between two
    answers; nothing is lost.
    """
    from indexers.fleet.broker import printable, queue_of
    from indexers.fleet.worker import serve
    from indexers.telemetry import observe, prometheus, traces
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    workspace = Workspace.open(config, set_)
    observe(workspace.settings, "cogr-worker")
    prometheus.serve(workspace.settings.metrics)
    chosen = side or SIDES
    sides = [known for known in SIDES if known in chosen]
    queues = [queue_of(one, workspace.generator_settings(one, generator)) for one in sides]
    if not workspace.settings.redis.url:
        raise SettingsError(
            "A worker needs a broker: run cogr-ops redis start, then set redis.url or "
            "COGR_REDIS__URL."
        )
    console.note(
        f"Waiting for shards of {' and '.join(sides)} from {printable(workspace.settings.redis)}."
    )
    if serve(workspace, queues, name=name):
        console.note("Starting anew: the next shard is for another model.")
        traces.stop()
        os.execv(sys.executable, sys.orig_argv)
