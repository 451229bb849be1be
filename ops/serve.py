"""`cogr-ops serve` and `backlog`: options of the query expander. The service itself is in `ops.expander`."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import socket
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cogr.errors import MissingExtraError, ServiceError
from indexers import console
from indexers.options import Call, ConfigOption, SetOption, VerboseOption, common_options, set_verbosity

if TYPE_CHECKING:
    from indexers.workspace import Workspace

PAUSE = 10.0
"""Seconds between two looks at the backlog."""
NEEDED = ("aiohttp", "circuitbreaker", "fastapi", "limits", "prometheus_client", "redis", "uvicorn")


def serve(
    host: Annotated[str | None, typer.Option("--host", help="Instead of serving.host.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Instead of serving.port.")] = None,
    playground: Annotated[
        bool,
        typer.Option("--playground", help="Also serve a page at /playground that shows what keywords do to a search."),
    ] = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Answer queries with keywords and a ready OpenSearch clause over HTTP, within a deadline, whatever is away.

    Starts without any configuration, too: then every query is its own only keyword. SIGTERM or Ctrl-C ends it.
    """
    set_verbosity(verbose)
    check_installed()
    overrides = [*(set_ or []), *([f"serving.host={host}"] if host else [])]
    workspace = open_workspace(config, [*overrides, *([f"serving.port={port}"] if port is not None else [])])
    run(workspace, playground=playground)


@common_options()
def backlog(
    call: Call,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Most queries to answer.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on, and look again every 10 seconds.")] = False,
) -> None:
    """Write keywords for the queries that the expander could not answer in time, with the configuration's generator.

    They go into the cache that the expander reads, for the pair of snapshots that serves.
    """
    check_installed()
    from indexers.reports import facts
    from ops.expander.backlog import work_off

    done = work_off(call.workspace, limit, console.note)
    while follow:
        time.sleep(PAUSE)
        done = work_off(call.workspace, limit, console.note)
    payload = {"answered": done.answered, "without_keywords": done.without}
    call.emit(payload, lambda out: facts(out, "Backlog", payload))


def check_installed() -> None:
    """Raises MissingExtraError."""
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        raise MissingExtraError("The query expander", "serve")


def open_workspace(config: ConfigOption, overrides: list[str]) -> Workspace:
    """The configuration; without one, that of nothing. Raises SettingsError."""
    from cogr.settings import load_settings
    from indexers.workspace import Workspace

    nothing = {"dataset": {"loader": "jsonl"}, "serving": {"live": "none"}}
    return Workspace(load_settings(config, overrides, otherwise=nothing))


def run(workspace: Workspace, *, playground: bool = False) -> None:
    """Serve until told to end.

    Args:
        workspace: what to serve.
        playground: also serve `ops.playground`.

    Raises:
        ServiceError: the address can't be listened on.
    """
    import uvicorn

    serving = workspace.settings.serving
    try:
        listening = socket.create_server((serving.host, serving.port), backlog=2048)
    except OSError as error:
        raise ServiceError(
            f"Nothing can listen on {serving.host}:{serving.port} ({error.strerror}); choose another serving.port."
        ) from error
    # asyncio sees by the protocol's number that a socket is TCP, which this one has not: an answer's head and body would
    # wait for one another's acknowledgement (40 ms).
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    loop = uvicorn.Config(app="", log_config=None).get_loop_factory()
    with listening, asyncio.Runner(loop_factory=loop) as runner:
        address = f"http://{serving.host}:{listening.getsockname()[1]}"
        console.note(f"Expanding queries at {address}/expand")
        if playground:
            console.note(f"The playground is at {address}/playground/")
        runner.run(_serve(workspace, listening, playground))


async def _serve(workspace: Workspace, listening: socket.socket, playground: bool) -> None:
    import uvicorn

    from ops.expander.app import create_app
    from ops.expander.http11 import server_config
    from ops.expander.parts import make_parts

    parts = make_parts(workspace)
    app = create_app(parts)
    if playground:
        from ops.playground.app import add_playground

        add_playground(app, workspace, parts)
    # What lives as long as the process need not be looked through at each collection of garbage.
    gc.collect()
    gc.freeze()
    await uvicorn.Server(server_config(app)).serve(sockets=[listening])
