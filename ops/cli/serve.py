"""`cogr-ops serve` and `worker`: options of the processes that run until they are
stopped: the query expander and the workers of rebuilds.

The work itself is in `ops.expander` and `indexers.rebuild.fleet`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Option

from cogr.errors import require
from cogr.records import SIDES
from indexers.cli import console
from indexers.cli.console import Call, common_options

if TYPE_CHECKING:
    from fastapi import FastAPI

    from cogr.settings import Settings


@common_options(json=False)
def serve(
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes any free port.")] = 8600,
    model: Annotated[
        str | None,
        Option(
            help=(
                "Name of the model at the endpoint; {round} stands for the round that serves.  "
                "[default: generator.model]"
            )
        ),
    ] = None,
    playground: Annotated[
        bool,
        Option(
            "--playground",
            help="Also serve a page at /playground that shows what keywords do to a search.",
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        Option(
            help=(
                "Another host name under which the playground may be opened; may be given several "
                "times."
            )
        ),
    ] = None,
    *,
    call: Call,
) -> None:
    """Answer queries with keywords and a ready OpenSearch clause over HTTP, within a deadline, even
    if Redis, OpenSearch or the model fails.

    Also starts without any configuration: then a query's only keyword is the query itself. SIGTERM
    or Ctrl-C ends it.
    """
    from cogr.settings import load_settings

    require("The query expander", "serve", "circuitbreaker", "fastapi", "granian", "redis")
    from ops.expander.app import free_address, serve_expander

    nothing = {"dataset": {"loader": "jsonl"}, "serving": {"live": "none"}}
    settings = load_settings(call.config, call.overrides, otherwise=nothing)
    address = free_address(host, port)
    make = partial(expander_app, settings, address, model, allow_host or [], playground)
    make()  # A wrong setting is said here, before there is a worker.
    serve_expander(make, address)


def expander_app(
    settings: Settings,
    address: tuple[str, int],
    model: str | None,
    hosts: Sequence[str],
    playground: bool,
) -> FastAPI:
    """The application that a worker serves at an address. Raises SettingsError."""
    from indexers.workspace import Workspace
    from ops.expander.app import create_app
    from ops.expander.expander import make_parts

    workspace = Workspace(settings)
    parts = make_parts(workspace, model)
    where = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}"

    def started() -> None:
        console.note(f"Expanding queries at {where}/expand")
        if playground:
            console.note(f"The playground is at {where}/playground/")

    app = create_app(parts, playground=playground, started=started)
    if playground:
        from ops.playground import add_playground

        add_playground(app, workspace, parts, hosts)
    # What lives as long as the process need not be looked through at each collection of garbage.
    gc.collect()
    gc.freeze()
    return app


@common_options(json=False)
def worker(
    side: console.SidesOption = None,
    generator: console.GeneratorOption = None,
    *,
    call: Call,
) -> None:
    """Generate keywords for rebuilds on workers (cogr-index rebuild --workers celery). Start one
    for each GPU.

    Needs the configuration and the store of the coordinator. SIGTERM or Ctrl-C ends it between two
    answers; nothing is lost.
    """
    from indexers.rebuild.fleet.broker import printable
    from indexers.rebuild.fleet.worker import serve_queues
    from indexers.telemetry import logs, prometheus
    from indexers.workspace import Workspace

    workspace = Workspace.open(call.config, call.overrides)
    logs.configure(workspace.settings.log)
    prometheus.serve_metrics(workspace.settings.metrics)
    chosen = side or SIDES
    sides = [known for known in SIDES if known in chosen]
    console.note(
        f"Waiting for shards of {' and '.join(sides)} from {printable(workspace.settings.redis)}."
    )
    if serve_queues(workspace, sides, generator):
        console.note("Restarting: the next shard is for another model.")
        os.execv(sys.executable, sys.orig_argv)
