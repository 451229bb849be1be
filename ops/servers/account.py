"""Which user a server runs as: the caller, or an unprivileged account when the caller is root.

Search and cache servers refuse to run as root, and should not. No process is started here except
small probes.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.errors import UserError

UNPRIVILEGED = ("nobody", "daemon")
NUMERIC_FALLBACK = 65534
"""The uid and gid used when no account of UNPRIVILEGED exists (a numeric id needs no account)."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a server runs as. `drops` says that it differs from the caller."""

    name: str
    uid: int
    gid: int
    drops: bool

    def popen_arguments(self) -> dict[str, Any]:
        """Arguments of subprocess calls that make the child run as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.drops else {}

    def own(self, *folders: Path) -> None:
        """Create folders and hand them to this account."""
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            if self.drops:
                os.chown(folder, self.uid, self.gid)

    def may(self, right: str, path: Path) -> bool:
        """Whether this account has a right on a path, by the system's own answer.

        Args:
            right: "r", "w" or "x", as in test(1).

        Raises:
            UserError: the caller is root and may not change to this account (a container without
                that capability).
        """
        if not self.drops:
            return os.access(path, {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}[right])
        try:
            command, environment = ["test", f"-{right}", str(path)], {"PATH": os.defpath}
            probe = subprocess.run(
                command, env=environment, check=False, cwd="/", **self.popen_arguments()
            )
        except PermissionError as error:
            raise UserError(
                "Servers don't run as root, and this process may not change to the user "
                f"{self.name}; "
                "run the command as an ordinary user."
            ) from error
        return probe.returncode == 0


def service_account() -> Account:
    """The account for servers: the caller, or for root the first of UNPRIVILEGED that exists."""
    uid = os.geteuid()
    if uid != 0:
        return Account(_name(uid), uid, os.getegid(), drops=False)
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid, drops=True)
    return Account(str(NUMERIC_FALLBACK), NUMERIC_FALLBACK, NUMERIC_FALLBACK, drops=True)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
