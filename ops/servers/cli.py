"""`cogr-ops opensearch`: options and output of start, stop and status. What they do is in ops.servers.opensearch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from cogr.errors import ServiceError
from indexers import console
from ops.servers import opensearch
from ops.servers.configured import Answer, ask, from_environment
from ops.servers.security import SECURITY_VERSION
from ops.servers.showing import payload, show, show_started, stop_them

app = typer.Typer(no_args_is_help=True, help="A local single-node OpenSearch for development and tests.")

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
    security: bool = typer.Option(
        False, "--security", help=f"With TLS and users (OpenSearch {SECURITY_VERSION} and its plugin)."
    ),
    as_json: bool = Json,
) -> None:
    """Start a server and wait until it works. Does nothing when it runs already, or when COGR_OPENSEARCH_URL is set."""
    wanted = opensearch.Wanted(version=version, name=name, port=port, heap=heap, data=data, security=security)
    configured = from_environment()
    if configured is not None:
        _use_configured(ask(configured), as_json)
        return
    started = opensearch.start(wanted, console.note)
    show_started(
        started,
        "opensearch",
        f"cogr-index rebuild --side item --set opensearch.url={started.state.url}",
        as_json=as_json,
    )


def _use_configured(answer: Answer, as_json: bool) -> None:
    if answer.problem is not None:
        raise ServiceError(f"{answer.problem} Its URL comes from the environment; unset it to start a server here.")
    console.note("The environment names a cluster (COGR_OPENSEARCH_URL): nothing is started.")
    console.emit(as_json, _configured_payload(answer), lambda out: _show_configured(out, answer))


@app.command()
def stop(
    name: str = typer.Option(None, help="Name of the server.  [default: the only one there is]"),
    every: bool = typer.Option(False, "--all", help="Stop all of them."),
    remove: bool = typer.Option(False, "--remove", help="Delete data, logs and configuration too."),
    as_json: bool = Json,
) -> None:
    """Stop a server that was started here. Its data stays, and the next start goes on with it."""
    stop_them(opensearch.status(name), name, "opensearch", every=every, remove=remove, as_json=as_json)


@app.command()
def status(
    name: str = typer.Option(None, help="Name of the server.  [default: all; the latest comes first]"),
    as_json: bool = Json,
) -> None:
    """What runs, and where. `url` in the JSON is the one that commands should use."""
    configured = from_environment() if name is None else None
    answer = ask(configured) if configured is not None else None
    servers = opensearch.status(name)
    running = [server for server in servers if server.running]
    found: dict[str, Any] = {"running": False, "url": None}
    if answer is not None:
        found = _configured_payload(answer)
    elif running:
        found = payload(running[0])
    found["servers"] = [payload(server) for server in servers]

    def human(out: Console) -> None:
        if answer is not None:
            _show_configured(out, answer)
        show(out, servers, "opensearch")

    console.emit(as_json, found, human)


def _configured_payload(answer: Answer) -> dict[str, Any]:
    shown = {"running": answer.problem is None, "local": False, "url": answer.url, "version": answer.version}
    return shown if answer.problem is None else {**shown, "problem": answer.problem}


def _show_configured(out: Console, answer: Answer) -> None:
    said = f"OpenSearch {answer.version}" if answer.problem is None else answer.problem
    out.print(f"{answer.url} (from the environment): {said}", soft_wrap=True)
