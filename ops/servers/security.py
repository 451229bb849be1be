"""The security plugin for a local node: TLS by the plugin's demo certificates, a password of its
own for `admin`.

For tests of a client against the real thing. The demo certificates are public: never for a node
that others can reach.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from cogr.errors import ServiceError
from cogr.progress import Say
from ops.servers.distribution import (
    SECURITY_PLUGIN,
    Distribution,
    fetch_with_maven,
    link_tree,
    unpack,
    variant,
)
from ops.servers.node import Node

SECURITY_VERSION = "3.4.0"
"""The OpenSearch version whose plugin Maven Central has."""
USER = "admin"
INSTALL_SECONDS = 120


def with_security(base: Distribution, servers: Path, say: Say) -> Distribution:
    """The distribution with the plugin in it; fetched and unpacked once."""
    return variant(base, "security", _add_plugin(base.version, say), servers)


def _add_plugin(version: str, say: Say) -> Callable[[Path], None]:
    def change(home: Path) -> None:
        plugin = home / "plugins" / SECURITY_PLUGIN
        artifact = f"org.opensearch.plugin:{SECURITY_PLUGIN}:{version}.0:zip"
        archive = fetch_with_maven(
            artifact, home.parent, f"the security plugin of OpenSearch {version}", say
        )
        unpack(archive, plugin)
        # The plugin comes without this library and answers every request with 500 if it is not
        # there.
        jar = fetch_with_maven(
            "org.apache.commons:commons-collections4:4.4", home.parent, "commons-collections4", say
        )
        shutil.copyfile(jar, plugin / jar.name)
        descriptor = plugin / "plugin-descriptor.properties"
        lines = descriptor.read_text(encoding="utf-8").splitlines()
        # It extends a module that Maven's distribution does not have, and works without it.
        kept = [
            "extended.plugins=" if line.startswith("extended.plugins=") else line for line in lines
        ]
        descriptor.write_text("\n".join(kept) + "\n", encoding="utf-8")

    return change


def ca_file(folder: Path) -> Path:
    """The certificate authority of a secured node, readable by everybody."""
    return folder / "root-ca.pem"


def credentials_file(folder: Path) -> Path:
    """Variables that let every command into a secured node; readable by its starter alone."""
    return folder / "credentials.env"


def read_credentials(path: Path) -> dict[str, str]:
    """The variables of a credentials file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def add_security(node: Node) -> None:
    """Give a prepared node certificates, users and the settings that switch them on; the same again
    at a restart.

    Raises:
        ServiceError: the plugin's installer failed.
    """
    kept = node.folder / "security"
    if not kept.exists():
        _install(node, kept)
    for path in kept.iterdir():
        if path.is_dir():
            shutil.copytree(path, node.config / path.name, dirs_exist_ok=True)
        elif path.name != "opensearch.yml":
            shutil.copyfile(path, node.config / path.name)
    shutil.copyfile(kept / "root-ca.pem", ca_file(node.folder))
    with (node.config / "opensearch.yml").open("a", encoding="utf-8") as settings:
        settings.write((kept / "opensearch.yml").read_text(encoding="utf-8"))


def _install(node: Node, kept: Path) -> None:
    """Run the plugin's demo installer in a scratch copy of the distribution and keep the
    configuration that it writes.
    """
    scratch = node.folder / ".installing"
    shutil.rmtree(scratch, ignore_errors=True)
    link_tree(node.distribution.home, scratch)
    config = scratch / "config"
    # The installer writes into these: they must not be links to the distribution's.
    shutil.rmtree(config)
    shutil.copytree(
        node.distribution.home / "plugins" / SECURITY_PLUGIN / "config", config / SECURITY_PLUGIN
    )
    (config / "opensearch.yml").touch()
    password = secrets.token_urlsafe(18) + "-aA1"
    tool = scratch / "plugins" / SECURITY_PLUGIN / "tools" / "install_demo_configuration.sh"
    done = subprocess.run(
        ["bash", str(tool), "-y", "-i", "-s"],
        env={**node.environment("256m"), "OPENSEARCH_INITIAL_ADMIN_PASSWORD": password},
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_SECONDS,
    )
    if done.returncode != 0 or not (config / "root-ca.pem").exists():
        said = (done.stdout + done.stderr).strip().splitlines() or ["it says nothing"]
        raise ServiceError(f"The installer of the security plugin failed: {said[-1]}.")
    _write_credentials(node.folder, password)
    config.rename(kept)
    kept.chmod(0o700)
    shutil.rmtree(scratch)


def _write_credentials(folder: Path, password: str) -> None:
    path = credentials_file(folder)
    path.touch(mode=0o600)
    lines = {
        "COGR_OPENSEARCH__USERNAME": USER,
        "COGR_OPENSEARCH__PASSWORD": password,
        "COGR_OPENSEARCH__CA_FILE": str(ca_file(folder)),
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
