"""`cogr-ops opensearch`: the options of start; stop and status are those of all servers.

What start does is in ops.servers.opensearch.
"""

from __future__ import annotations

from pathlib import Path

import typer

from cogr.settings import URL_VARIABLE
from indexers.cli import console
from ops.cli.servers import Json, Kind
from ops.cli.showing import show_started
from ops.servers import opensearch
from ops.servers.configured import Answer, ask, from_environment
from ops.servers.security import SECURITY_VERSION


def _configured() -> Answer | None:
    settings = from_environment()
    return None if settings is None else ask(settings)


app = typer.Typer(
    no_args_is_help=True, help="A local single-node OpenSearch for development and tests."
)
_kind = Kind("opensearch", URL_VARIABLE, opensearch.status, _configured, "OpenSearch")


@app.command()
def start(
    version: str = typer.Option(
        None, help=f"OpenSearch version, such as 2.19.5.  [default: {opensearch.DEFAULT_VERSION}]"
    ),
    name: str = typer.Option(
        None, help="Name of the server and of its folder.  [default: opensearch-VERSION]"
    ),
    port: int = typer.Option(
        None,
        min=0,
        max=65535,
        help="Port on 127.0.0.1.  [default: the one it had, else 9200 or any free one]",
    ),
    heap: str = typer.Option("512m", help="Java heap, such as 512m or 2g."),
    data: Path = typer.Option(
        None, help="Folder for the data.  [default: below the server's folder]"
    ),
    security: bool = typer.Option(
        False,
        "--security",
        help=f"With TLS and users (OpenSearch {SECURITY_VERSION} and its plugin).",
    ),
    as_json: bool = Json,
) -> None:
    """Start a server and wait until it works.

    Does nothing when it runs already, or when COGR_OPENSEARCH_URL is set.
    """
    wanted = opensearch.Wanted(
        version=version, name=name, port=port, heap=heap, data=data, security=security
    )
    if _kind.use_configured(as_json=as_json):
        return
    started = opensearch.start(wanted, console.note)
    next_command = f"cogr-index rebuild --side item --set opensearch.url={started.state.url}"
    show_started(started, next_command, as_json=as_json)


_kind.add_to(app)
