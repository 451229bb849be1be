"""`cogr-ops serve`, `backlog` and `worker`: options of the processes that serve until they are
stopped, the query expander and the workers of distributed rebuilds; and `cogr-ops wait`, which
waits until the OpenSearch and the Redis of the settings answer.

The work itself is in `ops.expander` and `indexers.fleet`. `wait` is for the start of a container: a
service that comes up later than this process is no error. A wrong setting is one, at once: the
configuration of a running process doesn't change.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cogr.errors import CogrError, MissingExtraError, ServiceError, SettingsError
from cogr.records import SIDES
from cogr.settings import DEFAULT_FILE, OpenSearchSettings, load_settings, table_of_environment
from indexers.cli import console
from indexers.cli.console import (
    Call,
    ConfigOption,
    GeneratorOption,
    SetOption,
    VerboseOption,
    common_options,
    set_verbosity,
)

if TYPE_CHECKING:
    from cogr.settings import Settings
    from indexers.workspace import Workspace

PAUSE = 10.0
"""Seconds between two looks at the backlog."""


def serve(
    host: Annotated[str | None, typer.Option("--host", help="Overrides serving.host.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Overrides serving.port.")
    ] = None,
    playground: Annotated[
        bool,
        typer.Option(
            "--playground",
            help="Also serve a page at /playground that shows what keywords do to a search.",
        ),
    ] = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Answer queries with keywords and a ready OpenSearch clause over HTTP, within a deadline, even
    if Redis, OpenSearch or the model fails.

    Also starts without any configuration: then a query's only keyword is the query itself. SIGTERM
    or Ctrl-C ends it.
    """
    set_verbosity(verbose)
    check_installed()
    overrides = [*(set_ or []), *([f"serving.host={host}"] if host else [])]
    workspace = open_workspace(
        config, [*overrides, *([f"serving.port={port}"] if port is not None else [])]
    )
    run(workspace, playground=playground)


@common_options()
def backlog(
    call: Call,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Most queries to answer.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep running, and look again every 10 seconds.")
    ] = False,
) -> None:
    """Write keywords for the queries that the expander could not answer in time, with the
    configuration's generator.

    They go into the cache that the expander reads, for the pair of snapshots that serves.
    """
    check_installed()
    from indexers.cli.reports import facts
    from ops.expander.redis_cache import work_off

    done = work_off(call.workspace, limit, console.note)
    while follow:
        time.sleep(PAUSE)
        done = work_off(call.workspace, limit, console.note)
    payload = {"answered": done.answered, "without_keywords": done.without}
    call.emit(payload, lambda out: facts(out, "Backlog", payload))


def check_installed() -> None:
    """Raise MissingExtraError when a package of the extra `serve` is missing."""
    from ops.cli.doctor import EXTRAS

    if any(importlib.util.find_spec(name) is None for name in EXTRAS["serve"]):
        raise MissingExtraError("The query expander", "serve")


def open_workspace(config: ConfigOption, overrides: list[str]) -> Workspace:
    """The configuration; without one, an empty one. Raises SettingsError."""
    from cogr.settings import load_settings
    from indexers.workspace import Workspace

    nothing = {"dataset": {"loader": "jsonl"}, "serving": {"live": "none"}}
    return Workspace(load_settings(config, overrides, otherwise=nothing))


def run(workspace: Workspace, *, playground: bool = False) -> None:
    """Serve until told to end.

    Args:
        workspace: what to serve.
        playground: also serve `ops.playground`.

    Raises:
        ServiceError: the address can't be listened on.
        KeyboardInterrupt: told by Ctrl-C.
    """
    import uvloop

    from ops.expander.http_server import free_address

    address = free_address(workspace.settings.serving)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(workspace, address, playground))


async def _serve(workspace: Workspace, address: tuple[str, int], playground: bool) -> None:
    from ops.expander.app import create_app
    from ops.expander.expander import make_parts
    from ops.expander.http_server import serve

    parts = make_parts(workspace)
    app = create_app(parts, playground=playground)
    if playground:
        from ops.playground.app import add_playground

        add_playground(app, workspace, parts)
    # What lives as long as the process need not be looked through at each collection of garbage.
    gc.collect()
    gc.freeze()
    told: set[signal.Signals] = set()

    def begun(end: Callable[[], None]) -> None:
        def stop(by: signal.Signals) -> None:
            told.add(by)
            end()

        for one in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(one, stop, one)
        host, port = address
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        console.note(f"Expanding queries at {url}/expand")
        if playground:
            console.note(f"The playground is at {url}/playground/")

    await serve(app, address, begun)
    if signal.SIGINT in told:
        raise KeyboardInterrupt


class SideName(StrEnum):
    """The sides, as an option that is repeatable takes them."""

    query = "query"
    item = "item"


def worker(
    side: Annotated[
        list[SideName] | None,
        typer.Option("--side", help="Serve only this side; repeatable.  [default: both]"),
    ] = None,
    generator: GeneratorOption = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name in cogr-index status.  [default: host-process]"),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Generate keywords for rebuilds on workers (cogr-index rebuild --workers celery). Start one
    for each GPU.

    Needs the configuration and the store of the coordinator. SIGTERM or Ctrl-C ends it between two
    answers; nothing is lost.
    """
    from indexers.fleet.broker import printable, queue_of
    from indexers.fleet.worker import serve
    from indexers.telemetry import observe, prometheus, traces
    from indexers.workspace import Workspace

    set_verbosity(verbose)
    workspace = Workspace.open(config, set_)
    observe(workspace.settings, "cogr-worker")
    prometheus.serve(workspace.settings.metrics)
    chosen = side or SIDES
    sides = [known for known in SIDES if known in chosen]
    queues = [queue_of(one, workspace.generator_settings(one, generator)) for one in sides]
    if not workspace.settings.redis.url:
        raise SettingsError(
            "A worker needs a broker: run cogr-ops redis start, then set redis.url or "
            "COGR_REDIS__URL."
        )
    console.note(
        f"Waiting for shards of {' and '.join(sides)} from {printable(workspace.settings.redis)}."
    )
    if serve(workspace, queues, name=name):
        console.note("Starting anew: the next shard is for another model.")
        traces.stop()
        os.execv(sys.executable, sys.orig_argv)


SECONDS_BETWEEN_TRIES = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a service said: its version, or why there is none."""

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


def answer_of(url: str, ask: Callable[[], str]) -> Answer:
    """What a service at this URL says when it is asked for its version."""
    try:
        return Answer(url, version=ask())
    except CogrError as error:
        return Answer(url, problem=str(error))


def answer_of_opensearch(settings: OpenSearchSettings | None) -> Answer | None:
    """What a cluster says; None where none is named."""
    if settings is None or not settings.url:
        return None
    return answer_of(str(settings.url), partial(opensearch_version, settings))


def opensearch_of_environment() -> Answer | None:
    """What the cluster of COGR_OPENSEARCH_URL or COGR_OPENSEARCH__URL says; None when neither is
    set.

    Raises:
        SettingsError: one of the COGR_OPENSEARCH__ variables has a wrong value.
    """
    return answer_of_opensearch(table_of_environment("opensearch"))


def opensearch_of_settings(config: Path | None) -> Answer | None:
    """What the cluster of the configuration file, where there is one, and of the environment says;
    None when no URL is set. Raises SettingsError.
    """
    if config is None and "COGR_CONFIG" not in os.environ and not Path(DEFAULT_FILE).exists():
        return opensearch_of_environment()
    return answer_of_opensearch(load_settings(config).opensearch)


def redis_of_environment() -> Answer | None:
    """What the broker of COGR_REDIS__URL says; None when it is not set.

    Raises:
        SettingsError: one of the COGR_REDIS__ variables has a wrong value.
    """
    from indexers.fleet.broker import printable, server_version

    settings = table_of_environment("redis")
    if settings is None:
        return None
    return answer_of(printable(settings), partial(server_version, settings))


class ServiceName(StrEnum):
    """What can be waited for, as an option's choices."""

    opensearch = "opensearch"
    redis = "redis"


def wait(
    for_: Annotated[
        list[ServiceName] | None,
        typer.Option("--for", help="Only for this one; repeatable.  [default: both]"),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds after which it gives up.")
    ] = 600.0,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Wait until OpenSearch (opensearch.url) and Redis (redis.url) answer, if their settings are
    set; exit status 3 if they don't answer in time.
    """
    settings = load_settings(config, set_ or [])
    deadline = time.monotonic() + timeout
    for name, ask in services(settings, for_ or list(ServiceName)):
        _wait_for(name, ask, deadline)


def services(
    settings: Settings, wanted: Sequence[ServiceName]
) -> list[tuple[str, Callable[[], str]]]:
    """What to wait for: a name, and a call that raises ServiceError while it does not answer."""
    from indexers.fleet.broker import server_version

    found: list[tuple[str, Callable[[], str]]] = []
    if settings.opensearch.url and ServiceName.opensearch in wanted:
        # One short try each time: waiting is this command's own business.
        brief = settings.opensearch.model_copy(update={"timeout": 5.0})
        found.append(("OpenSearch", partial(opensearch_version, brief)))
    if settings.redis.url and ServiceName.redis in wanted:
        found.append(("Redis", partial(server_version, settings.redis)))
    return found


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
