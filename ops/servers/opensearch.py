"""A local single-node OpenSearch: start, status, stop. For development and tests, never for production.

The node listens on 127.0.0.1 only. The distribution is shared and read-only; all that a node writes lies in its own folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cogr.errors import ServiceError, UserError
from ops.servers.account import Account, service_account
from ops.servers.distribution import Distribution, Say, find_distribution, variant, without_modules
from ops.servers.folders import instance_folder, locked, require_free, servers_folder
from ops.servers.java import Java, Needed, find_java
from ops.servers.process import current_process, end, last_words, spawn
from ops.servers.state import ServerState, drop_state, read_state, states, write_state

KIND = "opensearch"
DEFAULT_VERSION = "3.8.0"
PREFERRED_PORT = 9200
START_SECONDS = 180.0
DATA_BYTES = 300_000_000
"""Free disk that a node wants before it starts."""

LOG4J = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %marker%m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to start.

    Attributes:
        version: None takes the default (or what COGR_OPENSEARCH_HOME has).
        name: None takes opensearch-<version>.
        port: None takes 9200 if it is free, else any free one; 0 takes any free one.
        heap: Java's heap, such as 512m or 2g.
        data: None takes a folder below the server's own.
        bound_to_caller: a later `reap_orphans` stops it when this process is gone.
    """

    version: str | None = None
    name: str | None = None
    port: int | None = None
    heap: str = "512m"
    data: Path | None = None
    bound_to_caller: bool = False

    def __post_init__(self) -> None:
        if self.version is not None and not re.fullmatch(r"\d+\.\d+\.\d+", self.version):
            raise UserError(f"{self.version!r} is no OpenSearch version; give one like {DEFAULT_VERSION} or 2.19.5.")
        if not re.fullmatch(r"[1-9]\d*[mg]", self.heap):
            raise UserError(f"{self.heap!r} is no heap size; give one like 512m or 2g.")


@dataclass(frozen=True, slots=True)
class Started:
    """A running server, and whether it ran already."""

    state: ServerState
    already: bool = field(default=False)


def _quiet(_: str) -> None:
    """Says nothing."""


def start(wanted: Wanted, say: Say = _quiet) -> Started:
    """Start a node and wait until it works; the running one when there is one of this name.

    Raises:
        UserError: something is missing or wrong on this machine (Java, Maven, disk, port, rights).
        ServiceError: the node did not come up; the message names its log.
    """
    account = service_account()
    servers = servers_folder(account)
    name = wanted.name or f"{KIND}-{wanted.version or DEFAULT_VERSION}"
    folder = instance_folder(servers, name)
    with locked(folder, lambda: say(f"Waiting for another start of {name} ...")):
        state = read_state(folder)
        if state is not None and state.running:
            _refuse_difference(state, wanted)
            return Started(state if state.url else _finish(state, say), already=True)
        if state is not None:
            say(f"The last {name} (process {state.pid}) ended without a stop; starting it again.")
            drop_state(folder)
        return Started(_finish(_launch(wanted, name, folder, servers, account, say), say))


def _refuse_difference(state: ServerState, wanted: Wanted) -> None:
    """A running server of this name must be what was asked for."""
    port = int(state.url.rsplit(":", 1)[1]) if state.url else None
    if wanted.version not in (None, state.version):
        raise UserError(
            f"{state.name} runs OpenSearch {state.version}, not {wanted.version}; stop it or give another --name."
        )
    if wanted.port and port is not None and wanted.port != port:
        raise UserError(f"{state.name} runs already on port {port}, not {wanted.port}; stop it or give another --name.")
    if wanted.data is not None and wanted.data.absolute() != state.data:
        raise UserError(f"{state.name} runs already on the data in {state.data}; stop it or give another --name.")


def _launch(wanted: Wanted, name: str, folder: Path, servers: Path, account: Account, say: Say) -> ServerState:
    """Prepare the folder, start the process, and remember it."""
    port = _choose_port(wanted.port)
    require_free(servers, DATA_BYTES, f"Starting {name}")
    distribution = find_distribution(wanted.version, DEFAULT_VERSION, servers, say)
    java = find_java(_needed_java(distribution.version), account, servers)
    distribution = _fit_to_java(distribution, java, servers)
    data = (wanted.data or folder / "data").absolute()
    _prepare_folder(folder, data, account)
    _write_configuration(folder, data, name, port, distribution, java)
    log = folder / "logs" / "opensearch.log"
    say(f"Starting OpenSearch {distribution.version} with Java {java.major} ...")
    process = spawn(
        [str(distribution.home / "bin" / "opensearch")],
        environment=_environment(folder, java, wanted.heap),
        cwd=folder,
        log=log,
        account=account,
    )
    owner = current_process() if wanted.bound_to_caller else None
    state = ServerState(
        kind=KIND,
        name=name,
        version=distribution.version,
        pid=process.pid,
        birth=process.birth,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        folder=folder,
        data=data,
        log=log,
        java=str(java.home),
        owner_pid=owner.pid if owner else None,
        owner_birth=owner.birth if owner else None,
    )
    write_state(state)
    return state


def _choose_port(wanted: int | None) -> int:
    """The port for the configuration; 0 lets the node take a free one, which can't collide.

    Raises:
        UserError: the wanted port is taken.
    """
    if wanted is None:
        return PREFERRED_PORT if _port_free(PREFERRED_PORT) else 0
    if wanted and not _port_free(wanted):
        raise UserError(f"Port {wanted} of 127.0.0.1 is taken; give another --port, or none for a free one.")
    return wanted


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _needed_java(version: str) -> Needed:
    """3.x is compiled for Java 21; 2.x needs the security manager, which Java 24 removed."""
    if version.startswith("2."):
        return Needed(f"OpenSearch {version}", 11, 23)
    return Needed(f"OpenSearch {version}", 21)


def _fit_to_java(distribution: Distribution, java: Java, servers: Path) -> Distribution:
    """A trimmed runtime lacks the locale data of the Thai analyzer, without which no index can be created."""
    if java.trimmed and (distribution.home / "modules" / "analysis-common").exists():
        return variant(distribution, "trimmed", without_modules("analysis-common"), servers)
    return distribution


def _prepare_folder(folder: Path, data: Path, account: Account) -> None:
    """Create what the node writes into, owned by its account."""
    folder.mkdir(parents=True, exist_ok=True)
    if not data.exists():
        account.own(data)
    if not account.may("w", data):
        raise UserError(
            f"The data folder {data} can't be written by the user {account.name}, as whom OpenSearch runs; change its owner."
        )
    account.own(folder / "config", folder / "logs", folder / "tmp")
    (folder / "logs" / "http.ports").unlink(missing_ok=True)


def _write_configuration(
    folder: Path, data: Path, name: str, port: int, distribution: Distribution, java: Java
) -> None:
    settings = {
        "cluster.name": f"cogr-{name}",
        "node.name": name,
        "path.data": str(data),
        "path.logs": str(folder / "logs"),
        "network.host": "127.0.0.1",
        "http.port": port,
        "transport.port": 0,
        "discovery.type": "single-node",
        # The node writes logs/http.ports once it listens: the port need not be guessed beforehand.
        "node.portsfile": True,
        # A developer's disk is often nearly full; the node would refuse to place an index.
        "cluster.routing.allocation.disk.threshold_enabled": False,
    }
    if distribution.has_plugin("opensearch-security"):
        settings["plugins.security.disabled"] = True
    config = folder / "config"
    # JSON values are YAML values.
    (config / "opensearch.yml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    (config / "log4j2.properties").write_text(LOG4J)
    (config / "jvm.options").write_text(_jvm_options(distribution, java, folder))


def _jvm_options(distribution: Distribution, java: Java, folder: Path) -> str:
    """The distribution's Java options with paths in the server's folder, less those that the runtime can't take."""
    lines = []
    for line in (distribution.home / "config" / "jvm.options").read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line.strip() or "-Xlog:gc" in line or re.match(r"-Xm[sx]", line):
            continue
        if "jdk.incubator.vector" in line and java.trimmed:
            continue
        line = line.replace("-XX:HeapDumpPath=data", f"-XX:HeapDumpPath={folder}/tmp")
        lines.append(line.replace("-XX:ErrorFile=logs/", f"-XX:ErrorFile={folder}/logs/"))
    return "\n".join(lines) + "\n"


def _environment(folder: Path, java: Java, heap: str) -> dict[str, str]:
    """Only what the start script needs: nothing of the caller's environment reaches the node."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder / "tmp"),
        "LANG": "C.UTF-8",
        "OPENSEARCH_JAVA_HOME": str(java.home),
        "OPENSEARCH_JAVA_OPTS": f"-Xms{heap} -Xmx{heap}",
        "OPENSEARCH_PATH_CONF": str(folder / "config"),
        "OPENSEARCH_TMPDIR": str(folder / "tmp"),
    }


def _finish(state: ServerState, say: Say) -> ServerState:
    """Wait until the node works and remember its address; a node that does not come up is ended."""
    deadline = time.monotonic() + START_SECONDS
    began = time.monotonic()
    try:
        port = _wait_for_port(state, deadline)
        ready = state.model_copy(update={"url": f"http://127.0.0.1:{port}"})
        _wait_until_working(ready, deadline)
    except BaseException:
        end(state.process)
        drop_state(state.folder)
        raise
    write_state(ready)
    say(f"{state.name} is ready after {time.monotonic() - began:.1f} s.")
    return ready


def _wait_for_port(state: ServerState, deadline: float) -> int:
    ports = state.folder / "logs" / "http.ports"
    while True:
        if ports.exists() and (lines := ports.read_text().split()):
            return int(lines[0].rsplit(":", 1)[1])
        if not state.running:
            raise ServiceError(
                f"OpenSearch {state.version} ended while starting: {last_words(state.log)} The log is {state.log}."
            )
        if time.monotonic() > deadline:
            raise ServiceError(
                f"OpenSearch {state.version} does not listen after {START_SECONDS:.0f} s; the log is {state.log}."
            )
        time.sleep(0.1)


def _wait_until_working(state: ServerState, deadline: float) -> None:
    """Cluster health, then an index created and deleted again."""
    from opensearchpy import OpenSearch, OpenSearchException

    client = OpenSearch([state.url], timeout=60)
    index = f"cogr-ready-{state.pid}"
    try:
        client.cluster.health(wait_for_status="yellow")
        client.indices.create(index=index, body={"settings": {"number_of_shards": 1, "number_of_replicas": 0}})
        client.indices.delete(index=index)
    except OpenSearchException as error:
        raise ServiceError(
            f"OpenSearch {state.version} listens on {state.url} but creates no index ({error}); the log is {state.log}."
        ) from error
    finally:
        client.close()


def status(name: str | None = None) -> list[ServerState]:
    """All servers that were started and not stopped (or the one of a name), the latest first."""
    servers = servers_folder(service_account())
    return [state for state in states(servers, KIND) if name in (None, state.name)]


def stop(state: ServerState, *, remove: bool = False) -> bool:
    """End the server's process and forget it.

    Args:
        remove: delete its folder too: data, logs, configuration.

    Returns:
        False when it was not running any more.
    """
    with locked(state.folder):
        ended = end(state.process)
        drop_state(state.folder)
        if remove:
            shutil.rmtree(state.folder)
            if state.data.exists():
                shutil.rmtree(state.data)
    return ended


def reap_orphans() -> None:
    """Stop and remove the servers whose owner process is gone, such as a test session that was killed."""
    for state in status():
        if state.orphaned:
            stop(state, remove=True)
