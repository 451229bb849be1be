"""`cogr-ops opensearch` and `cogr-ops redis`: start, stop and status of local servers.

What start does is in `ops.servers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from typer import Option

from cogr.errors import CheckFailedError, ServiceError, UserError
from cogr.settings import URL_VARIABLE, table_of_environment
from indexers.cli import console
from indexers.cli.console import JsonOption
from indexers.tables import show_all
from ops.cli.services import Answer, opensearch_answer, redis_answer
from ops.servers import instances
from ops.servers.instances import ServerSpec, ServerState
from ops.servers.opensearch import DEFAULT_VERSION, OpenSearchSpec
from ops.servers.valkey import ValkeySpec

NameOption = Annotated[str | None, Option(help="Name of the server and of its folder.")]
PortOption = Annotated[
    int | None,
    Option(min=0, max=65535, help="Port on 127.0.0.1.  [default: the usual or a free one]"),
]


def _emit(as_json: bool, payload: Mapping[str, Any]) -> None:
    console.emit(as_json, payload, lambda out: show_all(out, "", payload))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of server."""

    group: Literal["opensearch", "redis"]
    variable: str
    spec: type[ServerSpec]
    ask: Callable[[Any], Answer | None]
    next_command: str

    def configured(self) -> Answer | None:
        """What the server says that the environment names. Raises SettingsError."""
        return self.ask(table_of_environment(self.group))

    def start(self, wanted: ServerSpec, *, as_json: bool) -> None:
        """Start a server, unless the environment names one, and print the next command. Raises
        ServiceError where that one does not answer.
        """
        answer = self.configured()
        if answer is not None and answer.problem is not None:
            raise ServiceError(
                f"{answer.problem} Its URL comes from the environment; unset it to start a "
                "server here."
            )
        if answer is not None:
            console.note(f"The environment names a server ({self.variable}): nothing is started.")
            _emit(as_json, _answer(answer))
            return
        started = instances.start(wanted, console.note)
        if started.already:
            console.note(f"{started.state.name} runs already.")
        _emit(as_json, {**_server(started.state), "already_running": started.already})
        console.next_command(f"{self.next_command}{started.state.url}")

    def commands(self, help_: str) -> typer.Typer:
        """The commands that all kinds of server have; `start` is added by each."""
        app, kind = typer.Typer(no_args_is_help=True, help=help_), self.spec.kind

        @app.command()
        def stop(
            name: NameOption = None,
            every: Annotated[bool, Option("--all", help="Stop all of them.")] = False,
            remove: Annotated[
                bool, Option("--remove", help="Delete data, logs and configuration too.")
            ] = False,
            as_json: JsonOption = False,
        ) -> None:
            """Stop the server that was started here, or the one that --name names.

            Its data is kept for the next start.
            """
            names = [name] if name else [one.name for one in instances.known(kind)]
            if len(names) > 1 and not every:
                raise UserError(
                    f"Several servers were started here ({', '.join(names)}); name one with "
                    "--name, or use --all."
                )
            stopped = [one for one in names if instances.stop_named(kind, one, remove=remove)]
            _emit(as_json, {"stopped": stopped, "removed": names if remove else []})

        @app.command()
        def status(name: NameOption = None, as_json: JsonOption = False) -> None:
            """Show the servers that you started and their addresses.

            Exit status 1 if none runs, 3 if the server that the environment names does not answer.
            `url` in the JSON is the address to use.
            """
            answer = self.configured() if name is None else None
            servers = [_server(one) for one in instances.known(kind, name)]
            running = [one for one in servers if one["running"]]
            nothing = {"running": False, "url": None}
            found = _answer(answer) if answer else running[0] if running else nothing
            _emit(as_json, {**found, "servers": servers})
            if answer is not None and answer.problem is not None:
                raise ServiceError(answer.problem)
            if answer is None and not running:
                raise CheckFailedError(
                    f"{name or kind} does not run here; start one with cogr-ops {self.group} start"
                    f"{f' --name {name}' if name else ''}."
                )

        return app


def _answer(answer: Answer) -> dict[str, Any]:
    running = answer.problem is None
    shown = {"running": running, "local": False, "url": answer.url, "version": answer.version}
    return shown if running else {**shown, "problem": answer.problem}


def _server(state: ServerState) -> dict[str, Any]:
    more = {"pid": state.pid, "folder": state.folder, "log": state.log}
    shown = state.model_dump(include={"name", "version", "url"})
    return {"running": state.running, "local": True, **shown, **more}


OPENSEARCH = Kind(
    "opensearch",
    URL_VARIABLE,
    OpenSearchSpec,
    opensearch_answer,
    "cogr-index rebuild --side item --set opensearch.url=",
)
REDIS = Kind(
    "redis", "COGR_REDIS__URL", ValkeySpec, redis_answer, "cogr-ops worker --set redis.url="
)
opensearch_app = OPENSEARCH.commands("A local single-node OpenSearch for development and tests.")
redis_app = REDIS.commands(
    "A local Valkey, the broker of rebuilds on workers, for development and tests."
)


@opensearch_app.command("start")
def start_opensearch(
    version: Annotated[
        str | None,
        Option(help=f"OpenSearch version, such as 2.19.5.  [default: {DEFAULT_VERSION}]"),
    ] = None,
    name: NameOption = None,
    port: PortOption = None,
    heap: Annotated[str, Option(help="Java heap, such as 512m or 2g.")] = "512m",
    as_json: JsonOption = False,
) -> None:
    """Start a server and wait until it works.

    Does nothing when it runs already, or when COGR_OPENSEARCH_URL is set.
    """
    wanted = OpenSearchSpec(version=version, name=name, port=port, heap=heap)
    OPENSEARCH.start(wanted, as_json=as_json)


@redis_app.command("start")
def start_redis(
    name: NameOption = None, port: PortOption = None, as_json: JsonOption = False
) -> None:
    """Start a server and wait until it answers.

    Does nothing when it runs already, or when COGR_REDIS__URL is set.
    """
    REDIS.start(ValkeySpec(name=name, port=port), as_json=as_json)
