"""A local single-node OpenSearch: start, status, stop. For development and tests, never for
production.

The node listens on 127.0.0.1 only. The distribution is shared and read-only; all that a node writes
lies in its own folder.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cogr.errors import ServiceError, UserError
from cogr.progress import Say
from cogr.settings import OpenSearchSettings
from ops.servers import instances
from ops.servers.account import Account
from ops.servers.distribution import Distribution, find_distribution, variant, without_modules
from ops.servers.folders import require_free
from ops.servers.instances import Making, Place, Started, begin, known, quiet
from ops.servers.instances import stop as stop
from ops.servers.java import Java, Needed, find_java
from ops.servers.node import Node, ports_file
from ops.servers.process import last_words
from ops.servers.security import (
    SECURITY_VERSION,
    add_security,
    ca_file,
    credentials_file,
    read_credentials,
    with_security,
)
from ops.servers.state import ServerState, write_state

if TYPE_CHECKING:
    from indexers.backends.opensearch.client import Cluster

KIND = "opensearch"
DEFAULT_VERSION = "3.8.0"
LEAST_JAVA = 21
"""What OpenSearch 3.x is compiled for."""
PREFERRED_PORT = 9200
START_SECONDS = 300.0
DATA_BYTES = 300_000_000
"""Free disk that a node wants before it starts."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to start.

    Attributes:
        version: None takes the default (or what COGR_OPENSEARCH_HOME has).
        name: None takes opensearch-<version>, with -secure for a secured one.
        port: None takes the one that it had, else 9200, if free, else any free one; 0 takes any
            free one.
        heap: Java's heap, such as 512m or 2g.
        data: None takes a folder below the server's own.
        security: TLS and users by the security plugin (3.4.0 only).
        brief: compile less: it is up in half the time and slower afterwards; for tests.
        bound_to_caller: a later `reap_orphans` stops and removes it when this process is gone.
    """

    version: str | None = None
    name: str | None = None
    port: int | None = None
    heap: str = "512m"
    data: Path | None = None
    security: bool = False
    brief: bool = False
    bound_to_caller: bool = False

    def __post_init__(self) -> None:
        if self.version is not None and not re.fullmatch(r"\d+\.\d+\.\d+", self.version):
            raise UserError(
                f"{self.version!r} is no OpenSearch version; give one like {DEFAULT_VERSION} or "
                "2.19.5."
            )
        if not re.fullmatch(r"[1-9]\d*[mg]", self.heap):
            raise UserError(f"{self.heap!r} is no heap size; give one like 512m or 2g.")
        if self.security and self.version not in (None, SECURITY_VERSION):
            raise UserError(
                f"The security plugin is there for OpenSearch {SECURITY_VERSION} only; leave "
                "--version out."
            )

    @property
    def default_version(self) -> str:
        return SECURITY_VERSION if self.security else DEFAULT_VERSION

    @property
    def server_name(self) -> str:
        version = self.version or self.default_version
        return self.name or f"{KIND}-{version}{'-secure' if self.security else ''}"


def start(wanted: Wanted, say: Say = quiet) -> Started:
    """Start a node and wait until it works; the running one when there is one of this name.

    Raises:
        UserError: something is missing or wrong on this machine (Java, Maven, disk, port, rights).
        ServiceError: the node did not come up; the message names its log.
    """
    making = Making(
        KIND,
        wanted.port,
        PREFERRED_PORT,
        refuse=lambda state: _refuse_difference(state, wanted),
        launch=lambda place: _launch(wanted, place, say),
        finish=lambda state: _finish(state, say),
    )
    return instances.start(wanted.server_name, say, making)


def _refuse_difference(state: ServerState, wanted: Wanted) -> None:
    """Raise UserError when the running server of this name is not what was asked for."""
    port = state.port
    differs = None
    if wanted.version not in (None, state.version):
        differs = f"as OpenSearch {state.version}, not {wanted.version}"
    elif wanted.security != (state.ca_file is not None):
        differs = "without the security plugin" if wanted.security else "with the security plugin"
    elif wanted.port and port is not None and wanted.port != port:
        differs = f"on port {port}, not {wanted.port}"
    elif wanted.data is not None and wanted.data.absolute() != state.data:
        differs = f"on the data in {state.data}"
    if differs is not None:
        raise UserError(f"{state.name} runs already {differs}; stop it or give another --name.")


def _launch(wanted: Wanted, place: Place, say: Say) -> ServerState:
    """Prepare a node, start its process, and remember it."""
    folder, servers, account = place.folder, place.servers, place.account
    require_free(servers, DATA_BYTES, f"Starting {wanted.server_name}")
    distribution, java = _find(wanted, servers, account, say)
    data = (wanted.data or folder / "data").absolute()
    node = Node(wanted.server_name, folder, data, distribution, java, account, wanted.security)
    node.prepare(place.port)
    if node.security:
        add_security(node)
    node.hand_over()
    say(f"Starting OpenSearch {distribution.version} with Java {java.major} ...")
    return begin(
        node.command,
        environment=node.environment(wanted.heap, brief=wanted.brief),
        cwd=folder,
        account=account,
        bound_to_caller=wanted.bound_to_caller,
        log=node.log,
        kind=KIND,
        name=node.name,
        version=distribution.version,
        folder=folder,
        data=data,
        java=str(java.home),
        ca_file=ca_file(folder) if node.security else None,
        credentials_file=credentials_file(folder) if node.security else None,
    )


def _find(wanted: Wanted, servers: Path, account: Account, say: Say) -> tuple[Distribution, Java]:
    """The distribution in the variant that the Java runtime and the wish for security call for."""
    distribution = find_distribution(wanted.version, wanted.default_version, servers, say)
    java = find_java(_needed_java(distribution.version), account, servers)
    # A trimmed runtime lacks the locale data of the Thai analyzer, without which no index can be
    # created.
    if java.trimmed and (distribution.home / "modules" / "analysis-common").exists():
        distribution = variant(distribution, "trimmed", without_modules("analysis-common"), servers)
    if wanted.security:
        distribution = with_security(distribution, servers, say)
    return distribution, java


def _needed_java(version: str) -> Needed:
    """2.x needs the security manager, which Java 24 removed."""
    if version.startswith("2."):
        return Needed(f"OpenSearch {version}", 11, 23)
    return Needed(f"OpenSearch {version}", LEAST_JAVA)


def _finish(state: ServerState, say: Say) -> ServerState:
    """Wait until the node works and remember its address."""
    began = time.monotonic()
    deadline = began + START_SECONDS
    port = _wait_for_port(state, deadline)
    # The demo certificates name localhost, not its address.
    url = f"https://localhost:{port}" if state.ca_file else f"http://127.0.0.1:{port}"
    ready = state.model_copy(update={"url": url})
    _wait_until_working(ready, deadline)
    write_state(ready)
    say(f"{state.name} is ready after {time.monotonic() - began:.1f} s.")
    return ready


def _wait_for_port(state: ServerState, deadline: float) -> int:
    ports = ports_file(state.folder)
    while True:
        if ports.exists() and (lines := ports.read_text().split()):
            return int(lines[0].rsplit(":", 1)[1])
        if not state.running:
            raise ServiceError(
                f"OpenSearch {state.version} ended while starting: {last_words(state.log)} The "
                f"log is {state.log}."
            )
        if time.monotonic() > deadline:
            raise ServiceError(
                f"OpenSearch {state.version} does not listen after {START_SECONDS:.0f} s; the "
                f"log is {state.log}."
            )
        time.sleep(0.1)


def _wait_until_working(state: ServerState, deadline: float) -> None:
    """Cluster health, then an index created and deleted again."""
    from indexers.backends.opensearch.client import Cluster

    cluster = Cluster(connection(state))
    try:
        while True:
            try:
                _try_index(cluster, f"/cogr-ready-{state.pid}")
                return
            except ServiceError as error:
                # The security plugin answers 503 until it has read its users.
                if time.monotonic() > deadline or not state.running:
                    raise ServiceError(f"{error} The log is {state.log}.") from error
                time.sleep(0.5)
    finally:
        cluster.close()


def _try_index(cluster: Cluster, index: str) -> None:
    body = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}}
    cluster.call(
        "GET", "/_cluster/health", doing="waiting for it", params={"wait_for_status": "yellow"}
    )
    cluster.call("PUT", index, doing="trying an index", body=body, exists_ok=True)
    cluster.call("DELETE", index, doing="trying an index", missing_ok=True)


def connection(state: ServerState, **more: Any) -> OpenSearchSettings:
    """Settings that reach a server, its credentials included.

    Args:
        more: further settings, such as prefix="test".
    """
    values: dict[str, Any] = {"url": state.url}
    if state.credentials_file is not None:
        credentials = read_credentials(state.credentials_file)
        values |= {
            key.removeprefix("COGR_OPENSEARCH__").lower(): value
            for key, value in credentials.items()
        }
    return OpenSearchSettings.model_validate(values | more)


def status(name: str | None = None, *, stopped: bool = False) -> list[ServerState]:
    """All nodes that were started and, where asked, stopped (or the one of a name), the latest
    first.
    """
    return known(KIND, name, stopped=stopped)


def reap_orphans() -> None:
    """Stop and remove the nodes whose owner process is gone, such as a test session that was
    killed.
    """
    instances.reap_orphans(KIND)
