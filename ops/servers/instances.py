"""What all kinds of local servers have in common: one start of a name at a time, which there are,
stopping them, ports.
"""

from __future__ import annotations

import fcntl
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cogr.errors import UserError
from cogr.progress import Say
from ops.servers.account import Account, service_account
from ops.servers.folders import instance_folder, locked, open_to_others, servers_folder
from ops.servers.process import current_process, end, interrupts_held, spawn
from ops.servers.state import ServerState, drop_state, read_state, states, write_state


@dataclass(frozen=True, slots=True)
class Started:
    """A running server, and whether it ran already."""

    state: ServerState
    already: bool


def quiet(_: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is to run: its folder, the folder of all servers, the account it runs as, and
    its port (0: any free one).
    """

    folder: Path
    servers: Path
    account: Account
    port: int


@dataclass(frozen=True, slots=True)
class Making:
    """How servers of one kind are started.

    Attributes:
        kind: their kind.
        port: the port that was asked for; None takes the one that the server had, else `preferred`,
            if free, else any.
        refuse: raises UserError when the running server is not what was asked for.
        launch: starts its process, and remembers it.
        finish: waits until it works, and remembers its address; a server that does not come up is
            ended.
    """

    kind: str
    port: int | None
    preferred: int
    refuse: Callable[[ServerState], None]
    launch: Callable[[Place], ServerState]
    finish: Callable[[ServerState], ServerState]


def start(name: str, say: Say, making: Making) -> Started:
    """Start the server of a name, or find the one that runs.

    Args:
        say: told about waiting, about a server that died, and about a port that it can't have
            again.

    Raises:
        UserError: the name is that of a server of another kind, or the port is taken.
    """
    account = service_account()
    servers = servers_folder(account)
    folder = instance_folder(servers, name)
    # Root's files are for the account that the server runs as.
    for_account = open_to_others if account.drops else nullcontext
    with for_account():
        folder.parent.mkdir(exist_ok=True)
    with locked(folder, lambda: say(f"Waiting for another start of {name} ...")):
        before = read_state(folder)
        _check_kind(before, making.kind)
        state = _running(before, say)
        if state is not None:
            making.refuse(state)
            if state.url:
                return Started(state, already=True)
        with _as_before_if_it_fails(folder, before), _port(servers, before, making, say) as port:
            if state is not None:
                return Started(making.finish(state), already=True)
            with for_account():
                launched = making.launch(Place(folder, servers, account, port))
            return Started(making.finish(launched), already=False)


def begin(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path,
    account: Account,
    bound_to_caller: bool,
    log: Path,
    **details: Any,
) -> ServerState:
    """Start a server's process and remember it. Ctrl-C waits until it is, or the process would be
    left behind.

    Args:
        command, environment, cwd, account, log: as of `spawn`, and raises as that.
        bound_to_caller: `reap_orphans` may remove it once this process is gone.
        details: further fields of its state: kind, name, version, folder, data, and what only some
            kinds have.
    """
    owner = current_process() if bound_to_caller else None
    with interrupts_held():
        process = spawn(command, environment=environment, cwd=cwd, log=log, account=account)
        state = ServerState(
            pid=process.pid,
            birth=process.birth,
            started=_now(),
            owner_pid=owner.pid if owner else None,
            owner_birth=owner.birth if owner else None,
            log=log,
            **details,
        )
        write_state(state)
    return state


def _check_kind(state: ServerState | None, kind: str) -> None:
    """Refuse a name that a server of another kind has: its data lies in that folder, also when it
    is stopped.
    """
    if state is not None and state.kind != kind:
        doing = "is running" if state.running else "was started here before"
        raise UserError(f"{state.name} {doing} as {state.kind}, not {kind}; give another --name.")


def _running(state: ServerState | None, say: Say) -> ServerState | None:
    if state is None or state.running:
        return state
    if state.stopped is None:
        say(f"The last {state.name} (process {state.pid}) ended without a stop; starting it again.")
    return None


@contextmanager
def _port(servers: Path, before: ServerState | None, making: Making, say: Say) -> Iterator[int]:
    """A port that no other start takes meanwhile: between the choice and the moment when a server
    listens lie seconds.
    """
    had = before.port if before is not None else None
    with ExitStack() as held:
        for port in (
            [making.port] if making.port is not None else dict.fromkeys((had, making.preferred))
        ):
            if port == 0 or (port and port_free(port) and _reserved(held, servers, port)):
                yield port
                return
            if port and making.port is not None:
                raise UserError(
                    f"Port {port} of 127.0.0.1 is taken; give another --port, or none for a free "
                    "one."
                )
            if port and port == had:
                say(f"Port {port}, which it had, is taken: it gets another one.")
        yield 0


def _reserved(held: ExitStack, servers: Path, port: int) -> bool:
    """Whether this start has the port for itself, until it is over."""
    file = held.enter_context((servers / "instances" / f".port-{port}.lock").open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _as_before_if_it_fails(folder: Path, before: ServerState | None) -> Iterator[None]:
    """A server that does not come up, or whose start is interrupted, is not left behind; what was
    known of it stays.
    """
    try:
        yield
    except BaseException:
        if (state := read_state(folder)) is not None:
            end(state.process)
            drop_state(folder)
        if before is not None and before.url:
            write_state(before.model_copy(update={"stopped": before.stopped or _now()}))
        raise


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def known(kind: str, name: str | None = None, *, stopped: bool = False) -> list[ServerState]:
    """All servers of a kind that were started (or the one of a name), the latest first.

    Args:
        stopped: those that were stopped too.
    """
    servers = servers_folder(service_account())
    return [state for state in states(servers, kind, stopped=stopped) if name in (None, state.name)]


def stop(state: ServerState, *, remove: bool = False) -> bool:
    """End the server's process; its data and its port stay for the next start.

    Args:
        remove: delete its data and its folder (logs, configuration) too.

    Returns:
        False when it was not running any more.
    """
    with locked(state.folder):
        ended = state.stopped is None and end(state.process)
        if state.url:
            write_state(state.model_copy(update={"stopped": state.stopped or _now()}))
        else:
            drop_state(state.folder)
        if remove:
            for folder in (state.data, state.folder):
                if folder.exists():
                    shutil.rmtree(folder)
    return ended


def reap_orphans(kind: str) -> None:
    """Stop and remove the servers whose owner process is gone, such as a test session that was
    killed.
    """
    for state in known(kind):
        if state.orphaned:
            stop(state, remove=True)


def port_free(port: int) -> bool:
    """Whether nobody listens on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that nobody listens on now, for a server that can't take one by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
