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
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, ClassVar

from cogr.errors import ServiceError, UserError
from cogr.records import Say
from cogr.settings import OpenSearchSettings
from ops.servers import programs
from ops.servers.instances import Place, ServerSpec, ServerState, wait_until
from ops.servers.machine import made_once
from ops.servers.programs import ANY_JAVA, Distribution, Java

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
class OpenSearchSpec(ServerSpec):
    """A node to start. Without a name it is opensearch-<version>, with -secure for a secured one.

    Attributes:
        version: None takes the default (or what COGR_OPENSEARCH_HOME has).
        heap: Java's heap, such as 512m or 2g.
        security: TLS and users by the security plugin (3.4.0 only).
        brief: compile without the optimising compiler: it is up in half the time and slower
            afterwards; for tests.
    """

    kind: ClassVar[str] = "opensearch"
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
        return self.name or f"{self.kind}-{version}{'-secure' if self.security else ''}"

    def difference(self, state: ServerState) -> str | None:
        if self.version not in (None, state.version):
            return f"as OpenSearch {state.version}, not {self.version}"
        if self.security != (state.ca_file is not None):
            return "without the security plugin" if self.security else "with the security plugin"
        return super().difference(state)

    def launch(self, place: Place, say: Say) -> ServerState:
        found = programs.find_distribution(self.version, self.default_version, place.servers, say)
        # 2.x needs the security manager, which Java 24 removed.
        fits = range(11, 24) if found.version.startswith("2.") else range(LEAST_JAVA, ANY_JAVA)
        java = programs.find_java(f"OpenSearch {found.version}", fits, place.account)
        environment = self._environment(place.folder, java)
        details: dict[str, Any] = {"version": found.version, "java": str(java.home)}
        if self.security:
            add = partial(_add_security_plugin, version=found.version, say=say)
            found = programs.variant(found, "security", add, place.servers)
            details["ca_file"] = place.folder / "root-ca.pem"
            details["credentials_file"] = place.credentials_file
        self._configure(place, found, environment)
        say(f"Starting OpenSearch {found.version} with Java {java.major} ...")
        return place.begin([str(found.home / "bin" / "opensearch")], environment, **details)

    def _environment(self, folder: Path, java: Java) -> dict[str, str]:
        """Only what the start script needs: nothing else of the caller's environment reaches the
        node.
        """
        # They come after those of jvm.options, and count.
        options = [f"-Xms{self.heap}", f"-Xmx{self.heap}"]
        options += ["-XX:TieredStopAtLevel=1"] if self.brief else []
        options += [f"-XX:HeapDumpPath={folder}/tmp", f"-XX:ErrorFile={folder}/logs/hs_err_%p.log"]
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": f"{folder}/tmp",
            "LANG": "C.UTF-8",
            "OPENSEARCH_JAVA_HOME": str(java.home),
            "OPENSEARCH_JAVA_OPTS": " ".join(options),
            "OPENSEARCH_PATH_CONF": f"{folder}/config",
            "OPENSEARCH_TMPDIR": f"{folder}/tmp",
        }

    def _configure(
        self, place: Place, distribution: Distribution, environment: Mapping[str, str]
    ) -> None:
        """Create what the node writes into, and its configuration, for its account alone."""
        folder, account = place.folder, place.account
        for name in ("logs", "tmp", "backups"):
            account.own(folder / name)
        (folder / PORTS_FILE).unlink(missing_ok=True)
        # Always a new folder: root must not write through links that the account could have put
        # there.
        config = folder / "config"
        shutil.rmtree(config, ignore_errors=True)
        config.mkdir()
        settings = self._settings(place, distribution)
        if self.security:
            # Certificates and users, the same again at a restart.
            install = partial(_install_security, place, distribution.home, environment)
            kept = made_once(folder / "security", install)
            shutil.copytree(kept, config, dirs_exist_ok=True)
            shutil.copyfile(kept / "root-ca.pem", folder / "root-ca.pem")
            settings += (kept / "opensearch.yml").read_text("utf-8")
        # Less a log of garbage collections in the distribution's folder.
        options = (distribution.home / "config/jvm.options").read_text("utf-8")
        options = re.sub(r"(?m)^.*-Xlog:gc.*\n?", "", options)
        (config / "opensearch.yml").write_text(settings, "utf-8")
        (config / "log4j2.properties").write_text(LOG4J, "utf-8")
        (config / "jvm.options").write_text(options, "utf-8")
        for path in [*config.rglob("*"), config]:
            path.chmod(0o700 if path.is_dir() else 0o600)
            account.own(path)

    def _settings(self, place: Place, distribution: Distribution) -> str:
        folder = place.folder
        settings = {
            "cluster.name": f"cogr-{folder.name}",
            "node.name": folder.name,
            "path.data": str(place.data),
            "path.logs": str(folder / "logs"),
            # Where snapshot repositories of the type fs may lie.
            "path.repo": [str(folder / "backups")],
            "network.host": "127.0.0.1",
            "http.port": place.port,
            "transport.port": 0,
            "discovery.type": "single-node",
            # The node writes its port to PORTS_FILE once it listens, so a free one need not be
            # guessed beforehand.
            "node.portsfile": True,
            # A developer's disk is often nearly full; the node would refuse to place an index.
            "cluster.routing.allocation.disk.threshold_enabled": False,
        }
        if (distribution.home / "plugins" / SECURITY_PLUGIN).is_dir() and not self.security:
            settings["plugins.security.disabled"] = True
        # JSON values are YAML values.
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())

    def finish(self, state: ServerState) -> ServerState:
        return wait_until(partial(_ready, state), state, START_SECONDS)


def _install_security(
    place: Place, home: Path, environment: Mapping[str, str], scratch: Path
) -> Path:
    """Certificates, users, and the settings that switch them on: a folder, which the plugin's demo
    installer writes in a scratch copy of the distribution. Raises ServiceError where it fails.
    """
    copy = scratch / "copy"
    programs.link_tree(home, copy)
    config, plugin = copy / "config", copy / "plugins" / SECURITY_PLUGIN
    # The installer writes into these: they must not be links to the distribution's.
    shutil.rmtree(config)
    shutil.copytree(plugin / "config", config / SECURITY_PLUGIN)
    (config / "opensearch.yml").touch()
    password = token_urlsafe(18) + "-aA1"
    done = subprocess.run(
        ["bash", str(plugin / "tools/install_demo_configuration.sh"), "-y", "-i", "-s"],
        env={**environment, "OPENSEARCH_INITIAL_ADMIN_PASSWORD": password},
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_SECONDS,
    )
    if done.returncode != 0 or not (config / "root-ca.pem").exists():
        said = (done.stdout + done.stderr).strip().splitlines() or ["it says nothing"]
        raise ServiceError(f"The installer of the security plugin failed: {said[-1]}.")
    ca_file = str(place.folder / "root-ca.pem")
    place.write_credentials("opensearch", username="admin", password=password, ca_file=ca_file)
    config.chmod(0o700)
    return config


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


def _ready(state: ServerState) -> ServerState:
    """The state with its URL, once the node is healthy and an index can be created. Raises
    ServiceError before.
    """
    ports = state.folder / PORTS_FILE
    if not ports.exists() or not (lines := ports.read_text().split()):
        raise ServiceError(
            f"OpenSearch {state.version} does not listen after {START_SECONDS:.0f} s."
        )
    from indexers.backends.opensearch.client import Cluster  # late: imports break Ctrl-C

    port = lines[0].rsplit(":", 1)[1]
    # The demo certificates name localhost, not its address.
    url = f"https://localhost:{port}" if state.ca_file else f"http://127.0.0.1:{port}"
    ready = state.model_copy(update={"url": url})
    index, doing = f"/cogr-ready-{state.pid}", "trying an index"
    body = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}}
    health = {"wait_for_status": "yellow"}
    with closing(Cluster(connection(ready))) as cluster:
        cluster.call("GET", "/_cluster/health", doing="waiting for it", params=health)
        cluster.call("PUT", index, doing=doing, body=body, exists_ok=True)
        cluster.call("DELETE", index, doing=doing, missing_ok=True)
    return ready


def connection(state: ServerState, **more: Any) -> OpenSearchSettings:
    """Settings that reach a server, its credentials included.

    Args:
        more: further settings, such as prefix="test".
    """
    return OpenSearchSettings.model_validate(state.connection() | more)
