"""A local single-node OpenSearch: start, status, stop. For development and tests, never for
production.

The distribution is shared and read-only; all that a node writes lies in its own folder.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from cogr.errors import ServiceError, UserError
from cogr.records import Say
from cogr.settings import OpenSearchSettings
from ops.servers import instances
from ops.servers.instances import Place, ServerState, wait_until
from ops.servers.instances import start as start
from ops.servers.instances import stop as stop
from ops.servers.node import Node, add_security_plugin, ports_file
from ops.servers.programs import ANY_JAVA, Distribution, Java, find_distribution, find_java, variant

KIND = "opensearch"
DEFAULT_VERSION = "3.8.0"
SECURITY_VERSION = "3.4.0"
"""The version whose security plugin Maven Central has."""
LEAST_JAVA = 21
"""What OpenSearch 3.x is compiled for."""
START_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Wanted(instances.Wanted):
    """What to start. Without a name it is opensearch-<version>, with -secure for a secured one.

    Attributes:
        version: None takes the default (or what COGR_OPENSEARCH_HOME has).
        heap: Java's heap, such as 512m or 2g.
        security: TLS and users by the security plugin (3.4.0 only).
        brief: compile less: it is up in half the time and slower afterwards; for tests.
    """

    kind: ClassVar[str] = KIND
    usual_port: ClassVar[int] = 9200
    version: str | None = None
    heap: str = "512m"
    security: bool = False
    brief: bool = False

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

    def difference(self, state: ServerState) -> str | None:
        if self.version not in (None, state.version):
            return f"as OpenSearch {state.version}, not {self.version}"
        if self.security != (state.ca_file is not None):
            return "without the security plugin" if self.security else "with the security plugin"
        return super().difference(state)

    def launch(self, place: Place, say: Say) -> ServerState:
        distribution, java = self._programs(place, say)
        node = Node(place, distribution, java, self.security)
        node.prepare()
        say(f"Starting OpenSearch {distribution.version} with Java {java.major} ...")
        return place.begin(
            [str(distribution.home / "bin" / "opensearch")],
            node.environment(self.heap, brief=self.brief),
            place.folder / "opensearch.log",
            version=distribution.version,
            java=str(java.home),
            ca_file=node.ca_file if self.security else None,
            credentials_file=place.credentials_file if self.security else None,
        )

    def _programs(self, place: Place, say: Say) -> tuple[Distribution, Java]:
        """The distribution, with the plugin where security is asked for, and a Java runtime."""
        found = find_distribution(self.version, self.default_version, place.servers, say)
        # 2.x needs the security manager, which Java 24 removed.
        fits = range(11, 24) if found.version.startswith("2.") else range(LEAST_JAVA, ANY_JAVA)
        java = find_java(f"OpenSearch {found.version}", fits, place.account)
        if self.security:
            add = partial(add_security_plugin, version=found.version, say=say)
            found = variant(found, "security", add, place.servers)
        return found, java

    def finish(self, state: ServerState, say: Say) -> ServerState:
        began = time.monotonic()
        port = wait_until(partial(_listens_on, state), state, START_SECONDS)
        # The demo certificates name localhost, not its address.
        url = f"https://localhost:{port}" if state.ca_file else f"http://127.0.0.1:{port}"
        ready = state.model_copy(update={"url": url})
        wait_until(partial(_try_index, ready), ready, START_SECONDS)
        say(f"{state.name} is ready after {time.monotonic() - began:.1f} s.")
        return ready


def _listens_on(state: ServerState) -> int:
    """The node's port. Raises ServiceError while it does not listen."""
    ports = ports_file(state.folder)
    if not ports.exists() or not (lines := ports.read_text().split()):
        raise ServiceError(
            f"OpenSearch {state.version} does not listen after {START_SECONDS:.0f} s."
        )
    return int(lines[0].rsplit(":", 1)[1])


def _try_index(state: ServerState) -> None:
    """Cluster health, then an index created and deleted again. Raises ServiceError."""
    from indexers.backends.opensearch.client import Cluster

    cluster = Cluster(connection(state))
    index, doing = f"/cogr-ready-{state.pid}", "trying an index"
    body = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}}
    health = {"wait_for_status": "yellow"}
    try:
        cluster.call("GET", "/_cluster/health", doing="waiting for it", params=health)
        cluster.call("PUT", index, doing=doing, body=body, exists_ok=True)
        cluster.call("DELETE", index, doing=doing, missing_ok=True)
    finally:
        cluster.close()


def connection(state: ServerState, **more: Any) -> OpenSearchSettings:
    """Settings that reach a server, its credentials included.

    Args:
        more: further settings, such as prefix="test".
    """
    return OpenSearchSettings.model_validate(state.connection() | more)


status = partial(instances.known, KIND)
"""The nodes that were started here, see `instances.known`."""
reap_orphans = partial(instances.reap_orphans, KIND)
"""Stops and removes those whose owner process is gone."""
