"""Real servers for tests, started lazily, once a session, by the code of `cogr-ops opensearch start` and `redis start`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cogr.errors import CogrError
from cogr.fleet_settings import RedisSettings
from cogr.settings import OpenSearchSettings
from ops.servers import valkey as valkey_servers
from ops.servers.opensearch import Wanted, connection, reap_orphans, start, stop


def _node(version: str, *, security: bool = False) -> Iterator[OpenSearchSettings]:
    """Settings that reach a node of this session's own; it goes with the session, data included."""
    name = f"tests-{os.getpid()}-{version}"
    wanted = Wanted(version=version, name=name, port=0, security=security, brief=True, bound_to_caller=True)
    try:
        reap_orphans()
        started = start(wanted)
    except CogrError as error:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(f"No OpenSearch {version} for the tests: {error}")
        pytest.skip(f"NO OPENSEARCH {version}: {error}")
    yield connection(started.state)
    stop(started.state, remove=True)


@pytest.fixture(scope="session")
def opensearch() -> Iterator[OpenSearchSettings]:
    """OpenSearch 3.8.0, one node, no authentication."""
    yield from _node("3.8.0")


@pytest.fixture(scope="session")
def opensearch_2() -> Iterator[OpenSearchSettings]:
    """OpenSearch 2.19.5, one node, no authentication."""
    yield from _node("2.19.5")


@pytest.fixture(scope="session")
def opensearch_secure() -> Iterator[OpenSearchSettings]:
    """OpenSearch 3.4.0 with the security plugin: TLS, basic authentication; the settings hold user, password and CA file."""
    yield from _node("3.4.0", security=True)


@pytest.fixture(scope="session")
def valkey() -> Iterator[RedisSettings]:
    """A Valkey of this session's own, no password."""
    wanted = valkey_servers.Wanted(name=f"tests-{os.getpid()}-valkey", port=0, bound_to_caller=True)
    try:
        valkey_servers.reap_orphans()
        started = valkey_servers.start(wanted)
    except CogrError as error:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(f"No Valkey for the tests: {error}")
        pytest.skip(f"NO VALKEY: {error}")
    yield valkey_servers.connection(started.state)
    valkey_servers.stop(started.state, remove=True)
