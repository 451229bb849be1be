"""`cogr-ops redis`: the options of start; stop and status are those of all servers.

What start does is in ops.servers.valkey.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cogr.errors import CogrError
from indexers.cli import console
from indexers.fleet.broker import printable
from ops.cli.servers import Json, Kind
from ops.cli.showing import show_started
from ops.servers import valkey
from ops.servers.configured import Answer, redis_from_environment


def _configured() -> Answer | None:
    settings = redis_from_environment()
    if settings is None:
        return None
    try:
        return Answer(printable(settings), version=valkey.ask(settings))
    except CogrError as error:
        return Answer(printable(settings), problem=str(error))


app = typer.Typer(
    no_args_is_help=True,
    help="A local Valkey, the broker of rebuilds on workers, for development and tests.",
)
_kind = Kind("redis", "COGR_REDIS__URL", valkey.status, _configured, "Valkey")


@app.command()
def start(
    name: str = typer.Option(None, help="Name of the server and of its folder.  [default: valkey]"),
    port: int = typer.Option(
        None,
        min=0,
        max=65535,
        help="Port on 127.0.0.1.  [default: the one it had, else 6379 or any free one]",
    ),
    memory: str = typer.Option("256mb", help="Most memory for data, such as 64mb or 1gb."),
    data: Annotated[
        Path | None, typer.Option(help="Folder for the data.  [default: below the server's folder]")
    ] = None,
    password: bool = typer.Option(
        False, "--password", help="Ask for a password, which is made up."
    ),
    as_json: bool = Json,
) -> None:
    """Start a server and wait until it answers.

    Does nothing when it runs already, or when COGR_REDIS__URL is set.
    """
    wanted = valkey.Wanted(name=name, port=port, memory=memory, data=data, password=password)
    if _kind.use_configured(as_json=as_json):
        return
    started = valkey.start(wanted, console.note)
    next_command = f"cogr-ops worker --set redis.url={started.state.url}"
    show_started(started, next_command, as_json=as_json)


_kind.add_to(app)
