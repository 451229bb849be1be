"""The servers that this user started here: each is a folder with a state.json while it runs.
Starting one, once at a time, finding it again, and stopping it.

    <cache>/servers/distributions/opensearch-3.8.0/       unpacked once, read-only in use
    <cache>/servers/1000/opensearch/opensearch-3.8.0/     of user 1000: state.json, config/, data/

<cache> is COGR_CACHE_DIR, else the system's folder for caches of `cogr`: the user's, on Linux
XDG_CACHE_HOME or ~/.cache; for root the one of all users, on Linux /var/cache.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psutil
from filelock import FileLock
from platformdirs import site_cache_path, user_cache_path
from pydantic import BaseModel, ConfigDict, Field

from cogr.errors import ServiceError, StorageError, UserError
from cogr.records import Say
from cogr.store import replacing

CACHE_VARIABLE = "COGR_CACHE_DIR"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NOBODY = 65534
"""The uid and gid of `nobody`, as whom root's servers run: OpenSearch refuses root."""

log = logging.getLogger(__name__)


def servers_folder() -> Path:
    """The folder of all servers; it may not be there yet."""
    default = site_cache_path("cogr") if os.geteuid() == 0 else user_cache_path("cogr")
    return Path(os.environ.get(CACHE_VARIABLE) or default).expanduser().absolute() / "servers"


def server_folder(kind: str, name: str) -> Path:
    """The folder of one of this user's servers. Those of other users are never found, whatever
    folders users share. Raises UserError for an unusable name.
    """
    if not NAME.fullmatch(name):
        raise UserError(
            f"The server name {name!r} is not usable; use lower-case letters, digits, dots and "
            "dashes."
        )
    return servers_folder() / str(os.geteuid()) / kind / name


def server_user() -> dict[str, Any]:
    """What makes a child process run as the user that servers run as: the caller, or `nobody`."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def hand_over(path: Path) -> None:
    """Give a path to the user that servers run as; a folder that is not there is made."""
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)  # Another start may be making it.
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for good: its id and when it was created, in seconds since the machine's start.
    An id that the system gave to another program is never signalled.
    """

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has this id now; one that never lived where there is none."""
        with suppress(psutil.NoSuchProcess, ValueError):
            process = psutil.Process(pid)
            if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return cls(pid, round(process.create_time() - psutil.boot_time(), 2))
        return cls(pid, -1.0)

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return self.created >= 0 and self.of(self.pid) == self

    def end(self, patience: float = 30.0) -> bool:
        """End it: SIGTERM, and SIGKILL when it has not gone after `patience` seconds."""
        was_alive = self.alive()
        for name, seconds in (("terminate", patience), ("kill", 10.0)):
            deadline = time.monotonic() + seconds
            with suppress(psutil.NoSuchProcess):
                if self.alive():
                    getattr(psutil.Process(self.pid), name)()
            # psutil's own wait takes a zombie, whose parent has not asked for its status, for alive
            while self.alive() and time.monotonic() < deadline:
                time.sleep(0.05)
        return was_alive


class ServerState(BaseModel):
    """What is remembered of a server that was started here."""

    model_config = ConfigDict(frozen=True)

    kind: str
    name: str
    version: str
    process: ProcessId
    url: str | None = Field(None, pattern=r"^[a-z]+://[A-Za-z0-9.]+:[1-9]\d{0,4}(/\d*)?$")

    @property
    def folder(self) -> Path:
        return server_folder(self.kind, self.name)

    @property
    def log(self) -> Path:
        """The file with all that it printed."""
        return self.folder / "output.log"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether its process is alive (it may still be starting)."""
        return self.process.alive()

    @property
    def port(self) -> int | None:
        return urlsplit(self.url).port if self.url else None

    def write(self) -> None:
        """Replace the state in the server's folder, at once or not at all. Raises StorageError."""
        with replacing(self.folder / "state.json") as file:
            file.write(self.model_dump_json(indent=1).encode())


def read_state(folder: Path) -> ServerState | None:
    """The state in a server's folder; None when it was stopped. Raises StorageError."""
    path = folder / "state.json"
    try:
        state = ServerState.model_validate_json(path.read_bytes())
        if (state.kind, state.name) != (folder.parent.name, folder.name):
            raise ValueError("it is of another server")
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise StorageError(
            f"The server state {path} can't be read; end its process if it runs, and delete "
            f"{folder}."
        ) from error
    return state


@dataclass(frozen=True)
class Program:
    """What is to be run."""

    command: Sequence[str]
    environment: Mapping[str, str]
    version: str


@dataclass(frozen=True, kw_only=True)
class ServerSpec(ABC):
    """A server that is to run. Each kind of server has its own class."""

    kind: ClassVar[str]
    usual_port: ClassVar[int]
    start_seconds: ClassVar[float]
    address: ClassVar[str]
    name: str | None = None
    port: int | None = None

    @property
    @abstractmethod
    def server_name(self) -> str:
        """Its name."""

    @abstractmethod
    def prepare(self, folder: Path, port: int, say: Say, /) -> Program:
        """Write what the server reads at its start, below `folder`."""

    @abstractmethod
    def check(self, folder: Path, url: str, /) -> None:
        """Raise ServiceError unless it works."""


@dataclass(frozen=True, slots=True)
class Started:
    """A running server, and whether it ran already."""

    state: ServerState
    already: bool


def start(wanted: ServerSpec, say: Say = lambda _: None) -> Started:
    """Start a server and wait until it works; the running one when there is one of this name.
    Raises UserError, StorageError and ServiceError.
    """
    folder = server_folder(wanted.kind, wanted.server_name)
    with _written(folder):
        hand_over(folder / "data")
        # One start at a time: between the choice of a port and its use lie seconds.
        with FileLock(folder.parent / ".lock"):
            before = read_state(folder)
            if before is not None and before.running and before.url:
                if wanted.port not in (None, 0, before.port):
                    raise UserError(
                        f"{before.name} runs already, on port {before.port}; stop it or give "
                        "another --name."
                    )
                return Started(before, already=True)
            if before is not None:
                say(f"The last {before.name} (process {before.pid}) died; starting it again.")
                before.process.end()
            return Started(_launched(wanted, folder, say), already=False)


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    old = os.umask(0o022)
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"The folder for servers, {folder}, can't be written ({error.strerror}); let "
            f"{CACHE_VARIABLE} name another one."
        ) from error
    finally:
        os.umask(old)


def _launched(wanted: ServerSpec, folder: Path, say: Say) -> ServerState:
    if wanted.port and not free_port(wanted.port):
        raise UserError(
            f"Port {wanted.port} of 127.0.0.1 is taken; give another --port, or leave it out."
        )
    port = wanted.port or (wanted.port is None and free_port(wanted.usual_port)) or free_port()
    program = wanted.prepare(folder, port, say)
    process = _spawn(program, folder)
    try:
        names = {"kind": wanted.kind, "name": folder.name, "version": program.version}
        state = ServerState.model_validate({**names, "process": process})
        state.write()
        url = wanted.address.format(port)
        _wait(wanted, state, url)
        state = state.model_copy(update={"url": url})
        state.write()
        return state
    except BaseException:
        process.end()
        (folder / "state.json").unlink(missing_ok=True)
        raise


def _spawn(program: Program, folder: Path) -> ProcessId:
    try:
        with (folder / "output.log").open("ab") as output:
            child = subprocess.Popen(
                list(program.command),
                env=dict(program.environment),
                cwd=folder / "data",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **server_user(),
            )
    except OSError as error:
        user = "nobody, as whom root's servers run" if os.geteuid() == 0 else "this user"
        raise ServiceError(
            f"{program.command[0]} can't be started by {user} ({error}); a closed folder is "
            f"avoided by {CACHE_VARIABLE}."
        ) from error
    return ProcessId.of(child.pid)


def _wait(wanted: ServerSpec, state: ServerState, url: str) -> None:
    deadline = time.monotonic() + wanted.start_seconds
    while True:
        try:
            wanted.check(state.folder, url)
            return
        except ServiceError as error:
            said = str(error)
            if not (running := state.running):
                said = f"{state.name} ended while starting: {_last_words(state.log)}"
            if not running or time.monotonic() > deadline:
                raise ServiceError(f"{said} The log is {state.log}.") from error
        time.sleep(0.1)


def _last_words(output: Path) -> str:
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("at ")]
    errors = [line for line in lines if re.search(r"Exception|[Ee]rror|ERROR|FATAL", line)]
    return (errors or lines or ["it wrote nothing."])[-1][:300]


def known(kind: str, name: str | None = None) -> list[ServerState]:
    """All servers of a kind that this user started (or the one of a name) and did not stop, the
    latest first; some may have died since. A broken state is a warning.
    """
    folder, found = server_folder(kind, name or "any").parent, []
    for path in folder.glob(f"{name or '*'}/state.json"):
        try:
            if (state := read_state(path.parent)) is not None:
                found.append((path.stat().st_mtime, state))
        except (StorageError, FileNotFoundError) as error:
            log.warning("%s", error)
    return [state for _, state in sorted(found, key=lambda one: one[0], reverse=True)]


def stop(state: ServerState, *, remove: bool = False) -> bool:
    """End a server; see `stop_named`."""
    return stop_named(state.kind, state.name, remove=remove)


def stop_named(kind: str, name: str, *, remove: bool = False) -> bool:
    """End a server's process; False when it was not running any more. Its data stays for the next
    start; `remove` deletes its folder: data, logs and configuration. Raises UserError.
    """
    folder = server_folder(kind, name)
    if not folder.exists():
        raise UserError(f"No server {name} was started here.")
    with FileLock(folder.parent / ".lock"):
        state = read_state(folder)
        ended = state is not None and state.process.end()
        (folder / "state.json").unlink(missing_ok=True)
        if remove:
            shutil.rmtree(folder)
    return ended


def free_port(port: int = 0) -> int:
    """This port, or any where it is 0, if nobody listens on it now; 0 if somebody does."""
    try:
        with socket.create_server(("127.0.0.1", port)) as probe:
            return int(probe.getsockname()[1])
    except OSError:
        return 0
