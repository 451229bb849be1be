"""`cogr-ops wait`: wait until the services of the configuration answer, and say which ones are
awaited. Starts nothing.

For the start of a container: a database or a store that comes up later than this process is no
error. A setting that is wrong is one, at once: the configuration of a running process doesn't
change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from cogr.errors import ServiceError
from indexers.cli import console
from indexers.cli.options import ConfigOption, SetOption

if TYPE_CHECKING:
    from cogr.settings import Settings

SECONDS_BETWEEN_LOOKS = 2.0


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
    """Wait until OpenSearch (opensearch.url) and Redis (redis.url) answer, as far as they are set;
    status 3 if they don't.
    """
    from cogr.settings import load_settings

    settings = load_settings(config, set_ or [])
    deadline = time.monotonic() + timeout
    for name, probe in probes(settings, for_ or list(ServiceName)):
        _wait_for(name, probe, deadline)


def probes(
    settings: Settings, wanted: Sequence[ServiceName]
) -> list[tuple[str, Callable[[], str | None]]]:
    """What to wait for: a name, and a call that returns what is wrong (None when nothing is)."""
    found: list[tuple[str, Callable[[], str | None]]] = []
    if settings.opensearch.url and ServiceName.opensearch in wanted:
        found.append(("OpenSearch", lambda: _opensearch(settings)))
    if settings.redis.url and ServiceName.redis in wanted:
        found.append(("Redis", lambda: _redis(settings)))
    return found


def _wait_for(name: str, probe: Callable[[], str | None], deadline: float) -> None:
    said = None
    while (problem := probe()) is not None:
        if problem != said:
            console.note(f"Waiting for {name}: {problem}")
            said = problem
        if time.monotonic() > deadline:
            raise ServiceError(f"{name} did not answer in time: {problem}")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    console.note(f"{name} answers.")


def _opensearch(settings: Settings) -> str | None:
    from indexers.backends.opensearch.client import Cluster

    # One short try a look: waiting is this command's own business.
    cluster = Cluster(settings.opensearch.model_copy(update={"timeout": 5.0}))
    try:
        _ = cluster.version
    except ServiceError as error:
        return str(error)
    finally:
        cluster.close()
    return None


def _redis(settings: Settings) -> str | None:
    from indexers.fleet.broker import server_version

    try:
        server_version(settings.redis)
    except ServiceError as error:
        return str(error)
    return None
