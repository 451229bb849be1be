"""Where servers keep their files: distributions shared by all, and one folder for each named
server.

    <cache>/servers/distributions/opensearch-3.8.0/     unpacked once, read-only in use
    <cache>/servers/instances/opensearch-3.8.0/         state.json, config/, data/, logs/, tmp/

<cache> is COGR_CACHE_DIR, else the user's cache folder (XDG_CACHE_HOME or ~/.cache, then cogr), for
root /var/cache/cogr, and a folder below the temporary one where none of these can be written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cogr.errors import SettingsError, StorageError, UserError
from ops.servers.account import Account

CACHE_VARIABLE = "COGR_CACHE_DIR"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def servers_folder(account: Account) -> Path:
    """The folder of all servers, created; one that the account can enter.

    Raises:
        SettingsError: COGR_CACHE_DIR names a folder that can't be used.
        StorageError: no folder could be created anywhere.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return _chosen(Path(chosen).expanduser().absolute(), account)
    for cache in _default_caches():
        folder = cache / "servers"
        if _create(folder) is None and account.may("x", folder):
            return folder
    tried = ", ".join(str(cache) for cache in _default_caches())
    raise StorageError(
        f"No folder for servers can be written (tried {tried}); set {CACHE_VARIABLE} to one that "
        "can."
    )


def _chosen(cache: Path, account: Account) -> Path:
    folder = cache / "servers"
    problem = _create(folder)
    if problem is not None:
        raise SettingsError(
            f"{CACHE_VARIABLE}={cache} can't be written ({problem.strerror}); name another folder."
        )
    if not account.may("x", folder):
        raise SettingsError(
            f"{CACHE_VARIABLE}={cache} can't be entered by the user {account.name}, as whom "
            "servers run when started by "
            "root; name a folder that everybody can enter, such as /var/cache/cogr."
        )
    return folder


def _default_caches() -> list[Path]:
    """Candidates, best first."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    caches = [Path(xdg).absolute() / "cogr"] if xdg else []
    if os.geteuid() == 0:
        caches.append(Path("/var/cache/cogr"))
    elif not xdg:
        caches.append(Path(os.path.expanduser("~/.cache/cogr")))  # noqa: PTH111 (Path.home() raises without a home)
    return [*caches, Path(tempfile.gettempdir()) / f"cogr-{os.geteuid()}"]


def _create(folder: Path) -> OSError | None:
    """Create a folder that others can enter; the error if that fails.

    A folder of somebody else is not used.
    """
    try:
        with open_to_others():
            folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            return PermissionError(1, "it belongs to another user")
    except OSError as error:
        return error
    return None if os.access(folder, os.W_OK | os.X_OK) else PermissionError(1, "not writable")


@contextlib.contextmanager
def open_to_others() -> Iterator[None]:
    """What is created meanwhile can be entered and read by other users, whatever the caller's
    umask.
    """
    old = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(old)


def instance_folder(servers: Path, name: str) -> Path:
    """The folder of one named server (not created).

    Raises UserError for a name that can't be a folder's.
    """
    if not NAME.fullmatch(name):
        raise UserError(
            f"The server name {name!r} is not usable; use lower-case letters, digits, dots and "
            "dashes."
        )
    return servers / "instances" / name


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on a file next to `path`; waits for another holder, calling `waiting`
    first.

    The lock ends with the process that holds it, however that ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_free(folder: Path, needed: int, what: str) -> None:
    """Raise StorageError when fewer than `needed` bytes are free where `folder` is."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{what} needs {needed / 1e9:.1f} GB of disk under {folder}, but {free / 1e9:.1f} GB "
            "are free; make room or set "
            f"{CACHE_VARIABLE} to a folder on another disk."
        )
