"""A local single-node OpenSearch for development and tests, never for production.

The distribution is shared and read-only; all that a node writes lies in its own folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cogr.errors import UserError
from cogr.records import Say
from cogr.settings import OpenSearchSettings
from ops.servers import programs
from ops.servers.instances import Program, ServerSpec, ServerState, hand_over
from ops.servers.programs import ANY_JAVA

DEFAULT_VERSION = "3.8.0"
LEAST_JAVA = 21
"""What OpenSearch 3.x is compiled for."""


@dataclass(frozen=True, kw_only=True)
class OpenSearchSpec(ServerSpec):
    """A node to start. Without a name it is opensearch-<version>."""

    kind: ClassVar[str] = "opensearch"
    usual_port: ClassVar[int] = 9200
    start_seconds: ClassVar[float] = 300.0
    address: ClassVar[str] = "http://127.0.0.1:{}"
    version: str | None = None
    home: Path | None = None
    heap: str = "512m"
    brief: bool = False

    def __post_init__(self) -> None:
        if self.version is not None and not re.fullmatch(r"\d+\.\d+\.\d+", self.version):
            raise UserError(
                f"{self.version!r} is not an OpenSearch version; give one like {DEFAULT_VERSION}."
            )
        if not re.fullmatch(r"[1-9]\d*[mg]", self.heap):
            raise UserError(f"{self.heap!r} is not a heap size; give one like 512m or 2g.")

    @property
    def server_name(self) -> str:
        return self.name or f"{self.kind}-{self.version or DEFAULT_VERSION}"

    def prepare(self, folder: Path, port: int, say: Say, /) -> Program:
        home = self.home or programs.find_opensearch(self.version, DEFAULT_VERSION, say)
        # Java's options come after those of jvm.options, and count.
        options = f"-Xms{self.heap} -Xmx{self.heap}"
        options += " -XX:TieredStopAtLevel=1" if self.brief else ""
        if home is None:
            return self._container(folder.name, port, options, say)
        version = programs.version_of(home)
        # 2.x needs the security manager, which Java 24 removed.
        fits = range(11, 24) if version.startswith("2.") else range(LEAST_JAVA, ANY_JAVA)
        java = programs.find_java(f"OpenSearch {version}", fits)
        _configure(folder, home, port)
        say(f"Starting OpenSearch {version} with Java {java.major} ...")
        crashes = f"-XX:HeapDumpPath={folder}/tmp -XX:ErrorFile={folder}/logs/hs_err_%p.log"
        # Nothing else of the caller's environment reaches the node.
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": f"{folder}/tmp",
            "LANG": "C.UTF-8",
            "OPENSEARCH_JAVA_HOME": str(java.home),
            "OPENSEARCH_JAVA_OPTS": f"{options} {crashes}",
            "OPENSEARCH_PATH_CONF": f"{folder}/config",
            "OPENSEARCH_TMPDIR": f"{folder}/tmp",
        }
        return Program([str(home / "bin/opensearch")], environment, version)

    def _container(self, name: str, port: int, options: str, say: Say) -> Program:
        version, name = self.version or DEFAULT_VERSION, f"cogr-{name}"
        say(f"Starting OpenSearch {version} with Docker ...")
        command = ["docker", "run", "--rm", "--name", name, "-p", f"127.0.0.1:{port}:9200"]
        command += ["-v", f"{name}:/usr/share/opensearch/data"]
        command += ["-e", "discovery.type=single-node", "-e", "DISABLE_SECURITY_PLUGIN=true"]
        command += ["-e", f"OPENSEARCH_JAVA_OPTS={options}"]
        return Program([*command, f"opensearchproject/opensearch:{version}"], os.environ, version)

    def check(self, _: Path, url: str, /) -> None:
        """Raise ServiceError unless the node is healthy and an index can be created."""
        from indexers.backends.opensearch.client import Cluster  # late: imports break Ctrl-C

        index, doing = f"/cogr-ready-{os.getpid()}", "trying an index"
        body = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}}
        health = {"wait_for_status": "yellow"}
        with closing(Cluster(OpenSearchSettings(url=url))) as cluster:
            cluster.call("GET", "/_cluster/health", doing="waiting for it", params=health)
            cluster.call("PUT", index, doing=doing, body=body, exists_ok=True)
            cluster.call("DELETE", index, doing=doing, missing_ok=True)


def _configure(folder: Path, home: Path, port: int) -> None:
    for name in ("logs", "tmp", "backups"):
        hand_over(folder / name)
    # Always a new folder: root must not write through links that the node's user could have
    # put there.
    config = folder / "config"
    shutil.rmtree(config, ignore_errors=True)
    shutil.copytree(home / "config", config)
    kept = config / "opensearch.yml"
    text = kept.read_text("utf-8") if kept.exists() else ""
    settings: dict[str, Any] = {
        "path.data": str(folder / "data"),
        "path.logs": str(folder / "logs"),
        # Where snapshot repositories of the type fs may lie.
        "path.repo": [str(folder / "backups")],
        "network.host": "127.0.0.1",
        "http.port": port,
        "transport.port": 0,
        "discovery.type": "single-node",
        # A developer's disk is often nearly full; the node would refuse to place an index.
        "cluster.routing.allocation.disk.threshold_enabled": False,
    }
    if (home / "plugins/opensearch-security").is_dir() and "plugins.security" not in text:
        settings["plugins.security.disabled"] = True
    # JSON values are YAML values.
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in settings.items()]
    kept.write_text(text + "\n" + "".join(lines), "utf-8")
    # Less a log of garbage collections in the distribution's folder.
    options = re.sub(r"(?m)^.*-Xlog:gc.*\n?", "", (config / "jvm.options").read_text("utf-8"))
    (config / "jvm.options").write_text(options, "utf-8")
    for path in [*config.rglob("*"), config]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        hand_over(path)


def connection(state: ServerState, **more: Any) -> OpenSearchSettings:
    """Settings that reach a server."""
    return OpenSearchSettings.model_validate({"url": state.url, **more})
