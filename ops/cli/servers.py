"""`cogr-ops opensearch` and `cogr-ops redis`: start and stop of local servers. What start does is
in `ops.servers`.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer import Option

from cogr.errors import masked
from indexers.cli import console
from indexers.cli.console import JsonOption
from indexers.tables import show_all
from ops import servers
from ops.servers import DEFAULT_VERSION, OpenSearchSpec, ServerSpec, ValkeySpec

NameOption = Annotated[str | None, Option(help="Name of the server and of its folder.")]
PortOption = Annotated[
    int | None,
    Option(min=0, max=65535, help="Port on 127.0.0.1.  [default: the usual or a free one]"),
]


def _emit(as_json: bool, payload: dict[str, Any]) -> None:
    console.emit(as_json, payload, lambda out: show_all(out, "", payload))


def _start(wanted: ServerSpec, as_json: bool, next_: str, variable: str) -> None:
    if url := os.environ.get(variable):
        console.note("The environment names a server: nothing is started.")
        _emit(as_json, {"url": masked(url)})
        return
    state = servers.start(wanted, console.note)
    _emit(as_json, {**state.model_dump(mode="json", exclude={"created"}), "log": str(state.log)})
    console.next_command(f"{next_}{state.url}")


def _commands(kind: str, help_: str) -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, help=help_)

    @app.command()
    def stop(
        name: NameOption = None,
        remove: Annotated[
            bool, Option("--remove", help="Delete data, logs and configuration too.")
        ] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Stop the servers that you started, or the one that --name names.

        Their data is kept for the next start.
        """
        names = [name] if name else [one.name for one in servers.known(kind)]
        stopped = [one for one in names if servers.stop(kind, one, remove=remove)]
        _emit(as_json, {"stopped": stopped, "removed": names if remove else []})

    return app


opensearch_app = _commands(
    "opensearch", "A local single-node OpenSearch for development and tests."
)
redis_app = _commands(
    "valkey", "A local Valkey, the broker of rebuilds on workers, for development and tests."
)


@opensearch_app.command("start")
def start_opensearch(
    version: Annotated[
        str | None,
        Option(help=f"OpenSearch version, such as 2.19.5.  [default: {DEFAULT_VERSION}]"),
    ] = None,
    name: NameOption = None,
    port: PortOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a server and wait until it works.

    Does nothing when it runs already, or when COGR_OPENSEARCH__URL is set.
    """
    wanted = OpenSearchSpec(version=version, name=name, port=port)
    next_ = "cogr-index rebuild --side item --set opensearch.url="
    _start(wanted, as_json, next_, "COGR_OPENSEARCH__URL")


@redis_app.command("start")
def start_redis(
    name: NameOption = None, port: PortOption = None, as_json: JsonOption = False
) -> None:
    """Start a server and wait until it answers.

    Does nothing when it runs already, or when COGR_REDIS__URL is set.
    """
    next_ = "cogr-ops worker --set redis.url="
    _start(ValkeySpec(name=name, port=port), as_json, next_, "COGR_REDIS__URL")
