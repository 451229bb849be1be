"""`cogr-ops opensearch` and `cogr-ops redis`: start, stop and status of local servers.

What start does is in `ops.servers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cogr.errors import CheckFailedError, ServiceError, UserError
from cogr.settings import URL_VARIABLE
from indexers.cli import console
from ops.cli.services import Answer, opensearch_of_environment, redis_of_environment
from ops.servers import instances
from ops.servers.instances import ServerSpec, ServerState
from ops.servers.opensearch import DEFAULT_VERSION, SECURITY_VERSION, OpenSearchSpec
from ops.servers.valkey import ValkeySpec

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
DataOption = Annotated[
    Path | None, typer.Option(help="Folder for the data.  [default: below the server's folder]")
]
opensearch_app = typer.Typer(
    no_args_is_help=True, help="A local single-node OpenSearch for development and tests."
)
redis_app = typer.Typer(
    no_args_is_help=True,
    help="A local Valkey, the broker of rebuilds on workers, for development and tests.",
)


def _port_option(usual: int) -> Any:
    help_ = f"Port on 127.0.0.1.  [default: the one it had, else {usual} or any free one]"
    return typer.Option(min=0, max=65535, help=help_)


def _name_option(usual: str) -> Any:
    return typer.Option(help=f"Name of the server and of its folder.  [default: {usual}]")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of server.

    Attributes:
        group: name of its group of commands.
        product: name of the program.
        variable: the environment variable with the URL of an existing server.
        spec: what is asked of a server of this kind.
        configured: asks the server that the environment names; None if it names none.
    """

    group: str
    product: str
    variable: str
    spec: type[ServerSpec]
    configured: Callable[[], Answer | None]

    def start(self, wanted: ServerSpec, next_command: str, *, as_json: bool) -> None:
        """Start a server, unless the environment names one, and print the next command.

        Args:
            next_command: the next command up to the server's URL, which is appended.

        Raises:
            ServiceError: the server that the environment names does not answer.
        """
        answer = self.configured()
        if answer is None:
            _show_started(instances.start(wanted, console.note), next_command, as_json=as_json)
            return
        if answer.problem is not None:
            raise ServiceError(
                f"{answer.problem} Its URL comes from the environment; unset it to start a "
                "server here."
            )
        console.note(f"The environment names a server ({self.variable}): nothing is started.")
        console.emit(as_json, _answer(answer), lambda out: _show_answer(out, answer))


OPENSEARCH = Kind(
    "opensearch", "OpenSearch", URL_VARIABLE, OpenSearchSpec, opensearch_of_environment
)
REDIS = Kind("redis", "Valkey", "COGR_REDIS__URL", ValkeySpec, redis_of_environment)


@opensearch_app.command("start")
def start_opensearch(
    version: Annotated[
        str | None,
        typer.Option(help=f"OpenSearch version, such as 2.19.5.  [default: {DEFAULT_VERSION}]"),
    ] = None,
    name: Annotated[str | None, _name_option("opensearch-VERSION")] = None,
    port: Annotated[int | None, _port_option(OpenSearchSpec.usual_port)] = None,
    heap: Annotated[str, typer.Option(help="Java heap, such as 512m or 2g.")] = "512m",
    data: DataOption = None,
    security: Annotated[
        bool,
        typer.Option(
            "--security",
            help=f"With TLS and users (OpenSearch {SECURITY_VERSION} and its plugin).",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a server and wait until it works.

    Does nothing when it runs already, or when COGR_OPENSEARCH_URL is set.
    """
    wanted = OpenSearchSpec(
        version=version, name=name, port=port, heap=heap, data=data, security=security
    )
    OPENSEARCH.start(
        wanted, "cogr-index rebuild --side item --set opensearch.url=", as_json=as_json
    )


@redis_app.command("start")
def start_redis(
    name: Annotated[str | None, _name_option("valkey")] = None,
    port: Annotated[int | None, _port_option(ValkeySpec.usual_port)] = None,
    memory: Annotated[
        str, typer.Option(help="Most memory for data, such as 64mb or 1gb.")
    ] = "256mb",
    data: DataOption = None,
    password: Annotated[
        bool, typer.Option("--password", help="Require a password, which is generated.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a server and wait until it answers.

    Does nothing when it runs already, or when COGR_REDIS__URL is set.
    """
    wanted = ValkeySpec(name=name, port=port, memory=memory, data=data, password=password)
    REDIS.start(wanted, "cogr-ops worker --set redis.url=", as_json=as_json)


def _add_stop(app: typer.Typer, kind: Kind) -> None:
    @app.command()
    def stop(
        name: Annotated[
            str | None, typer.Option(help="Name of the server.  [default: the only one there is]")
        ] = None,
        every: Annotated[bool, typer.Option("--all", help="Stop all of them.")] = False,
        remove: Annotated[
            bool, typer.Option("--remove", help="Delete data, logs and configuration too.")
        ] = False,
        as_json: Json = False,
    ) -> None:
        """Stop a server that was started here.

        Its data is kept for the next start.
        """
        # The data of one that was stopped can still be removed, when it is named.
        servers = instances.known(
            kind.spec.kind, name, stopped=remove and (every or name is not None)
        )
        names = [server.name for server in servers]
        if len(servers) > 1 and not every:
            raise UserError(
                f"Several servers were started here ({', '.join(names)}); name one with --name, "
                "or use --all."
            )
        if name is not None and not servers:
            raise UserError(f"No server {name} was started here; see cogr-ops {kind.group} status.")
        stopped = [one.name for one in servers if instances.stop(one, remove=remove)]
        removed = names if remove else []

        def human(out: Console) -> None:
            out.print(f"Stopped: {', '.join(stopped) or 'nothing ran'}.")
            if removed:
                out.print(f"Removed: {', '.join(removed)}.")

        console.emit(as_json, {"stopped": stopped, "removed": removed}, human)


def _add_status(app: typer.Typer, kind: Kind) -> None:
    @app.command()
    def status(
        name: Annotated[
            str | None,
            typer.Option(help="Name of the server.  [default: all; the latest comes first]"),
        ] = None,
        as_json: Json = False,
    ) -> None:
        """Show running and stopped servers and their addresses.

        Exit status 1 if none runs, 3 if the server that the environment names does not answer.
        `url` in the JSON is the address to use.
        """
        answer = kind.configured() if name is None else None
        servers = instances.known(kind.spec.kind, name, stopped=True)
        running = [server for server in servers if server.running]
        found: dict[str, Any] = {"running": False, "url": None}
        if answer is not None:
            found = _answer(answer)
        elif running:
            found = _server(running[0])
        found["servers"] = [_server(server) for server in servers]

        def human(out: Console) -> None:
            if answer is not None:
                _show_answer(out, answer)
            _show(out, servers)

        console.emit(as_json, found, human)
        _check_running(kind, answer, servers, name)


for _app, _kind in ((opensearch_app, OPENSEARCH), (redis_app, REDIS)):
    _add_stop(_app, _kind)
    _add_status(_app, _kind)


def _check_running(
    kind: Kind, answer: Answer | None, servers: Sequence[ServerState], name: str | None
) -> None:
    """Raise ServiceError if the server that the environment names does not answer, CheckFailedError
    if none was started or none runs.
    """
    if answer is not None:
        if answer.problem is not None:
            raise ServiceError(answer.problem)
    elif not any(server.running for server in servers):
        named = name or (servers[0].name if servers else None)
        again = f" --name {named}" if named else ""
        what = f"{name} does not run" if name else f"No {kind.product} runs"
        raise CheckFailedError(f"{what} here; start one with cogr-ops {kind.group} start{again}.")


def _answer(answer: Answer) -> dict[str, Any]:
    """A server that the environment names, for --json."""
    running = answer.problem is None
    shown = {"running": running, "local": False, "url": answer.url, "version": answer.version}
    return shown if running else {**shown, "problem": answer.problem}


def _show_answer(out: Console, answer: Answer) -> None:
    said = answer.problem or f"version {answer.version}"
    out.print(f"{answer.url} (from the environment): {said}", soft_wrap=True)


def _server(state: ServerState) -> dict[str, Any]:
    """A server that was started here, for --json."""
    shown = state.model_dump(exclude={"kind", "process", "owner"}, exclude_none=True)
    found = {"running": state.running, "local": True, "url": None, "pid": state.pid}
    return {**found, **shown}


def _show(out: Console, servers: Sequence[ServerState]) -> None:
    """Servers for people."""
    for server in servers:
        ended = "died" if server.stopped is None else "stopped"
        state = ("running" if server.url else "starting") if server.running else ended
        out.print(f"{server.name}: {state}{f', {server.url}' if server.url else ''}")
        lines = {
            "version": server.version,
            "process": server.pid,
            "folder": server.folder,
            "log": server.log,
            "CA file": server.ca_file,
            "credentials": server.credentials_file,
        }
        for label, value in lines.items():
            if value is not None:
                out.print(f"  {label:12} {value}", soft_wrap=True)


def _show_started(started: instances.Started, next_command: str, *, as_json: bool) -> None:
    """Print a running server and the next command; if the server needs credentials, first the
    command that reads them.
    """
    state = started.state
    if started.already:
        console.note(f"{state.name} runs already.")
    found = {**_server(state), "already_running": started.already}
    console.emit(as_json, found, lambda out: _show(out, [state]))
    credentials = f"set -a; . {state.credentials_file}; set +a; " if state.credentials_file else ""
    console.next_command(f"{credentials}{next_command}{state.url}")
