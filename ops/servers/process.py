"""Starting a server process, recognising it again later, and ending exactly that one.

A process is named by its id and a birth mark (boot and start time), so that an id that the system
gave to somebody else is never signalled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cogr.errors import ServiceError, UserError
from ops.servers.account import Account

POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good: `pid` alone may be given again, `birth` (boot id and start
    time) is not.
    """

    pid: int
    birth: str

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return birth_of(self.pid) == self.birth


def current_process() -> ProcessId:
    """The calling process."""
    birth = birth_of(os.getpid())
    assert birth is not None
    return ProcessId(os.getpid(), birth)


def birth_of(pid: int) -> str | None:
    """The birth mark of a running process, None when there is none with this id."""
    if not Path("/proc/self/stat").exists():
        return _birth_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name, in brackets, may hold anything; the fields after it are plain (proc(5)):
    # state is the first of them, the start time in clock ticks since boot the twentieth.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{fields[19]}"


def _birth_by_ps(pid: int) -> str | None:
    """The same where there is no /proc (macOS)."""
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split(maxsplit=1)
    return None if len(shown) < 2 or shown[0].startswith("Z") else shown[1].strip()


def spawn(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path,
    log: Path,
    account: Account,
) -> ProcessId:
    """Start a process that outlives the caller, its output appended to a log.

    Raises:
        ServiceError: it could not be started.
        UserError: the caller is root and may not change to the account.
    """
    try:
        with log.open("ab") as output:
            child = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **account.popen_arguments(),
            )
    except PermissionError as error:
        raise UserError(
            f"{command[0]} can't be started as the user {account.name} ({error}); check its "
            "permissions."
        ) from error
    except OSError as error:
        raise ServiceError(f"{command[0]} can't be started ({error}).") from error
    return ProcessId(child.pid, birth_of(child.pid) or "ended at once")


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the block is over: a process that was started in it and not yet remembered
    would be left behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # A handler of Python's own, and no blocked signal: the new process would inherit that.
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def end(process: ProcessId, patience: float = 30.0) -> bool:
    """End a process: SIGTERM, and SIGKILL when it has not gone after `patience` seconds.

    Returns:
        False when it was not running any more.

    Raises:
        UserError: it belongs to somebody else.
    """
    for signal_number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 10.0)):
        if not process.alive():
            return signal_number == signal.SIGKILL
        try:
            os.kill(process.pid, signal_number)
        except ProcessLookupError:
            return True
        except PermissionError as error:
            raise UserError(
                f"Process {process.pid} belongs to another user; stop it as the user who started "
                "it."
            ) from error
        if _gone(process, seconds):
            return True
    raise ServiceError(
        f"Process {process.pid} does not end, not even by SIGKILL; look at it with ps."
    )


def _gone(process: ProcessId, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def last_words(log: Path, offset: int = 0) -> str:
    """The line of a log, from a byte offset on, that most likely says why a process ended."""
    try:
        with log.open("rb") as file:
            file.seek(offset)
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "it wrote no log."
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.strip().startswith("at ")
    ]
    telling = [
        line
        for line in lines
        if any(word in line for word in ("Exception", "Error", "ERROR", "rror:", "FATAL"))
    ]
    chosen = (telling or lines or ["it wrote nothing."])[-1]
    return chosen[:300]
