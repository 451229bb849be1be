"""The files that an OpenSearch node reads at its start: folders, opensearch.yml, Java options,
environment. Starts nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from cogr.errors import UserError
from ops.servers.account import Account
from ops.servers.distribution import SECURITY_PLUGIN, Distribution
from ops.servers.java import Java

LOG4J = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %marker%m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True, slots=True)
class Node:
    """Where one node lives and what it runs on.

    Attributes:
        name: its name.
        folder: its own folder.
        data: its data, usually folder/data.
        distribution, java, account: what runs, on what, as whom.
        security: whether it speaks TLS and asks who is there.
    """

    name: str
    folder: Path
    data: Path
    distribution: Distribution
    java: Java
    account: Account
    security: bool = False

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def log(self) -> Path:
        """All that the node prints, kept over restarts.

        Outside logs/, since the caller (root, maybe) opens it.
        """
        return self.folder / "opensearch.log"

    @property
    def backups(self) -> Path:
        return self.folder / "backups"

    @property
    def command(self) -> list[str]:
        return [str(self.distribution.home / "bin" / "opensearch")]

    def prepare(self, port: int) -> None:
        """Create what the node writes into, and its configuration, which is the caller's until
        `hand_over`.

        Args:
            port: 0 lets the node take a free one.

        Raises:
            UserError: the data folder is closed to the node's account.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.data.exists():
            self.account.own(self.data)
        if not self.account.may("w", self.data):
            raise UserError(
                f"The data folder {self.data} can't be written by the user {self.account.name}, "
                "as whom OpenSearch runs; "
                "change its owner or give another --data."
            )
        self.account.own(self.folder / "logs", self.folder / "tmp", self.backups)
        ports_file(self.folder).unlink(missing_ok=True)
        # Always a new folder: root must not write through links that the account could have put
        # there.
        shutil.rmtree(self.config, ignore_errors=True)
        self.config.mkdir()
        (self.config / "opensearch.yml").write_text(self._settings(port), encoding="utf-8")
        (self.config / "log4j2.properties").write_text(LOG4J, encoding="utf-8")
        (self.config / "jvm.options").write_text(self._jvm_options(), encoding="utf-8")

    def hand_over(self) -> None:
        """Give the configuration to the node's account, and to nobody else."""
        for path in [*self.config.rglob("*"), self.config]:
            path.chmod(0o700 if path.is_dir() else 0o600)
            if self.account.drops:
                os.chown(path, self.account.uid, self.account.gid)

    def _settings(self, port: int) -> str:
        settings = {
            "cluster.name": f"cogr-{self.name}",
            "node.name": self.name,
            "path.data": str(self.data),
            "path.logs": str(self.folder / "logs"),
            # Where snapshot repositories of the type fs may lie.
            "path.repo": [str(self.backups)],
            "network.host": "127.0.0.1",
            "http.port": port,
            "transport.port": 0,
            "discovery.type": "single-node",
            # The node writes its port to logs/http.ports once it listens, so a free one need not be
            # guessed beforehand.
            "node.portsfile": True,
            # A developer's disk is often nearly full; the node would refuse to place an index.
            "cluster.routing.allocation.disk.threshold_enabled": False,
        }
        if self.distribution.has_plugin(SECURITY_PLUGIN) and not self.security:
            settings["plugins.security.disabled"] = True
        # JSON values are YAML values.
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())

    def _jvm_options(self) -> str:
        """The distribution's Java options with paths in the node's folder, less those that this
        runtime can't take.
        """
        lines = []
        for line in (
            (self.distribution.home / "config" / "jvm.options")
            .read_text(encoding="utf-8")
            .splitlines()
        ):
            if (
                line.startswith("#")
                or not line.strip()
                or "-Xlog:gc" in line
                or re.match(r"-Xm[sx]", line)
            ):
                continue
            if "jdk.incubator.vector" in line and self.java.trimmed:
                continue
            line = line.replace("-XX:HeapDumpPath=data", f"-XX:HeapDumpPath={self.folder}/tmp")
            lines.append(line.replace("-XX:ErrorFile=logs/", f"-XX:ErrorFile={self.folder}/logs/"))
        return "\n".join(lines) + "\n"

    def environment(self, heap: str, *, brief: bool = False) -> dict[str, str]:
        """Only what the start script needs: nothing else of the caller's environment reaches the
        node.

        Args:
            heap: such as 512m.
            brief: without the optimising compiler: half the processor time to start, slower
                afterwards.
        """
        options = f"-Xms{heap} -Xmx{heap}{' -XX:TieredStopAtLevel=1' if brief else ''}"
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder / "tmp"),
            "LANG": "C.UTF-8",
            "OPENSEARCH_JAVA_HOME": str(self.java.home),
            "OPENSEARCH_JAVA_OPTS": options,
            "OPENSEARCH_PATH_CONF": str(self.config),
            "OPENSEARCH_TMPDIR": str(self.folder / "tmp"),
        }


def ports_file(folder: Path) -> Path:
    """Where a node writes the address that it listens on, one a line."""
    return folder / "logs" / "http.ports"
