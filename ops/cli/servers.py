"""`cogr-ops opensearch` and `cogr-ops redis`: start, stop and status of local servers. What start
does is in `ops.servers`. `cogr-ops wait` waits until the services that settings name answer: those
of a container may start later than it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal

import typer
from typer import Option

from cogr.errors import CheckFailedError, CogrError, ServiceError, UserError
from cogr.settings import URL_VARIABLE, load_settings, table_of_environment
from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import OpenSearchSettings
from indexers.cli import console
from indexers.cli.console import Call, JsonOption, common_options
from indexers.tables import show_all
from ops.servers import instances
from ops.servers.instances import ServerSpec, ServerState
from ops.servers.opensearch import DEFAULT_VERSION, OpenSearchSpec
from ops.servers.valkey import ValkeySpec

SECONDS_BETWEEN_TRIES = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a service: its version, or why there is none."""

    url: str
    version: str | None = None
    problem: str | None = None


def opensearch_version(settings: OpenSearchSettings) -> str:
    """The version of a cluster. Raises CogrError."""
    from indexers.backends.opensearch.client import Cluster

    cluster = Cluster(settings)
    try:
        return cluster.version.text
    finally:
        cluster.close()


def _asked(url: str, ask: Callable[[], str]) -> Answer:
    try:
        return Answer(url, version=ask())
    except CogrError as error:
        return Answer(url, problem=str(error))


def opensearch_answer(settings: OpenSearchSettings | None) -> Answer | None:
    """What a cluster says; None if the settings name none."""
    if settings is None or not settings.url:
        return None
    return _asked(str(settings.url), partial(opensearch_version, settings))


def redis_answer(settings: RedisSettings | None) -> Answer | None:
    """What a broker says; None if the settings name none."""
    from indexers.fleet.broker import printable, server_version

    if settings is None or not settings.url:
        return None
    return _asked(printable(settings), partial(server_version, settings))


class ServiceName(StrEnum):
    """Services to wait for, as choices of an option."""

    opensearch = "opensearch"
    redis = "redis"


@common_options(backend=False, json=False)
def wait(
    for_: Annotated[
        list[ServiceName] | None,
        Option("--for", help="Only for this one; repeatable.  [default: both]"),
    ] = None,
    timeout: Annotated[float, Option(min=0, help="Seconds after which it gives up.")] = 600.0,
    *,
    call: Call,
) -> None:
    """Wait until OpenSearch (opensearch.url) and Redis (redis.url) answer, if their settings are
    set; exit status 3 if they don't answer in time.
    """
    from indexers.fleet.broker import server_version

    settings, deadline = load_settings(call.config, call.overrides), time.monotonic() + timeout
    wanted = for_ or list(ServiceName)
    if settings.opensearch.url and ServiceName.opensearch in wanted:
        _wait_for("OpenSearch", partial(opensearch_version, settings.opensearch), deadline)
    if settings.redis.url and ServiceName.redis in wanted:
        _wait_for("Redis", partial(server_version, settings.redis), deadline)


def _wait_for(name: str, ask: Callable[[], str], deadline: float) -> None:
    said = ""
    while True:
        try:
            ask()
            break
        except ServiceError as error:
            if str(error) != said:
                said = str(error)
                console.note(f"Waiting for {name}: {said}")
            if time.monotonic() > deadline:
                raise ServiceError(f"{name} did not answer in time: {said}") from error
        time.sleep(SECONDS_BETWEEN_TRIES)
    console.note(f"{name} answers.")


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
