"""What all kinds of local servers have in common: one start of a name at a time, which there are, stopping them, ports."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cogr.errors import UserError
from ops.servers.account import Account, service_account
from ops.servers.folders import instance_folder, locked, open_to_others, servers_folder
from ops.servers.process import current_process, end, interrupts_held, spawn
from ops.servers.state import ServerState, drop_state, read_state, states, write_state

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Started:
    """A running server, and whether it ran already."""

    state: ServerState
    already: bool


def quiet(_: str) -> None:
    """Says nothing."""


def start(
    name: str,
    say: Say,
    *,
    refuse: Callable[[ServerState], None],
    launch: Callable[[Path, Path, Account], ServerState],
    finish: Callable[[ServerState], ServerState],
) -> Started:
    """Start the server of a name, or find the one that runs.

    Args:
        say: told about waiting, and about a server that died.
        refuse: raises UserError when the running server is not what was asked for.
        launch: (its folder, the servers' folder, the account it runs as) -> its process, remembered.
        finish: waits until it works, and remembers its address; a server that does not come up is ended.
    """
    account = service_account()
    servers = servers_folder(account)
    folder = instance_folder(servers, name)
    # Root's files are for the account that the server runs as.
    for_account = open_to_others if account.drops else nullcontext
    with for_account():
        folder.parent.mkdir(exist_ok=True)
    with locked(folder, lambda: say(f"Waiting for another start of {name} ...")):
        state = _running(folder, name, say)
        if state is not None:
            refuse(state)
            if state.url:
                return Started(state, already=True)
        with _ended_if_it_fails(folder):
            if state is not None:
                return Started(finish(state), already=True)
            with for_account():
                launched = launch(folder, servers, account)
            return Started(finish(launched), already=False)


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
    """Start a server's process and remember it. Ctrl-C waits until it is, or the process would be left behind.

    Args:
        command, environment, cwd, account, log: as of `spawn`, and raises as that.
        bound_to_caller: `reap_orphans` may remove it once this process is gone.
        details: further fields of its state: kind, name, version, folder, data, and what only some kinds have.
    """
    owner = current_process() if bound_to_caller else None
    with interrupts_held():
        process = spawn(command, environment=environment, cwd=cwd, log=log, account=account)
        state = ServerState(
            pid=process.pid,
            birth=process.birth,
            started=datetime.now(UTC).isoformat(timespec="milliseconds"),
            owner_pid=owner.pid if owner else None,
            owner_birth=owner.birth if owner else None,
            log=log,
            **details,
        )
        write_state(state)
    return state


def _running(folder: Path, name: str, say: Say) -> ServerState | None:
    state = read_state(folder)
    if state is None or state.running:
        return state
    say(f"The last {name} (process {state.pid}) ended without a stop; starting it again.")
    drop_state(folder)
    return None


@contextmanager
def _ended_if_it_fails(folder: Path) -> Iterator[None]:
    """A server that does not come up, or whose start is interrupted, is not left behind."""
    try:
        yield
    except BaseException:
        if (state := read_state(folder)) is not None:
            end(state.process)
            drop_state(folder)
        raise


def known(kind: str, name: str | None = None) -> list[ServerState]:
    """All servers of a kind that were started and not stopped (or the one of a name), the latest first."""
    servers = servers_folder(service_account())
    return [state for state in states(servers, kind) if name in (None, state.name)]


def stop(state: ServerState, *, remove: bool = False) -> bool:
    """End the server's process and forget it.

    Args:
        remove: delete its data and its folder (logs, configuration) too.

    Returns:
        False when it was not running any more.
    """
    with locked(state.folder):
        ended = end(state.process)
        drop_state(state.folder)
        if remove:
            for folder in (state.data, state.folder):
                if folder.exists():
                    shutil.rmtree(folder)
    return ended


def reap_orphans(kind: str) -> None:
    """Stop and remove the servers whose owner process is gone, such as a test session that was killed."""
    for state in known(kind):
        if state.orphaned:
            stop(state, remove=True)


def choose_port(wanted: int | None, preferred: int) -> int:
    """The port to configure; 0 stands for any free one.

    Raises:
        UserError: the wanted port is taken.
    """
    if wanted is None:
        return preferred if port_free(preferred) else 0
    if wanted and not port_free(wanted):
        raise UserError(f"Port {wanted} of 127.0.0.1 is taken; give another --port, or none for a free one.")
    return wanted


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
