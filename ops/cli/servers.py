"""`cogr-ops opensearch` and `cogr-ops redis`: start, stop and status of local servers. What start
does is in `ops.servers`. `cogr-ops wait` waits until the services that settings name answer: those
of a container may start later than it does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal

import typer
from typer import Option

from cogr.errors import CheckFailedError, ServiceError, masked
from cogr.settings import URL_VARIABLE, load_settings
from cogr.settings.serving import OpenSearchSettings
from indexers.cli import console
from indexers.cli.console import Call, JsonOption, common_options
from indexers.tables import show_all
from ops import servers
from ops.servers import DEFAULT_VERSION, OpenSearchSpec, ServerSpec, ServerState, ValkeySpec

SECONDS_BETWEEN_TRIES = 2.0
_NAMED_BY = {
    "opensearch": ("COGR_OPENSEARCH__URL", URL_VARIABLE),
    "redis": ("COGR_REDIS__URL",),
}


def opensearch_version(settings: OpenSearchSettings) -> str:
    """The version of a cluster. Raises CogrError."""
    from indexers.backends.opensearch.client import Cluster

    cluster = Cluster(settings)
    try:
        return cluster.version.text
    finally:
        cluster.close()


class Service(StrEnum):
    """Services to wait for, as choices of an option."""

    opensearch = "opensearch"
    redis = "redis"


@common_options(backend=False, json=False)
def wait(
    timeout: Annotated[float, Option(min=0, help="Seconds after which it gives up.")] = 600.0,
    for_: Annotated[
        list[Service] | None, Option("--for", help="Only for this one; repeatable.")
    ] = None,
    *,
    call: Call,
) -> None:
    """Wait until OpenSearch (opensearch.url) and Redis (redis.url) answer, if their settings are
    set; exit status 3 if they don't answer in time.
    """
    from indexers.fleet.broker import server_version

    settings, deadline = load_settings(call.config, call.overrides), time.monotonic() + timeout
    wanted = for_ or list(Service)
    if settings.opensearch.url and Service.opensearch in wanted:
        _wait_for("OpenSearch", partial(opensearch_version, settings.opensearch), deadline)
    if settings.redis.url and Service.redis in wanted:
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


def _emit(as_json: bool, payload: dict[str, Any]) -> None:
    console.emit(as_json, payload, lambda out: show_all(out, "", payload))


def _shown(state: ServerState) -> dict[str, Any]:
    names = ("running", "name", "version", "url", "pid", "folder", "log")
    return {name: getattr(state, name) for name in names}


def _start(
    group: Literal["opensearch", "redis"], wanted: ServerSpec, as_json: bool, next_: str
) -> None:
    named = (os.environ.get(name) for name in _NAMED_BY[group])
    if url := next(filter(None, named), None):
        console.note("The environment names a server: nothing is started.")
        _emit(as_json, {"url": masked(url)})
        return
    state = servers.start(wanted, console.note)
    _emit(as_json, _shown(state))
    console.next_command(f"{next_}{state.url}")


def _commands(group: str, kind: str, help_: str) -> typer.Typer:
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

    @app.command()
    def status(as_json: JsonOption = False) -> None:
        """Show the servers that you started and their addresses.

        Exit status 1 if none runs.
        """
        found = [_shown(one) for one in servers.known(kind)]
        _emit(as_json, {"servers": found})
        if not any(one["running"] for one in found):
            raise CheckFailedError(
                f"No {kind} of yours runs here; start one with cogr-ops {group} start."
            )

    return app


opensearch_app = _commands(
    "opensearch", "opensearch", "A local single-node OpenSearch for development and tests."
)
redis_app = _commands(
    "redis",
    "valkey",
    "A local Valkey, the broker of rebuilds on workers, for development and tests.",
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

    Does nothing when it runs already, or when COGR_OPENSEARCH_URL is set.
    """
    wanted = OpenSearchSpec(version=version, name=name, port=port)
    next_ = "cogr-index rebuild --side item --set opensearch.url="
    _start("opensearch", wanted, as_json, next_)


@redis_app.command("start")
def start_redis(
    name: NameOption = None, port: PortOption = None, as_json: JsonOption = False
) -> None:
    """Start a server and wait until it answers.

    Does nothing when it runs already, or when COGR_REDIS__URL is set.
    """
    next_ = "cogr-ops worker --set redis.url="
    _start("redis", ValkeySpec(name=name, port=port), as_json, next_)
