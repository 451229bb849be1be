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
    SideName,
    VerboseOption,
    set_verbosity,
)


def worker(
    side: Annotated[
        list[SideName] | None,
        typer.Option("--side", help="Serve this side; repeatable.  [default: both]"),
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
    chosen = [one.value for one in side] if side else SIDES
    sides = [known for known in SIDES if known in chosen]
    queues = [
        queue_of(one, workspace.generator_settings(one, generator and generator.value))
        for one in sides
    ]
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
