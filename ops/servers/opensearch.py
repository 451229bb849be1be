"""A local single-node OpenSearch: start, status, stop. For development and tests, never for
production.

The distribution is shared and read-only; all that a node writes lies in its own folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, ClassVar

from cogr.errors import ServiceError, UserError
from cogr.records import Say
from cogr.settings import OpenSearchSettings
from ops.servers import instances, programs
from ops.servers.instances import Place, ServerState, wait_until
from ops.servers.instances import start as start
from ops.servers.instances import stop as stop
from ops.servers.programs import Distribution, Java

KIND = "opensearch"
DEFAULT_VERSION = "3.8.0"
SECURITY_PLUGIN = "opensearch-security"
SECURITY_VERSION = "3.4.0"
"""The version whose security plugin Maven Central has."""
LEAST_JAVA = 21
"""What OpenSearch 3.x is compiled for."""
START_SECONDS = 300.0
INSTALL_SECONDS = 120
PORTS_FILE = "logs/http.ports"
"""Where a node writes the address that it listens on, one a line."""
LOG4J = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %marker%m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True, kw_only=True)
class Wanted(instances.Wanted):
    """What to start. Without a name it is opensearch-<version>, with -secure for a secured one.

    Attributes:
        version: None takes the default (or what COGR_OPENSEARCH_HOME has).
        heap: Java's heap, such as 512m or 2g.
        security: TLS and users by the security plugin (3.4.0 only).
        brief: compile without the optimising compiler: it is up in half the time and slower
            afterwards; for tests.
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
        found = programs.find_distribution(self.version, self.default_version, place.servers, say)
        # 2.x needs the security manager, which Java 24 removed.
        fits = (
            range(11, 24)
            if found.version.startswith("2.")
            else range(LEAST_JAVA, programs.ANY_JAVA)
        )
        java = programs.find_java(f"OpenSearch {found.version}", fits, place.account)
        if self.security:
            add = partial(_add_security_plugin, version=found.version, say=say)
            found = programs.variant(found, "security", add, place.servers)
        node = _Node(self, place, found, java)
        node.prepare()
        say(f"Starting OpenSearch {found.version} with Java {java.major} ...")
        return place.begin(
            [str(found.home / "bin" / "opensearch")],
            node.environment(),
            place.folder / "opensearch.log",
            version=found.version,
            java=str(java.home),
            ca_file=node.ca_file if self.security else None,
            credentials_file=place.credentials_file if self.security else None,
        )

    def finish(self, state: ServerState, say: Say) -> ServerState:
        began = time.monotonic()
        port = wait_until(partial(_listens_on, state), state, START_SECONDS)
        # The demo certificates name localhost, not its address.
        url = f"https://localhost:{port}" if state.ca_file else f"http://127.0.0.1:{port}"
        ready = state.model_copy(update={"url": url})
        wait_until(partial(_try_index, ready), ready, START_SECONDS)
        say(f"{state.name} is ready after {time.monotonic() - began:.1f} s.")
        return ready


@dataclass(frozen=True, slots=True)
class _Node:
    """The files that one node reads at its start: opensearch.yml, Java options, environment, and
    what the security plugin needs.
    """

    wanted: Wanted
    place: Place
    distribution: Distribution
    java: Java

    @property
    def config(self) -> Path:
        return self.place.folder / "config"

    @property
    def ca_file(self) -> Path:
        """The certificate authority of a secured node, readable by everybody."""
        return self.place.folder / "root-ca.pem"

    def prepare(self) -> None:
        """Create what the node writes into, and its configuration, for its account alone. Raises
        ServiceError where the security plugin's installer fails.
        """
        folder, account = self.place.folder, self.place.account
        for name in ("logs", "tmp", "backups"):
            account.own(folder / name)
        (folder / PORTS_FILE).unlink(missing_ok=True)
        # Always a new folder: root must not write through links that the account could have put
        # there.
        shutil.rmtree(self.config, ignore_errors=True)
        self.config.mkdir()
        settings = self._settings()
        if self.wanted.security:
            settings += self._add_security()
        # Less a log of garbage collections in the distribution's folder.
        options = (self.distribution.home / "config/jvm.options").read_text("utf-8")
        options = re.sub(r"(?m)^.*-Xlog:gc.*\n?", "", options)
        (self.config / "opensearch.yml").write_text(settings, "utf-8")
        (self.config / "log4j2.properties").write_text(LOG4J, "utf-8")
        (self.config / "jvm.options").write_text(options, "utf-8")
        for path in [*self.config.rglob("*"), self.config]:
            path.chmod(0o700 if path.is_dir() else 0o600)
            account.own(path)

    def _settings(self) -> str:
        folder = self.place.folder
        settings = {
            "cluster.name": f"cogr-{folder.name}",
            "node.name": folder.name,
            "path.data": str(self.place.data),
            "path.logs": str(folder / "logs"),
            # Where snapshot repositories of the type fs may lie.
            "path.repo": [str(folder / "backups")],
            "network.host": "127.0.0.1",
            "http.port": self.place.port,
            "transport.port": 0,
            "discovery.type": "single-node",
            # The node writes its port to PORTS_FILE once it listens, so a free one need not be
            # guessed beforehand.
            "node.portsfile": True,
            # A developer's disk is often nearly full; the node would refuse to place an index.
            "cluster.routing.allocation.disk.threshold_enabled": False,
        }
        plugin = self.distribution.home / "plugins" / SECURITY_PLUGIN
        if plugin.is_dir() and not self.wanted.security:
            settings["plugins.security.disabled"] = True
        # JSON values are YAML values.
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())

    def environment(self) -> dict[str, str]:
        """Only what the start script needs: nothing else of the caller's environment reaches the
        node.
        """
        folder, heap = self.place.folder, self.wanted.heap
        # They come after those of jvm.options, and count.
        options = [f"-Xms{heap}", f"-Xmx{heap}"]
        options += ["-XX:TieredStopAtLevel=1"] if self.wanted.brief else []
        options += [f"-XX:HeapDumpPath={folder}/tmp", f"-XX:ErrorFile={folder}/logs/hs_err_%p.log"]
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": f"{folder}/tmp",
            "LANG": "C.UTF-8",
            "OPENSEARCH_JAVA_HOME": str(self.java.home),
            "OPENSEARCH_JAVA_OPTS": " ".join(options),
            "OPENSEARCH_PATH_CONF": str(self.config),
            "OPENSEARCH_TMPDIR": f"{folder}/tmp",
        }

    def _add_security(self) -> str:
        """Put certificates and users in place, the same again at a restart; the settings that
        switch them on.
        """
        kept = self.place.folder / "security"
        if not kept.exists():
            self._install_security(kept)
        shutil.copytree(kept, self.config, dirs_exist_ok=True)
        shutil.copyfile(kept / "root-ca.pem", self.ca_file)
        return (kept / "opensearch.yml").read_text("utf-8")

    def _install_security(self, kept: Path) -> None:
        """Run the plugin's demo installer in a scratch copy of the distribution and keep the
        configuration that it writes.
        """
        scratch = self.place.folder / ".installing"
        shutil.rmtree(scratch, ignore_errors=True)
        programs.link_tree(self.distribution.home, scratch)
        config, plugin = scratch / "config", scratch / "plugins" / SECURITY_PLUGIN
        # The installer writes into these: they must not be links to the distribution's.
        shutil.rmtree(config)
        shutil.copytree(plugin / "config", config / SECURITY_PLUGIN)
        (config / "opensearch.yml").touch()
        password = token_urlsafe(18) + "-aA1"
        done = subprocess.run(
            ["bash", str(plugin / "tools/install_demo_configuration.sh"), "-y", "-i", "-s"],
            env={**self.environment(), "OPENSEARCH_INITIAL_ADMIN_PASSWORD": password},
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
        if done.returncode != 0 or not (config / "root-ca.pem").exists():
            said = (done.stdout + done.stderr).strip().splitlines() or ["it says nothing"]
            raise ServiceError(f"The installer of the security plugin failed: {said[-1]}.")
        self.place.write_credentials(
            "opensearch", username="admin", password=password, ca_file=str(self.ca_file)
        )
        config.rename(kept)
        kept.chmod(0o700)
        shutil.rmtree(scratch)


def _add_security_plugin(home: Path, version: str, say: Say) -> None:
    """Put the security plugin into a copy of a distribution of this version.

    It is for tests of a client against the real thing. Its demo certificates are public: never for
    a node that others can reach.
    """
    plugin = home / "plugins" / SECURITY_PLUGIN
    what = f"the security plugin of OpenSearch {version}"
    artifact = f"org.opensearch.plugin:{SECURITY_PLUGIN}:{version}.0:zip"
    programs.unpack(programs.fetch_with_maven(artifact, home.parent, what, say), plugin)
    # The plugin comes without this library and answers every request with 500 if it is not there.
    library = "org.apache.commons:commons-collections4:4.4"
    jar = programs.fetch_with_maven(library, home.parent, "commons-collections4", say)
    shutil.copyfile(jar, plugin / jar.name)
    descriptor = plugin / "plugin-descriptor.properties"
    text = descriptor.read_text("utf-8")
    # It extends a module that Maven's distribution does not have, and works without it.
    text = re.sub(r"^extended\.plugins=.*$", "extended.plugins=", text, flags=re.MULTILINE)
    descriptor.write_text(text, "utf-8")


def _listens_on(state: ServerState) -> int:
    """The node's port. Raises ServiceError while it does not listen."""
    ports = state.folder / PORTS_FILE
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
