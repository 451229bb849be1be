"""`cogr-ops opensearch`: options and output of start, stop and status. What they do is in ops.servers.opensearch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from cogr.errors import UserError
from indexers import console
from ops.servers import opensearch
from ops.servers.state import ServerState

app = typer.Typer(no_args_is_help=True, help="A local single-node OpenSearch for development and tests.")

URL_VARIABLE = "COGR_OPENSEARCH_URL"

Json = typer.Option(False, "--json", help="One JSON object on standard output.")


@app.command()
def start(
    version: str = typer.Option(
        None, help=f"OpenSearch version, such as 2.19.5.  [default: {opensearch.DEFAULT_VERSION}]"
    ),
    name: str = typer.Option(None, help="Name of the server and of its folder.  [default: opensearch-VERSION]"),
    port: int = typer.Option(
        None, min=0, max=65535, help="Port on 127.0.0.1.  [default: 9200 or, if taken, any free one]"
    ),
    heap: str = typer.Option("512m", help="Java heap, such as 512m or 2g."),
    data: Path = typer.Option(None, help="Folder for the data.  [default: below the server's folder]"),
    as_json: bool = Json,
) -> None:
    """Start a server and wait until it works; does nothing when it runs already."""
    started = opensearch.start(
        opensearch.Wanted(version=version, name=name, port=port, heap=heap, data=data), console.note
    )
    if started.already:
        console.note(f"{started.state.name} runs already.")
    console.emit(
        as_json,
        {**_payload(started.state), "already_running": started.already},
        lambda out: _show(out, [started.state]),
    )
    if not as_json:
        console.next_command(f"export {URL_VARIABLE}={started.state.url}")


@app.command()
def stop(
    name: str = typer.Option(None, help="Name of the server.  [default: the only one there is]"),
    every: bool = typer.Option(False, "--all", help="Stop all of them."),
    remove: bool = typer.Option(False, "--remove", help="Delete data, logs and configuration too."),
    as_json: bool = Json,
) -> None:
    """Stop a server that was started here."""
    servers = opensearch.status(name)
    if len(servers) > 1 and not every:
        raise UserError(
            f"Several servers were started ({', '.join(s.name for s in servers)}); name one with --name, or use --all."
        )
    if name is not None and not servers:
        raise UserError(f"No server {name} was started here; see cogr-ops opensearch status.")
    stopped = [server.name for server in servers if opensearch.stop(server, remove=remove)]
    console.emit(
        as_json, {"stopped": stopped}, lambda out: out.print(f"Stopped: {', '.join(stopped) or 'nothing ran'}.")
    )


@app.command()
def status(
    name: str = typer.Option(None, help="Name of the server.  [default: all; the latest in the first place]"),
    as_json: bool = Json,
) -> None:
    """What runs, and where."""
    servers = opensearch.status(name)
    running = [server for server in servers if server.running]
    payload: dict[str, Any] = _payload(running[0]) if running else {"running": False, "url": None}
    payload["servers"] = [_payload(server) for server in servers]
    console.emit(as_json, payload, lambda out: _show(out, servers))


def _payload(state: ServerState) -> dict[str, Any]:
    shown = state.model_dump(exclude={"kind", "birth", "owner_pid", "owner_birth"}, exclude_none=True)
    return {"running": state.running, "url": None, **shown}


def _show(out: Console, servers: list[ServerState]) -> None:
    if not servers:
        out.print("No server was started here. Start one with cogr-ops opensearch start.")
    for server in servers:
        state = ("running" if server.url else "starting") if server.running else "died"
        out.print(f"{server.name}: {state}{f', {server.url}' if server.url else ''}")
        lines = {"version": server.version, "process": server.pid, "folder": server.folder, "log": server.log}
        for label, value in lines.items():
            out.print(f"  {label:8} {value}", soft_wrap=True)
