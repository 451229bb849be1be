"""The OpenSearch and the Redis that settings name: whether they answer, and `cogr-ops wait`, which
waits until they do.

`wait` is for the start of a container: a service may start later than this process. A wrong setting
ends it at once: the configuration of a running process doesn't change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated

from typer import Option

from cogr.errors import CogrError, ServiceError
from cogr.settings import OpenSearchSettings, load_settings
from cogr.settings.fleet import RedisSettings
from indexers.cli import console
from indexers.cli.console import Call, common_options

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


def _answer(url: str, ask: Callable[[], str]) -> Answer:
    try:
        return Answer(url, version=ask())
    except CogrError as error:
        return Answer(url, problem=str(error))


def opensearch_answer(settings: OpenSearchSettings | None) -> Answer | None:
    """What a cluster says; None if the settings name none."""
    if settings is None or not settings.url:
        return None
    return _answer(str(settings.url), partial(opensearch_version, settings))


def redis_answer(settings: RedisSettings | None) -> Answer | None:
    """What a broker says; None if the settings name none."""
    from indexers.fleet.broker import printable, server_version

    if settings is None or not settings.url:
        return None
    return _answer(printable(settings), partial(server_version, settings))


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
