"""Where servers keep their files, and one start of a name at a time.

    <cache>/servers/distributions/opensearch-3.8.0/     unpacked once, read-only in use
    <cache>/servers/instances/opensearch-3.8.0/         state.json, config/, data/, logs/, tmp/

<cache> is COGR_CACHE_DIR, else the system's folder for caches of `cogr`: the user's, on Linux
XDG_CACHE_HOME or ~/.cache; for root the one of all users, on Linux /var/cache. It is a folder below
the temporary one where that can't be written.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import site_cache_path, user_cache_path

from cogr.errors import SettingsError, StorageError, UserError
from ops.servers.processes import Account

CACHE_VARIABLE = "COGR_CACHE_DIR"
LEAST_FREE = 300_000_000
"""Bytes of disk that must be free before a server starts."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def servers_folder(account: Account) -> Path:
    """The folder of all servers, created; one that the account can enter.

    Raises:
        SettingsError: COGR_CACHE_DIR names a folder that can't be used.
        StorageError: no folder could be created anywhere.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    problems = []
    for cache in [Path(chosen).expanduser().absolute()] if chosen else _default_caches():
        problem = _problem(cache / "servers", account)
        if problem is None:
            return cache / "servers"
        problems.append(f"{cache} {problem}")
    if chosen:
        raise SettingsError(f"{CACHE_VARIABLE}={problems[0]}; name another folder.")
    raise StorageError(
        f"There is no folder for servers ({'; '.join(problems)}); set {CACHE_VARIABLE} to one."
    )


def _default_caches() -> list[Path]:
    """Candidates, best first."""
    temporary = Path(tempfile.gettempdir()) / f"cogr-{os.geteuid()}"
    if os.geteuid() != 0:
        return [user_cache_path("cogr"), temporary]
    own = [user_cache_path("cogr")] if os.environ.get("XDG_CACHE_HOME") else []
    return [*own, site_cache_path("cogr"), temporary]


def _problem(folder: Path, account: Account) -> str | None:
    """Why servers can't keep their files in a folder, which is created; None when they can."""
    try:
        with open_to_others():
            folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            return "belongs to another user"
    except OSError as error:
        return f"can't be written ({error.strerror})"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "can't be written"
    if not account.may("x", folder):
        return f"can't be entered by the user {account.name}, as whom root's servers run"
    return None


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
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of `path`, which ends with this process at the latest; calls `waiting` before
    it waits for another holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = lock_of(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if waiting is not None:
            waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def lock_of(path: Path) -> FileLock:
    """The lock of a path, not yet held."""
    return FileLock(path.with_name(f".{path.name}.lock"))


def reachable(path: Path, account: Account, copy: Path) -> Path:
    """A program where the account can run it: a copy, made once, where it lies in a closed folder,
    such as a virtual environment below /root.
    """
    if account.may("x", path):
        return path
    with locked(copy):
        if not copy.exists():
            unfinished = copy.with_name(f".tmp-{os.getpid()}")
            shutil.copyfile(path, unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(copy)
    return copy


def require_free(folder: Path, what: str, needed: int = LEAST_FREE) -> None:
    """Raise StorageError when fewer than `needed` bytes are free where `folder` is."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{what} needs {needed / 1e9:.1f} GB of disk under {folder}, but {free / 1e9:.1f} GB "
            f"are free; make room or set {CACHE_VARIABLE} to a folder on another disk."
        )
