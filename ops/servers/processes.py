"""Processes of servers: started as an ordinary user, recognised again later, and ended, exactly
these.

A process is known by its id and its start time, so that an id that the system gave to another
program is never signalled.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cogr.errors import ServiceError, UserError

NOBODY = 65534
"""The uid and gid of `nobody` where no account has that name (a numeric id needs none)."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a server runs as. `drops` says that it is another one than the caller."""

    name: str
    uid: int
    gid: int
    drops: bool

    def popen_arguments(self) -> dict[str, Any]:
        """Arguments of subprocess calls that make the child run as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.drops else {}

    def own(self, path: Path) -> None:
        """Give a path to this account; one that is not there is made, as a folder."""
        if not path.exists():
            path.mkdir(parents=True)
        if self.drops:
            os.chown(path, self.uid, self.gid)

    def may(self, right: str, path: Path) -> bool:
        """Whether this account has a right on a path: "r", "w" or "x", as in test(1).

        Raises:
            UserError: the caller is root and may not change to this account (a container without
                that capability).
        """
        if not self.drops:
            return os.access(path, {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}[right])
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
    uid = os.geteuid()
    if uid != 0:
        return Account(psutil.Process().username(), uid, os.getegid(), drops=False)
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return Account(str(NOBODY), NOBODY, NOBODY, drops=True)
    return Account("nobody", entry.pw_uid, entry.pw_gid, drops=True)


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for good: its id, and when it was created, see `created_at`."""

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
            deadline = time.monotonic() + seconds
            # psutil's own wait takes a zombie, whose parent has not asked for its status, for alive
            while time.monotonic() < deadline:
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
