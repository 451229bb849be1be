"""The servers that the user has named by settings, if any: then no local one is needed.

Only asks, changes nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cogr.errors import CogrError
from cogr.settings import DEFAULT_FILE, OpenSearchSettings, load_settings, table_of_environment
from cogr.settings.fleet import RedisSettings


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said: its version, or why there is none."""

    url: str
    version: str | None = None
    problem: str | None = None


def from_environment() -> OpenSearchSettings | None:
    """The cluster of COGR_OPENSEARCH_URL or COGR_OPENSEARCH__URL; None when neither is set.

    Raises:
        SettingsError: one of the COGR_OPENSEARCH__ variables has a wrong value.
    """
    found: OpenSearchSettings | None = table_of_environment("opensearch")
    return found


def redis_from_environment() -> RedisSettings | None:
    """The broker of COGR_REDIS__URL; None when it is not set.

    Raises:
        SettingsError: one of the COGR_REDIS__ variables has a wrong value.
    """
    found: RedisSettings | None = table_of_environment("redis")
    return found


def from_settings(config: Path | None) -> OpenSearchSettings | None:
    """The cluster of the configuration file, where there is one, and of the environment; None when
    no URL is set.
    """
    if config is None and "COGR_CONFIG" not in os.environ and not Path(DEFAULT_FILE).exists():
        return from_environment()
    settings = load_settings(config).opensearch
    return settings if settings.url else None


def ask(settings: OpenSearchSettings) -> Answer:
    """Ask a cluster for its version."""
    from indexers.backends.opensearch.client import Cluster

    url = str(settings.url)
    try:
        cluster = Cluster(settings)
        try:
            return Answer(url, version=cluster.version.text)
        finally:
            cluster.close()
    except CogrError as error:
        return Answer(url, problem=str(error))
