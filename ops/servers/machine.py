"""What servers need of the machine: an account, a folder, locks, disk, and processes, which are
recognised again later and ended, exactly these.

    <cache>/servers/distributions/opensearch-3.8.0/     unpacked once, read-only in use
    <cache>/servers/instances/opensearch-3.8.0/         state.json, config/, data/, logs/, tmp/

<cache> is COGR_CACHE_DIR, else the system's folder for caches of `cogr`: the user's, on Linux
XDG_CACHE_HOME or ~/.cache; for root the one of all users, on Linux /var/cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from filelock import FileLock, Timeout
from platformdirs import site_cache_path, user_cache_path

from cogr.errors import ServiceError, SettingsError, StorageError, UserError

CACHE_VARIABLE = "COGR_CACHE_DIR"
LEAST_FREE = 300_000_000
"""Bytes of disk that must be free before a server starts."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NOBODY = 65534
"""The uid and gid of `nobody`; a process may have them where no account does."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a server runs as. `drops` says that it is another one than the caller."""

    name: str
    uid: int
    gid: int
    drops: bool

    def popen_arguments(self) -> dict[str, Any]:
        """What makes a child process run as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.drops else {}

    def own(self, path: Path) -> None:
        """Give a path to this account; one that is not there is made, as a folder."""
        if not path.exists():
            path.mkdir(parents=True)
        if self.drops:
            os.chown(path, self.uid, self.gid)

    def may(self, right: Literal["w", "x"], path: Path) -> bool:
        """Whether this account may write to a path, or run or enter it, as test(1) says.

        Raises:
            UserError: the caller is root and may not change to this account (a container without
                that capability).
        """
        try:
            command, environment = ["test", f"-{right}", str(path)], {"PATH": os.defpath}
            probe = subprocess.run(command, env=environment, cwd="/", **self.popen_arguments())
        except PermissionError as error:
            raise UserError(
                "Servers don't run as root, and this process may not change to the user "
                f"{self.name}; run the command as an ordinary user."
            ) from error
        return probe.returncode == 0


def service_account() -> Account:
    """The account for servers: the caller, or `nobody` when the caller is root."""
    if os.geteuid() == 0:
        return Account("nobody", NOBODY, NOBODY, drops=True)
    return Account(psutil.Process().username(), os.geteuid(), os.getegid(), drops=False)


def servers_folder(account: Account) -> Path:
    """The folder of all servers, created; one that the account can enter. Raises SettingsError."""
    default = site_cache_path("cogr") if os.geteuid() == 0 else user_cache_path("cogr")
    folder = Path(os.environ.get(CACHE_VARIABLE) or default).expanduser().absolute() / "servers"
    problem = ""
    try:
        with open_to_others():
            folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            problem = "can't be written"
        elif not account.may("x", folder):
            problem = f"can't be entered by the user {account.name}, as whom root's servers run"
    except OSError as error:
        problem = f"can't be written ({error.strerror})"
    if problem:
        raise SettingsError(
            f"The folder for servers, {folder}, {problem}; let {CACHE_VARIABLE} name another one."
        )
    return folder


@contextmanager
def open_to_others() -> Iterator[None]:
    """Files that are created meanwhile can be read by other users, whatever the caller's umask."""
    old = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(old)


def instance_folder(servers: Path, name: str) -> Path:
    """The folder of one named server, not created. Raises UserError for a name that is none."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"The server name {name!r} is not usable; use lower-case letters, digits, dots and "
            "dashes."
        )
    return servers / "instances" / name


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of a path, which ends with this process at the latest; `waiting` is called
    before waiting for another holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def made_once(
    path: Path, make: Callable[[Path], Path], waiting: Callable[[], None] = lambda: None
) -> Path:
    """A file or folder that the first one who needs it makes: `make` writes it below the folder
    that it is given, and returns where.
    """
    with locked(path, waiting):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tmp-") as scratch:
                make(Path(scratch)).rename(path)
    return path


def reachable(path: Path, account: Account, copy: Path) -> Path:
    """A program where the account can run it: a copy, made once, where it lies in a closed folder,
    such as a virtual environment below /root.
    """

    def copied(scratch: Path) -> Path:
        made = shutil.copyfile(path, scratch / path.name)
        made.chmod(0o755)
        return made

    return path if account.may("x", path) else made_once(copy, copied)


def require_free(folder: Path, what: str, needed: int = LEAST_FREE) -> None:
    """Raise StorageError when fewer than `needed` bytes are free where `folder` is."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{what} needs {needed / 1e9:.1f} GB of disk under {folder}, but {free / 1e9:.1f} GB "
            f"are free; make room or set {CACHE_VARIABLE} to a folder on another disk."
        )


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for good: its id, and when it was created, see `created_at`. An id that the
    system gave to another program is never signalled.
    """

    pid: int
    created: float

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return created_at(self.pid) == self.created


def created_at(pid: int) -> float | None:
    """When a process was created, in seconds since the machine's start, which nobody changes by
    setting the clock; None when no process with this id runs.
    """
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        return float(round(process.create_time() - psutil.boot_time(), 2))
    except (psutil.NoSuchProcess, ValueError):
        return None


def current_process() -> ProcessId:
    """The calling process."""
    return ProcessId(os.getpid(), created_at(os.getpid()) or 0.0)


def spawn(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path, account: Account
) -> ProcessId:
    """Start a process that outlives the caller, its output appended to a log. Raises ServiceError
    where that can't be done.
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
    except OSError as error:
        raise ServiceError(
            f"{command[0]} can't be started as the user {account.name} ({error})."
        ) from error
    # One that has ended already gets a time that no process has.
    return ProcessId(child.pid, created_at(child.pid) or -1.0)


def end(process: ProcessId, patience: float = 30.0) -> bool:
    """End a process: SIGTERM, and SIGKILL when it has not gone after `patience` seconds.

    Returns:
        False when it was not running any more.

    Raises:
        UserError: it belongs to another user.
        ServiceError: it does not end.
    """
    if not process.alive():
        return False
    try:
        # psutil signals the process that it found, and never a later one with the same id.
        found = psutil.Process(process.pid)
        for ask, seconds in ((found.terminate, patience), (found.kill, 10.0)):
            ask()
            # psutil's own wait takes a zombie, whose parent has not asked for its status, for alive
            for _ in range(round(10 * seconds)):
                if not process.alive():
                    return True
                time.sleep(0.1)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied as error:
        raise UserError(
            f"Process {process.pid} belongs to another user; stop it as the user who started it."
        ) from error
    raise ServiceError(
        f"Process {process.pid} does not end, not even by SIGKILL; look at it with ps."
    )


def last_words(log: Path) -> str:
    """The line of a log that most likely says why a process ended."""
    if not log.exists():
        return "it wrote no log."
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("at ")]
    errors = [line for line in lines if re.search(r"Exception|Error|ERROR|rror:|FATAL", line)]
    return (errors or lines or ["it wrote nothing."])[-1][:300]
