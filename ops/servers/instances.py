"""The servers that were started here: each is a folder with a state.json. Starting one, once a
name at a time, finding it again, and stopping it.
"""

from __future__ import annotations

import logging
import shutil
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from cogr.errors import ServiceError, StorageError, UserError
from cogr.records import Say
from cogr.store import replacing
from ops.servers import machine
from ops.servers.machine import Account, ProcessId, locked, open_to_others

STATE_FILE = "state.json"
T = TypeVar("T")

log = logging.getLogger(__name__)


class ServerState(BaseModel):
    """What is remembered of a server that was started here.

    Attributes:
        name: also the name of its folder.
        owner: the process that it belongs to and must not outlive (a test session), if any.
        started, stopped: when.
        url: where it answers; None until it has been seen ready.
        ca_file: the certificate authority to verify it with, when it speaks TLS.
        credentials_file: settings, "COGR_TABLE__KEY=value" a line, when it asks for a password.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    name: str
    version: str
    process: ProcessId
    owner: ProcessId | None = None
    started: str
    folder: Path
    data: Path
    log: Path
    url: str | None = Field(None, pattern=r"^[a-z]+://[A-Za-z0-9.]+:[1-9]\d{0,4}(/\d*)?$")
    stopped: str | None = None
    java: str | None = None
    ca_file: Path | None = None
    credentials_file: Path | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether its process is alive (it may still be starting)."""
        return self.stopped is None and self.process.alive()

    @property
    def port(self) -> int | None:
        """The port of its URL."""
        return urlsplit(self.url).port if self.url else None

    def connection(self) -> dict[str, str | None]:
        """The keys that reach it, of the table of settings that its clients read."""
        text = self.credentials_file.read_text("utf-8") if self.credentials_file else ""
        lines = [line.partition("=") for line in text.splitlines()]
        return {"url": self.url} | {
            name.rpartition("__")[2].lower(): value for name, found, value in lines if found
        }


def read_state(folder: Path) -> ServerState | None:
    """The state in a server's folder; None when none was written. Raises StorageError."""
    path = folder / STATE_FILE
    try:
        state = ServerState.model_validate_json(path.read_bytes())
        if (state.name, state.folder) != (folder.name, folder):
            raise ValueError("it is of another server")
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise StorageError(
            f"The server state {path} can't be read; end its process if it runs, and delete "
            f"{folder}."
        ) from error
    return state


def write_state(state: ServerState) -> None:
    """Replace the state in the server's folder, at once or not at all. Raises StorageError."""
    with replacing(state.folder / STATE_FILE) as file:
        file.write(state.model_dump_json(indent=1).encode())


@dataclass(frozen=True, kw_only=True)
class ServerSpec(ABC):
    """A server that is to run. Each kind of server has its own class.

    Attributes:
        name: None takes the name that servers of its kind have.
        port: None takes the one that it had, else `usual_port`, if free, else any free one; 0 takes
            any free one.
        data: None takes a folder below the server's own.
        bound_to_caller: a later `reap_orphans` stops and removes it when this process is gone.
    """

    kind: ClassVar[str]
    usual_port: ClassVar[int]
    name: str | None = None
    port: int | None = None
    data: Path | None = None
    bound_to_caller: bool = False

    @property
    @abstractmethod
    def server_name(self) -> str:
        """Its name."""

    @abstractmethod
    def launch(self, place: Place, say: Say) -> ServerState:
        """Write what the server reads at its start, and begin its process."""

    @abstractmethod
    def finish(self, state: ServerState) -> ServerState:
        """Wait until it works; its state with its URL. Raises ServiceError."""

    def difference(self, state: ServerState) -> str | None:
        """How the running server of this name differs from this one, "on ...", if it does."""
        if self.port and state.port not in (None, self.port):
            return f"on port {state.port}, not {self.port}"
        if self.data is not None and self.data.absolute() != state.data:
            return f"on the data in {state.data}"
        return None


@dataclass(frozen=True)
class Place:
    """Where a server is to run: its folder, the folder of its data, the folder of all servers, the
    account that it runs as, and its port (0: any free one).
    """

    wanted: ServerSpec
    folder: Path
    data: Path
    servers: Path
    account: Account
    port: int

    @property
    def credentials_file(self) -> Path:
        """Settings that let every command in, for its starter alone to read."""
        return self.folder / "credentials.env"

    def write_credentials(self, table: str, **values: str) -> None:
        """Write that file: keys of a table of settings."""
        lines = [f"COGR_{table}__{key}".upper() + f"={value}\n" for key, value in values.items()]
        self.credentials_file.touch(mode=0o600)
        self.credentials_file.write_text("".join(lines), "utf-8")

    def begin(
        self, command: list[str], environment: Mapping[str, str], **details: Any
    ) -> ServerState:
        """Begin the server's process, and remember it, with further fields of its state."""
        log = self.folder / f"{self.wanted.kind}.log"

        def spawned() -> ServerState:
            state = ServerState(
                kind=self.wanted.kind,
                name=self.wanted.server_name,
                process=machine.spawn(command, environment, self.data, log, self.account),
                owner=machine.current_process() if self.wanted.bound_to_caller else None,
                started=_now(),
                folder=self.folder,
                data=self.data,
                log=log,
                **details,
            )
            write_state(state)
            return state

        # In a thread, where Ctrl-C interrupts nothing: a process that nobody remembers would stay.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(spawned).result()


@dataclass(frozen=True, slots=True)
class Started:
    """A running server, and whether it ran already."""

    state: ServerState
    already: bool


def start(wanted: ServerSpec, say: Say = lambda _: None) -> Started:
    """Start a server and wait until it works; the running one when there is one of this name.

    Args:
        say: told what is waited for, and of a server that died.

    Raises:
        UserError: the machine lacks something that it needs (program, disk, port, rights), or a
            server of this name is another one than was asked for.
        ServiceError: the server did not come up; the message names its log.
    """
    account = machine.service_account()
    servers = machine.servers_folder(account)
    name = wanted.server_name
    folder = machine.instance_folder(servers, name)
    # Root's files are for the account that the server runs as.
    for_account = open_to_others() if account.drops else nullcontext()
    with for_account, locked(folder, lambda: say(f"Waiting for another start of {name} ...")):
        before = read_state(folder)
        running = _running(before, wanted, say)
        if running is not None and running.url:
            return Started(running, already=True)
        with _as_before_if_it_fails(folder, before), _port(servers, before, wanted, say) as port:
            data = (wanted.data or folder / "data").absolute()
            place = Place(wanted, folder, data, servers, account, port)
            ready = wanted.finish(running or _launch(place, say))
            write_state(ready)
            return Started(ready, already=running is not None)


def _running(state: ServerState | None, wanted: ServerSpec, say: Say) -> ServerState | None:
    """The server of this name, if it runs. Raises UserError when it is not what was asked for."""
    if state is None:
        return None
    # Also when it is stopped: its data lies in that folder.
    if state.kind != wanted.kind:
        raise UserError(
            f"{state.name} was started as {state.kind}, not {wanted.kind}; give another --name."
        )
    if state.running:
        if differs := wanted.difference(state):
            raise UserError(f"{state.name} runs already {differs}; stop it or give another --name.")
        return state
    if state.stopped is None:
        say(f"The last {state.name} (process {state.pid}) ended without a stop; starting it again.")
    return None


def _launch(place: Place, say: Say) -> ServerState:
    """Start a server's process, once there is disk for it and a folder for its data."""
    machine.require_free(place.servers, f"Starting {place.wanted.server_name}")
    place.folder.mkdir(parents=True, exist_ok=True)
    if not place.data.exists():
        place.account.own(place.data)
    if not place.account.may("w", place.data):
        raise UserError(
            f"The data folder {place.data} can't be written by the user {place.account.name}, as "
            "whom the server runs; change its owner or give another --data."
        )
    return place.wanted.launch(place, say)


@contextmanager
def _port(servers: Path, before: ServerState | None, wanted: ServerSpec, say: Say) -> Iterator[int]:
    """A free port: the one that was asked for, else the one that the server had, else the usual
    one; 0 for any. No other start of this kind takes it meanwhile: between the choice and the
    moment when a server listens lie seconds.
    """
    if wanted.port == 0:
        yield 0
        return
    had = before.port if before is not None else None
    ports = [wanted.port] if wanted.port else [had, wanted.usual_port]
    waiting = f"Waiting for another start of {wanted.kind} ..."
    with locked(servers / "instances" / f"{wanted.kind}-port", lambda: say(waiting)):
        port = next((port for port in ports if port and free_port(port)), 0)
        if wanted.port and not port:
            raise UserError(
                f"Port {wanted.port} of 127.0.0.1 is taken; give another --port, or none for a "
                "free one."
            )
        if had and not wanted.port and port != had:
            say(f"Port {had}, which it had, is taken: it gets another one.")
        yield port


@contextmanager
def _as_before_if_it_fails(folder: Path, before: ServerState | None) -> Iterator[None]:
    """A server that does not come up, or whose start is interrupted, is not left behind; what was
    known of it stays.
    """
    try:
        yield
    except BaseException:
        if (state := read_state(folder)) is not None:
            machine.end(state.process)
            (folder / STATE_FILE).unlink()
        if before is not None and before.url:
            write_state(before.model_copy(update={"stopped": before.stopped or _now()}))
        raise


def wait_until(ask: Callable[[], T], state: ServerState, seconds: float) -> T:
    """What a new server answers, asked again while `ask` raises ServiceError.

    Raises:
        ServiceError: the server ended, or has not answered after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except ServiceError as error:
            running, said = state.running, str(error)
            if not running:
                said = f"{state.name} ended while starting: {machine.last_words(state.log)}"
            if not running or time.monotonic() > deadline:
                raise ServiceError(f"{said} The log is {state.log}.") from error
        time.sleep(0.1)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def known(kind: str, name: str | None = None, *, stopped: bool = False) -> list[ServerState]:
    """All servers of a kind that were started (or the one of a name), the latest first; some may
    have died since. With `stopped` those that were stopped follow. A broken state is a warning.
    """
    found, servers = [], machine.servers_folder(machine.service_account())
    for path in (servers / "instances").glob(f"*/{STATE_FILE}"):
        try:
            state = read_state(path.parent)
        except StorageError as error:
            log.warning("%s", error)
            continue
        if state is not None and state.kind == kind and name in (None, state.name):
            found.append(state)
    found.sort(key=lambda state: (state.stopped is None, state.started), reverse=True)
    return [state for state in found if stopped or state.stopped is None]


def stop(state: ServerState, *, remove: bool = False) -> bool:
    """End the server's process; False when it was not running any more. Its data and its port stay
    for the next start; `remove` deletes its data and its folder (logs, configuration), too.
    """
    with locked(state.folder):
        ended = state.stopped is None and machine.end(state.process)
        if state.url:
            write_state(state.model_copy(update={"stopped": state.stopped or _now()}))
        else:
            (state.folder / STATE_FILE).unlink(missing_ok=True)
        if remove:
            for folder in (state.data, state.folder):
                if folder.exists():
                    shutil.rmtree(folder)
    return ended


def reap_orphans(kind: str) -> None:
    """Stop and remove the servers of a kind whose owner process is gone, such as a test session
    that was killed.
    """
    for state in known(kind):
        if state.owner is not None and not state.owner.alive():
            stop(state, remove=True)


def free_port(port: int = 0) -> int:
    """This port, or any where it is 0, if nobody listens on it now; 0 if somebody does."""
    try:
        with socket.create_server(("127.0.0.1", port)) as probe:
            return int(probe.getsockname()[1])
    except OSError:
        return 0
