"""The store of runs, snapshots, caches and artefacts: a folder, or any fsspec URL.

Paths inside are relative, with forward slashes. Writing is atomic on a local disk (temporary file,
fsync, rename) and one put on an object store, so that a reader never sees half a file. Creating is
exclusive: by a hard link on a disk (an exclusive create where the file system has no links), by a
conditional put (If-None-Match) on an object store. Listings are not cached. Locks are here too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from cogr.errors import LockedError, ServiceError, StorageError
from cogr.redaction import masked

HALF_WRITTEN = 3600.0
"""Seconds after which a temporary file has no writer any more."""


class Store:
    """A folder or fsspec URL (s3://bucket/prefix, memory://name) with atomic writes. `url` is for
    messages, without user and password.
    """

    def __init__(self, url: str | Path) -> None:
        self._opened = str(url)
        self.url = masked(self._opened)
        try:
            # Other processes write at the same time, so listings are not cached.
            self.fs, root = fsspec.core.url_to_fs(self._opened, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise StorageError(
                f"The store {self.url} can't be opened ({error}); check the setting store."
            ) from error
        except Exception as error:  # Some file systems connect when they are made.
            raise self._unreachable(error) from error
        self.root = root.rstrip("/")
        self.is_local = isinstance(self.fs, LocalFileSystem)

    def _unreachable(self, error: BaseException) -> ServiceError:
        return ServiceError(
            f"The store {self.url} can't be reached ({_first_line(error)}); run the same command "
            "again later."
        )

    def below(self, folder: str) -> Store:
        """A store in a folder of this one."""
        return Store(f"{self._opened.rstrip('/')}/{folder}")

    def full(self, path: str) -> str:
        """The path as the file system knows it."""
        return f"{self.root}/{path}"

    def local(self, path: str) -> Path:
        """The path on the local disk. Raises StorageError when the store is not local."""
        if not self.is_local:
            raise StorageError(
                f"{path} must lie on a local disk, but the store is {self.url}; point the setting "
                "store at a folder."
            )
        return Path(self.full(path))

    def exists(self, path: str) -> bool:
        with self._reached():
            return bool(self.fs.exists(self.full(path)))

    def open(self, path: str) -> IO[bytes]:
        """Open for reading. Raises FileNotFoundError when it is not there."""
        with self._reached():
            return self.fs.open(self.full(path), "rb")  # type: ignore[no-any-return]

    def read(self, path: str) -> bytes:
        """A file's bytes as they are now. Raises FileNotFoundError when it is not there."""
        # `open` would use the size that an object store's client remembers from an earlier listing.
        with self._reached():
            data: bytes = self.fs.cat_file(self.full(path))
        return data

    def read_json(self, path: str, remedy: str = "restore it from a backup, or remove it") -> Any:
        """The content of a JSON file. Raises FileNotFoundError, or StorageError with the remedy
        when it is damaged.
        """
        try:
            return json.loads(self.read(path))
        except (ValueError, RecursionError) as error:
            raise StorageError(
                f"The file {path} in {self.url} is damaged (not JSON); {remedy}."
            ) from error

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted, without temporary files; [] when it is not there."""
        full = self.full(path)
        self.fs.invalidate_cache(full)
        try:
            with self._reached():
                paths = self.fs.ls(full, detail=False)
        except FileNotFoundError:
            return []
        names = (str(name).rstrip("/").rsplit("/", 1)[-1] for name in paths)
        return sorted(name for name in names if not name.startswith(".tmp-") and name)

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder, if it exists."""
        with contextlib.suppress(FileNotFoundError), self._reached():
            self.fs.rm(self.full(path), recursive=True)

    def move(self, path: str, to: str) -> None:
        """Give a file another name. Raises FileNotFoundError when it is not there."""
        with storage_errors(self.url), self._reached():
            self.fs.mv(self.full(path), self.full(to))

    def write(self, path: str, data: bytes) -> None:
        """Replace a file atomically. Raises StorageError when the disk is full or read-only."""
        if self.is_local:
            with self.replacing(path) as file:
                file.write(data)
        else:
            with storage_errors(self.url), self._reached(writing=True):
                self.fs.pipe_file(self.full(path), data)

    def write_json(self, path: str, value: Any) -> None:
        self.write(path, as_json(value))

    def create(self, path: str, data: bytes) -> bool:
        """Write a file unless it exists. Of several writers at once, one gets True.

        An object store needs conditional puts for this (S3 has them). One that ignores the
        condition lets the last writer win; then only this one gets True, unless another wrote
        within one round trip. Raises StorageError, ServiceError.
        """
        with storage_errors(self.url):
            if self.is_local:
                return self._create_local(Path(self.full(path)), data)
            with self._reached(writing=True):
                return self._create_remote(path, data)

    def _create_remote(self, path: str, data: bytes) -> bool:
        try:
            self.fs.pipe_file(self.full(path), data, mode="create")
        except OSError:
            # Refused, or written and then retried because the answer was lost. The present content
            # decides.
            if not self.fs.exists(self.full(path)):
                raise
        written: bytes = self.fs.cat_file(self.full(path))
        return written == data

    def _create_local(self, target: Path, data: bytes) -> bool:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f".tmp-{uuid.uuid4().hex}"
        try:
            temporary.write_bytes(data)
            try:
                # A link fails when the file exists; a rename would replace it.
                os.link(temporary, target)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # Such as SMB and some FUSE file systems. For a moment the file is empty.
                target.touch(exist_ok=False)
                temporary.replace(target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def swap(self, path: str, old: bytes | None, new: bytes) -> bool:
        """Replace a file that still has the content `old`; None where there was none. Of several
        writers at once, one gets True.

        An object store needs conditional puts for this (S3 has them), a disk a lock that its
        writers hold. Raises StorageError, ServiceError.
        """
        if old is None:
            return self.create(path, new)
        try:
            # The tag is read first: whoever writes after that has another one.
            tag = None if self.is_local else self._tag(path)
            if self.read(path) != old:
                return False
        except FileNotFoundError:
            return False
        if tag is None:
            self.write(path, new)
            return True
        try:
            with storage_errors(self.url), self._reached(writing=True):
                self.fs.pipe_file(self.full(path), new, IfMatch=tag)
        except (ServiceError, StorageError):
            # Refused, or written and then retried because the answer was lost.
            if (there := self.read(path)) == old:
                raise
            return there == new
        return True

    def _tag(self, path: str) -> str | None:
        with self._reached():
            tag: str | None = self.fs.info(self.full(path)).get("ETag")
        return tag

    @contextlib.contextmanager
    def replacing(self, path: str) -> Iterator[IO[bytes]]:
        """A file to write to. It replaces the path only when the block ends without an error.

        For an object store it is a temporary file on this machine's disk (TMPDIR) until then.
        """
        if self.is_local:
            target = Path(self.full(path))
            with storage_errors(self.url):
                target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target, self.url) as file:
                yield file
            return
        with storage_errors(self.url), tempfile.NamedTemporaryFile() as file:
            yield file
            file.flush()
            with self._reached(writing=True):
                self.fs.put_file(file.name, self.full(path))

    def is_at_rest(self, folder: str, last: str) -> bool:
        """Whether nobody writes a folder any more: it has the file that is written last, or its
        writer has been silent for an hour. False where a file system tells no times.
        """
        if self.exists(f"{folder}/{last}"):
            return True
        # A folder on a disk has the time of its last change; elsewhere only files have times.
        names = [""] if self.is_local else self.list(folder)
        with self._reached(), contextlib.suppress(NotImplementedError):
            times = [self.fs.modified(self.full(f"{folder}/{name}")) for name in names]
            return all(time.time() - one.timestamp() >= HALF_WRITTEN for one in times)
        return False

    def sweep(self) -> None:
        """Remove what killed processes left half-written in a local store an hour ago or before."""
        for file in [*Path(self.root).rglob(".tmp-*")] if self.is_local else ():
            with contextlib.suppress(FileNotFoundError, PermissionError):
                if file.is_file() and time.time() - file.stat().st_mtime >= HALF_WRITTEN:
                    file.unlink()

    @contextlib.contextmanager
    def lock(self, name: str, doing: str) -> Iterator[None]:
        """Hold a lock for the time of the block; it dies with the process.

        Raises LockedError, which says who holds it.
        """
        with storage_errors(self.url):
            path = self.local("locks") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8")
        with file:
            try:
                with storage_errors(self.url):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                held = f"{file.read().strip() or 'another process'} holds the lock {name}"
                raise LockedError(
                    f"{doing} is refused: {held} in {self.url}; wait for it or end it.", held
                ) from error
            file.truncate(0)
            who, started = process_name(doing), time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"{who.removesuffix(')')}, since {started})")
            file.flush()
            yield

    @contextlib.contextmanager
    def _reached(self, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except FileNotFoundError as error:
            if self.is_local or not writing:
                raise
            raise StorageError(
                f"Can't write to {self.url}: there is no such bucket; create it, or correct the "
                "setting store."
            ) from error
        except NotADirectoryError as error:
            raise StorageError(
                f"The store {self.url} is not a folder; point the setting store at one."
            ) from error
        except Exception as error:
            # Each client library has errors of its own.
            if self.is_local:
                if not isinstance(error, PermissionError | IsADirectoryError):
                    raise
                raise StorageError(
                    f"The store {self.url} can't be read ({_first_line(error)}); make its files "
                    "readable for this process, or point the setting store at another folder."
                ) from error
            if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
                raise StorageError(
                    f"The store {self.url} denies access ({_first_line(error)}); check the "
                    "credentials of this process."
                ) from error
            raise self._unreachable(error) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def as_json(value: Any) -> bytes:
    """The content of a JSON file."""
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True).encode()


def as_line(record: Mapping[str, Any]) -> bytes:
    """A line of a file of JSON lines."""
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def process_name(doing: str) -> str:
    """This process for messages: its id, its host, what it does."""
    return f"process {os.getpid()} on {socket.gethostname()} ({doing})"


def sha256_of(file: IO[bytes]) -> str:
    """The sha256 of an open file's bytes from here on, in hex."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return sha256_of(file)


@contextlib.contextmanager
def replacing(path: Path, where: str = "") -> Iterator[BinaryIO]:
    """A new file, which replaces `path` when the block ends without an error; after an error or a
    kill the old file is unchanged. Raises StorageError, which names `where` or else the path.
    """
    temporary = path.parent / f".tmp-{uuid.uuid4().hex}"
    if not path.absolute().parent.is_dir():
        raise StorageError(
            f"The folder {path.absolute().parent} does not exist; create it, or name another file."
        )
    try:
        with storage_errors(where or str(path)):
            if path.exists() and not path.is_file():  # Such as /dev/null.
                raise StorageError(f"Can't write to {path}: it is not a file; name another.")
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


_AGAIN = "and run the same command again"
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_FOLDER = "point the setting store at a writable folder"
_FILE = "name a file"
_LOCKS = "point the setting store at a disk with file locks or at an object store such as S3"
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f"free some space {_AGAIN}"),
    errno.EFBIG: f"raise the limit {_AGAIN}",
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR), _FOLDER),
    **dict.fromkeys((errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS), _LOCKS),
    **dict.fromkeys((errno.EISDIR, errno.EBUSY), _FILE),
    errno.ENAMETOOLONG: "choose a shorter name",
}


@contextlib.contextmanager
def storage_errors(where: str) -> Iterator[None]:
    """Turn errors of a full, read-only or unfit disk into one sentence; others pass through."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ADVICE:
            raise
        reason = os.strerror(error.errno).lower()
        raise StorageError(f"Can't write to {where} ({reason}); {_ADVICE[error.errno]}.") from error
