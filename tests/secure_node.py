"""OpenSearch 3.4.0 with the security plugin: TLS and users, with the plugin's demo certificates,
which are public. Maven Central has the plugin for this version.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cogr.records import Say
from cogr.settings.serving import OpenSearchSettings
from indexers.backends.opensearch.client import Cluster
from ops.servers import (
    OpenSearchSpec,
    ServerState,
    find_java,
    find_opensearch,
    made_once,
    maven,
    servers_folder,
)

VERSION = "3.4.0"
PLUGIN = "opensearch-security"
PASSWORD = "Moss-Couch-41-wicker"


@dataclass(frozen=True, kw_only=True)
class SecureSpec(OpenSearchSpec):
    """The node. Its distribution, with plugin, certificates and users, is made once."""

    # The demo certificates name localhost, not its address.
    address: ClassVar[str] = "https://localhost:{}"
    version: str | None = VERSION

    def prepare(self, folder: Path, port: int, say: Say, /) -> tuple[Sequence[str], dict[str, str]]:
        kept = servers_folder() / "distributions" / f"opensearch-{VERSION}-secure"
        home = made_once(kept, lambda scratch: _with_plugin(scratch, say))
        return OpenSearchSpec(home=home, options=self.options).prepare(folder, port, say)

    def check(self, folder: Path, url: str, /) -> None:
        with closing(Cluster(_settings(folder, url))) as cluster:
            cluster.call(
                "GET", "/_cluster/health", doing="waiting", params={"wait_for_status": "yellow"}
            )


def secured(state: ServerState) -> OpenSearchSettings:
    """Settings that reach the node: URL, user, password and CA file."""
    return _settings(state.folder, str(state.url))


def _settings(folder: Path, url: str) -> OpenSearchSettings:
    # Maven's parts of this version have no other analyser.
    values = {"url": url, "username": "admin", "password": PASSWORD, "text_analyzer": "standard"}
    return OpenSearchSettings.model_validate(
        {**values, "ca_file": str(folder / "config" / "root-ca.pem")}
    )


def _with_plugin(scratch: Path, say: Say) -> Path:
    base = find_opensearch(VERSION, say)
    home = scratch / "home"
    shutil.copytree(base, home)
    plugin = home / "plugins" / PLUGIN
    maven("unpack", f"org.opensearch.plugin:{PLUGIN}:{VERSION}.0:zip", plugin)
    # The plugin comes without this library and answers every request with 500 if it is not there.
    maven("copy", "org.apache.commons:commons-collections4:4.4", plugin)
    # It extends a module that Maven's distribution does not have, and works without it.
    descriptor = plugin / "plugin-descriptor.properties"
    text = re.sub(r"(?m)^extended\.plugins=.*$", "extended.plugins=", descriptor.read_text("utf-8"))
    descriptor.write_text(text, "utf-8")
    shutil.copytree(plugin / "config", home / "config" / PLUGIN)
    done = subprocess.run(
        ["bash", str(plugin / "tools/install_demo_configuration.sh"), "-y", "-i", "-s"],
        env={
            "PATH": "/usr/bin:/bin",
            "OPENSEARCH_JAVA_HOME": str(find_java(VERSION)),
            "OPENSEARCH_INITIAL_ADMIN_PASSWORD": PASSWORD,
        },
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (home / "config" / "root-ca.pem").exists(), done.stdout + done.stderr
    return home
