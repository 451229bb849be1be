"""The store: atomic writes, locks that die with their process, and full or read-only disks."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cogr.errors import LockedError, ServiceError, StorageError
from cogr.store import Store


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "s3":
        return Store(f"{request.getfixturevalue('s3')}/a/prefix")
    return Store(tmp_path if request.param == "local" else f"memory://{tmp_path.name}")


def test_what_was_written_is_read_and_replaced(store: Store) -> None:
    store.write("a/b.json", b"1")
    store.write("a/b.json", b"22")
    assert store.read("a/b.json") == b"22"
    assert store.list("a") == ["b.json"]
    assert store.list("nothing") == []
    with store.replacing("a/b.json") as file:
        file.write(b"3")
        file.write(b"3" * (6 << 20))
        assert store.read("a/b.json") == b"22"
    assert store.read("a/b.json") == b"3" * (1 + (6 << 20))
    store.remove("a/b.json")
    store.remove("a/b.json")
    assert not store.exists("a/b.json")


def test_of_many_that_create_a_file_one_does(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: store.create("lease/1.json", b"%d" % n), range(24)))
    assert made.count(True) == 1
    assert store.read("lease/1.json") == b"%d" % made.index(True)
    assert store.list("lease") == ["1.json"]


def failing(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_file_is_swapped_only_while_it_is_what_was_read(store: Store) -> None:
    assert not store.swap("history.json", b"1", b"2")
    assert store.swap("history.json", None, b"1")
    assert not store.swap("history.json", None, b"2")
    assert not store.swap("history.json", b"0", b"2")
    assert store.swap("history.json", b"1", b"2")
    assert store.read("history.json") == b"2"


def test_of_two_that_swap_at_once_in_a_bucket_one_does(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one writes after this one has compared; the answer of a write may be lost."""
    store, real = Store(s3), Store.read
    store.write("history.json", b"1")

    def written_after_it(self: Store, path: str) -> bytes:
        found = real(self, path)
        monkeypatch.setattr(Store, "read", real)
        store.write("history.json", b"other")
        return found

    monkeypatch.setattr(Store, "read", written_after_it)
    assert not store.swap("history.json", b"1", b"mine")
    assert store.read("history.json") == b"other"

    def lost(*given: object, **named: object) -> None:
        type(store.fs).pipe_file(store.fs, *given, **named)
        raise OSError("the answer was lost")

    monkeypatch.setattr(store.fs, "pipe_file", lost)
    assert store.swap("history.json", b"other", b"mine")
    assert store.read("history.json") == b"mine"


def test_a_file_system_without_hard_links_creates_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as SMB and FUSE."""
    monkeypatch.setattr(os, "link", failing(errno.ENOTSUP))
    test_of_many_that_create_a_file_one_does(Store(tmp_path))


def test_a_file_system_without_locks_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cogr.store.fcntl.flock", failing(errno.ENOLCK))
    with (
        pytest.raises(StorageError, match="locks"),
        Store(tmp_path).lock("rebuild-item", "a rebuild"),
    ):
        pass


def test_what_was_created_although_the_answer_was_lost_is_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that asks again after a lost answer is told that the file is there: it is the one
    who made it.
    """
    store = Store("memory://lost-answers")
    put = store.fs.pipe_file

    def twice(path: str, data: bytes, mode: str) -> None:
        put(path, data, mode=mode)
        put(path, data, mode=mode)

    monkeypatch.setattr(store.fs, "pipe_file", twice)
    assert store.create("lease/1.json", b"me") is True
    assert store.create("lease/1.json", b"you") is False


@pytest.mark.slow
def test_an_object_store_that_is_not_as_it_should_be_is_one_sentence(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match="bucket"):
        Store(f"{s3}-other").write("x", b"1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    away = Store(s3)
    away.fs = type(away.fs)(
        skip_instance_cache=True, config_kwargs={"retries": {"max_attempts": 0}}
    )
    away.fs.retries = 1
    with pytest.raises(ServiceError, match="reached"):
        away.read("x")


def test_a_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from cogr.store import Store\n"
        f"with Store({str(tmp_path)!r}).lock('rebuild-item', 'rebuild --side item'):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(LockedError, match=f"process {holder.pid} on .*rebuild --side item"),
            Store(tmp_path).lock("rebuild-item", "rebuild --side item"),
        ):
            pass
    finally:
        holder.kill()
        holder.wait()
    with Store(tmp_path).lock("rebuild-item", "rebuild --side item"):
        pass


def test_a_file_size_limit_is_one_sentence_and_nothing_is_lost(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("x", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageError, match="too large"):
            store.write("x", bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.read("x") == b"old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="permission"):
        Store(tmp_path).write("a/x", b"1")


def test_what_is_no_store_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="folder"):
        Store(tmp_path / "file").write("x", b"1")
    with pytest.raises(StorageError, match="opened"):
        Store("nosuch://bucket")


def test_a_file_that_can_not_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "history.json").mkdir()
    with pytest.raises(StorageError, match="can't be read .*history"):
        Store(tmp_path).read("history.json")


def test_a_folder_without_its_last_file_is_at_rest_after_an_hour(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("a/rows", b"half")
    assert not store.is_at_rest("a", "manifest")
    monkeypatch.setattr("cogr.store.HALF_WRITTEN", 0.0)
    assert store.is_at_rest("a", "manifest")
    monkeypatch.undo()
    store.write("a/manifest", b"{}")
    assert store.is_at_rest("a", "manifest")


def test_a_sweep_removes_what_a_killed_process_left_long_ago(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    left, written = (tmp_path / "a" / f".tmp-{name}" for name in ("left", "written"))
    left.write_bytes(b"half")
    written.write_bytes(b"half")
    os.utime(left, (0, 0))
    Store(tmp_path).sweep()
    assert [*(tmp_path / "a").iterdir()] == [written]
