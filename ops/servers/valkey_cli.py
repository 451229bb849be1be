"""`cogr-ops redis`: options and output of start, stop and status. What they do is in ops.servers.valkey."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cogr.errors import CogrError
from cogr.fleet_settings import RedisSettings
from indexers import console
from indexers.fleet.broker import printable
from ops.servers import valkey
from ops.servers.configured import redis_from_environment
from ops.servers.showing import payload, show, show_started, stop_them

app = typer.Typer(
    no_args_is_help=True, help="A local Valkey, the broker of rebuilds on workers, for development and tests."
)

Json = typer.Option(False, "--json", help="One JSON object on standard output.")


@app.command()
def start(
    name: str = typer.Option(None, help="Name of the server and of its folder.  [default: valkey]"),
    port: int = typer.Option(
        None, min=0, max=65535, help="Port on 127.0.0.1.  [default: 6379 or, if taken, any free one]"
    ),
    memory: str = typer.Option("256mb", help="Most memory for data, such as 64mb or 1gb."),
    data: Annotated[
        Path | None, typer.Option(help="Folder for the data.  [default: below the server's folder]")
    ] = None,
    password: bool = typer.Option(False, "--password", help="Ask for a password, which is made up."),
    as_json: bool = Json,
) -> None:
    """Start a server and wait until it answers. Does nothing when it runs already, or when COGR_REDIS__URL is set."""
    wanted = valkey.Wanted(name=name, port=port, memory=memory, data=data, password=password)
    configured = redis_from_environment()
    if configured is not None:
        version = valkey.ask(configured)
        console.note("The environment names a server (COGR_REDIS__URL): nothing is started.")
        found = _configured_payload(configured, version)
        console.emit(as_json, found, lambda out: _show_configured(out, found))
        return
    started = valkey.start(wanted, console.note)
    show_started(started, "redis", f"cogr-ops worker --set redis.url={started.state.url}", as_json=as_json)


@app.command()
def stop(
    name: str = typer.Option(None, help="Name of the server.  [default: the only one there is]"),
    every: bool = typer.Option(False, "--all", help="Stop all of them."),
    remove: bool = typer.Option(False, "--remove", help="Delete data, logs and configuration too."),
    as_json: bool = Json,
) -> None:
    """Stop a server that was started here. Its data stays, and the next start goes on with it."""
    stop_them(valkey.status(name), name, "redis", every=every, remove=remove, as_json=as_json)


@app.command()
def status(
    name: str = typer.Option(None, help="Name of the server.  [default: all; the latest comes first]"),
    as_json: bool = Json,
) -> None:
    """What runs, and where. `url` in the JSON is the one that commands should use."""
    configured = redis_from_environment() if name is None else None
    servers = valkey.status(name)
    running = [server for server in servers if server.running]
    found: dict[str, Any] = {"running": False, "url": None}
    if configured is not None:
        try:
            found = _configured_payload(configured, valkey.ask(configured))
        except CogrError as error:
            found = {"running": False, "local": False, "url": printable(configured), "problem": str(error)}
    elif running:
        found = payload(running[0])
    found["servers"] = [payload(server) for server in servers]

    def human(out: Console) -> None:
        if configured is not None:
            _show_configured(out, found)
        show(out, servers, "redis")

    console.emit(as_json, found, human)


def _configured_payload(configured: RedisSettings, version: str) -> dict[str, Any]:
    return {"running": True, "local": False, "url": printable(configured), "version": version}


def _show_configured(out: Console, found: dict[str, Any]) -> None:
    said = found.get("problem") or f"version {found['version']}"
    out.print(f"{found['url']} (from the environment): {said}", soft_wrap=True)
