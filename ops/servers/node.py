"""The files that an OpenSearch node reads at its start: opensearch.yml, Java options, environment,
and what the security plugin needs. Starts nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from secrets import token_urlsafe

from cogr.errors import ServiceError
from cogr.records import Say
from ops.servers.instances import Place
from ops.servers.programs import Distribution, Java, fetch_with_maven, link_tree, unpack

SECURITY_PLUGIN = "opensearch-security"
INSTALL_SECONDS = 120
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
        place: its folders, its account and its port.
        security: whether it speaks TLS and asks who is there.
    """

    place: Place
    distribution: Distribution
    java: Java
    security: bool

    @property
    def config(self) -> Path:
        return self.place.folder / "config"

    @property
    def ca_file(self) -> Path:
        """The certificate authority of a secured node, readable by everybody."""
        return self.place.folder / "root-ca.pem"

    def prepare(self) -> None:
        """Create what the node writes into, and its configuration, for its account alone.

        Raises:
            ServiceError: the security plugin's installer failed.
        """
        folder, account = self.place.folder, self.place.account
        for name in ("logs", "tmp", "backups"):
            account.own(folder / name)
        ports_file(folder).unlink(missing_ok=True)
        # Always a new folder: root must not write through links that the account could have put
        # there.
        shutil.rmtree(self.config, ignore_errors=True)
        self.config.mkdir()
        settings = self._settings()
        if self.security:
            settings += self._add_security()
        (self.config / "opensearch.yml").write_text(settings, "utf-8")
        (self.config / "log4j2.properties").write_text(LOG4J, "utf-8")
        (self.config / "jvm.options").write_text(self._jvm_options(), "utf-8")
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
            # The node writes its port to logs/http.ports once it listens, so a free one need not be
            # guessed beforehand.
            "node.portsfile": True,
            # A developer's disk is often nearly full; the node would refuse to place an index.
            "cluster.routing.allocation.disk.threshold_enabled": False,
        }
        if (self.distribution.home / "plugins" / SECURITY_PLUGIN).is_dir() and not self.security:
            settings["plugins.security.disabled"] = True
        # JSON values are YAML values.
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())

    def _jvm_options(self) -> str:
        """The distribution's Java options, less a log of garbage collections in its folder."""
        options = (self.distribution.home / "config/jvm.options").read_text("utf-8")
        return "".join(f"{line}\n" for line in options.splitlines() if "-Xlog:gc" not in line)

    def environment(self, heap: str, *, brief: bool = False) -> dict[str, str]:
        """Only what the start script needs: nothing else of the caller's environment reaches the
        node.

        Args:
            heap: such as 512m.
            brief: without the optimising compiler: half the processor time to start, slower
                afterwards.
        """
        folder = self.place.folder
        # They come after those of jvm.options, and count.
        options = [f"-Xms{heap}", f"-Xmx{heap}", *(["-XX:TieredStopAtLevel=1"] if brief else [])]
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
        link_tree(self.distribution.home, scratch)
        config, plugin = scratch / "config", scratch / "plugins" / SECURITY_PLUGIN
        # The installer writes into these: they must not be links to the distribution's.
        shutil.rmtree(config)
        shutil.copytree(plugin / "config", config / SECURITY_PLUGIN)
        (config / "opensearch.yml").touch()
        password = token_urlsafe(18) + "-aA1"
        done = subprocess.run(
            ["bash", str(plugin / "tools/install_demo_configuration.sh"), "-y", "-i", "-s"],
            env={**self.environment("256m"), "OPENSEARCH_INITIAL_ADMIN_PASSWORD": password},
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


def add_security_plugin(home: Path, version: str, say: Say) -> None:
    """Put the security plugin into a copy of a distribution of this version.

    It is for tests of a client against the real thing. Its demo certificates are public: never for
    a node that others can reach.
    """
    plugin = home / "plugins" / SECURITY_PLUGIN
    what = f"the security plugin of OpenSearch {version}"
    artifact = f"org.opensearch.plugin:{SECURITY_PLUGIN}:{version}.0:zip"
    unpack(fetch_with_maven(artifact, home.parent, what, say), plugin)
    # The plugin comes without this library and answers every request with 500 if it is not there.
    library = "org.apache.commons:commons-collections4:4.4"
    jar = fetch_with_maven(library, home.parent, "commons-collections4", say)
    shutil.copyfile(jar, plugin / jar.name)
    descriptor = plugin / "plugin-descriptor.properties"
    text = descriptor.read_text("utf-8")
    # It extends a module that Maven's distribution does not have, and works without it.
    text = re.sub(r"^extended\.plugins=.*$", "extended.plugins=", text, flags=re.MULTILINE)
    descriptor.write_text(text, "utf-8")


def ports_file(folder: Path) -> Path:
    """Where a node writes the address that it listens on, one a line."""
    return folder / "logs" / "http.ports"
