"""The parts of a local server: process identity, folders, Java, distributions.

Real processes and files, no OpenSearch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cogr.errors import ServiceError, SettingsError, StorageError, UserError
from ops.servers import programs
from ops.servers.instances import ServerState, known, read_state, write_state
from ops.servers.machine import (
    Account,
    ProcessId,
    created_at,
    current_process,
    end,
    instance_folder,
    locked,
    reachable,
    require_free,
    servers_folder,
    service_account,
    spawn,
)
from ops.servers.programs import (
    ANY_JAVA,
    Distribution,
    find_distribution,
    find_java,
    maven_reason,
    unpack,
    variant,
)

ME = Account("me", os.geteuid(), os.getegid(), drops=False)
AS_ROOT = os.geteuid() == 0


def start_child(code: str, tmp_path: Path) -> ProcessId:
    """A Python child, ready when it has printed a line."""
    log = tmp_path / "child.log"
    command = [sys.executable, "-u", "-c", f"{code}\nprint('ready')\nimport time; time.sleep(60)"]
    process = spawn(command, environment={}, cwd=tmp_path, log=log, account=ME)
    deadline = time.monotonic() + 30
    while "ready" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def test_a_process_is_ended_and_a_dead_one_is_left_alone(tmp_path: Path) -> None:
    process = start_child("", tmp_path)
    assert process.alive()
    assert end(process)
    # The child is a zombie until its parent, this test, asks for its status.
    assert not process.alive()
    assert not end(process)


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = start_child("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", tmp_path)
    assert end(process, patience=0.3)
    assert not process.alive()


def test_a_recycled_process_id_is_never_signalled(tmp_path: Path) -> None:
    process = start_child("", tmp_path)
    earlier = ProcessId(process.pid, process.created - 0.01)
    assert not earlier.alive()
    assert not end(earlier)
    assert process.alive()
    assert end(process)


def test_a_process_id_survives_exec(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = spawn(
        ["sh", "-c", "sleep 0.2; exec sleep 60"],
        environment=os.environ,
        cwd=tmp_path,
        log=log,
        account=ME,
    )
    time.sleep(0.5)
    assert process.alive()
    assert end(process)


def test_a_program_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="no-such-program can't be started"):
        spawn(
            [str(tmp_path / "no-such-program")],
            environment={},
            cwd=tmp_path,
            log=tmp_path / "log",
            account=ME,
        )


def server_state(folder: Path, process: ProcessId, **more: object) -> ServerState:
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "kind": "opensearch",
        "name": folder.name,
        "version": "3.8.0",
        "process": process,
        "started": "2026-01-01T00:00:00.000+00:00",
        "folder": folder,
        "data": folder / "data",
        "log": folder / "log",
    }
    return ServerState.model_validate(values | more)


def test_a_state_is_read_back_and_tells_whether_its_owner_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, me = tmp_path / "servers" / "instances", current_process()
    mine = server_state(folder / "a", me, owner=me)
    write_state(mine)
    earlier = ProcessId(me.pid, me.created - 1)
    write_state(server_state(folder / "b", me, owner=earlier))
    write_state(server_state(folder / "c", me, kind="another"))
    monkeypatch.setattr("ops.servers.machine.servers_folder", lambda _: tmp_path / "servers")
    first, second = sorted(known("opensearch"), key=lambda state: state.name)
    assert first == mine
    assert first.running
    assert second.owner is not None
    assert (first.process.alive(), second.owner.alive()) == (True, False)


def test_a_broken_state_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"kind":')
    with pytest.raises(StorageError, match=r"state\.json can't be read"):
        read_state(tmp_path)


def test_root_drops_to_an_ordinary_user() -> None:
    account = service_account()
    assert account.drops == AS_ROOT
    assert account.uid != 0


@pytest.mark.skipif(not AS_ROOT, reason="needs root")
def test_root_is_told_of_a_folder_that_the_ordinary_user_cannot_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("COGR_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(SettingsError, match="can't be entered by the user"):
        servers_folder(service_account())


def test_a_cache_folder_that_is_a_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COGR_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(
        SettingsError, match=r"file/servers, can't be written .*let COGR_CACHE_DIR name another"
    ):
        servers_folder(ME)


@pytest.mark.parametrize("name", ["", "../up", "/etc", "Upper", ".hidden", "a" * 65])
def test_a_server_name_must_be_a_folder_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not usable"):
        instance_folder(tmp_path, name)


def test_too_little_disk_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        StorageError, match=r"needs 1000000000\.0 GB of disk under .* but \d+\.\d GB are free"
    ):
        require_free(tmp_path, "Starting it", 10**18)


def test_a_lock_makes_the_second_wait_and_say_so(tmp_path: Path) -> None:
    said = threading.Event()
    order: list[str] = []

    def second() -> None:
        with locked(tmp_path / "thing", said.set):
            order.append("second")

    with locked(tmp_path / "thing"):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert said.wait(10)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]


def java_home(folder: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch(mode=0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


@pytest.fixture
def javas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Java homes, and no other Java."""
    for name in ("JAVA_HOME", "OPENSEARCH_JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(programs, "JVM_FOLDERS", (tmp_path / "jvm",))
    return tmp_path / "jvm"


def test_java_is_found_in_order_and_by_version(
    javas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = java_home(tmp_path / "home", "17.0.15")
    java_home(javas / "eight", "1.8.0_402")
    new = java_home(javas / "new", "25.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert find_java("it", range(21, ANY_JAVA), ME).home == new
    assert find_java("it", range(11, 24), ME).home == old
    assert find_java("it", range(8, 9), ME).major == 8


def test_no_fitting_java_is_one_sentence_that_names_what_was_found(
    javas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="needs Java 11 to 12, and (none|only Java .*) was found"):
        find_java("OpenSearch 2", range(11, 13), ME)
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "home", "17.0.15")))
    with pytest.raises(
        UserError,
        match=r"^OpenSearch 9 needs Java 99 or newer, and only Java 17 in .* was found",
    ):
        find_java("OpenSearch 9", range(99, ANY_JAVA), ME)


def test_a_java_that_was_named_must_fit(
    javas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_home(javas / "new", "25.0.1")
    monkeypatch.setenv("OPENSEARCH_JAVA_HOME", str(java_home(tmp_path / "home", "17.0.15")))
    with pytest.raises(
        UserError, match=r"only Java 17 in .* was found \(OPENSEARCH_JAVA_HOME=.*home\)"
    ):
        find_java("OpenSearch", range(21, ANY_JAVA), ME)
    monkeypatch.setenv("OPENSEARCH_JAVA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"none was found \(OPENSEARCH_JAVA_HOME="):
        find_java("OpenSearch", range(21, ANY_JAVA), ME)


@pytest.mark.skipif(not AS_ROOT, reason="needs root")
def test_a_program_below_a_closed_folder_is_copied(tmp_path: Path, open_folder: Path) -> None:
    closed = java_home(tmp_path / "java", "25.0.1") / "bin" / "java"
    tmp_path.chmod(0o700)
    account = service_account()
    program = reachable(closed, account, open_folder / "copies" / "java")
    assert program == open_folder / "copies" / "java"
    assert account.may("x", program)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter (pytest's own are closed to others)."""
    with tempfile.TemporaryDirectory(prefix="cogr-tests-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_unpacking_keeps_what_was_executable(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        program = zipfile.ZipInfo("top/bin/run")
        program.external_attr = 0o100755 << 16
        packed.writestr(program, "#!/bin/sh\necho ran")
        packed.writestr("top/config/plain.txt", "text")
    old = os.umask(0o077)
    try:
        unpack(archive, tmp_path / "out")
    finally:
        os.umask(old)
    assert (
        subprocess.run(
            [tmp_path / "out/top/bin/run"], capture_output=True, text=True, check=True
        ).stdout
        == "ran\n"
    )
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*")}
    assert modes == {"top": 0o755, "bin": 0o755, "run": 0o755, "config": 0o755, "plain.txt": 0o644}


def test_a_broken_archive_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK\3\4 no archive")
    with pytest.raises(ServiceError, match=r"a\.zip is broken"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_a_variant_leaves_the_original_as_it_was(tmp_path: Path) -> None:
    home = tmp_path / "distributions" / "opensearch-1.2.3"
    for module in ("keep", "drop"):
        (home / "modules" / module).mkdir(parents=True)
        (home / "modules" / module / "a.jar").write_text(module)
    base = Distribution(home, "1.2.3")
    changed = variant(base, "less", lambda copy: shutil.rmtree(copy / "modules/drop"), tmp_path)
    assert changed.home.name == "opensearch-1.2.3-less"
    assert [path.name for path in (changed.home / "modules").iterdir()] == ["keep"]
    assert sorted(path.name for path in (home / "modules").iterdir()) == ["drop", "keep"]


def test_a_home_that_is_none_or_another_version_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COGR_OPENSEARCH_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="holds no OpenSearch"):
        find_distribution(None, "3.8.0", tmp_path, print)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "opensearch-core-3.8.0.jar").touch()
    (tmp_path / "lib" / "opensearch-2.19.5.jar").touch()
    assert find_distribution(None, "3.8.0", tmp_path, print).version == "2.19.5"
    with pytest.raises(
        SettingsError, match=r"is OpenSearch 2\.19\.5, but version 3\.8\.0 was asked for"
    ):
        find_distribution("3.8.0", "3.8.0", tmp_path, print)


def test_without_maven_and_distribution_the_sentence_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("COGR_OPENSEARCH_HOME", raising=False)
    with pytest.raises(
        UserError, match=r"Maven \(mvn\).*COGR_OPENSEARCH_HOME.*COGR_OPENSEARCH_URL"
    ):
        find_distribution("3.8.0", "3.8.0", tmp_path, print)
    assert not list((tmp_path / "distributions").glob("[!.]*"))


@pytest.mark.parametrize("pid", [2**22 + 5, 10**30, 0, -5])
def test_a_made_up_process_does_not_run(pid: int) -> None:
    assert created_at(os.getpid()) == current_process().created
    assert created_at(pid) is None


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "\x1b[0m\x1b[0m[ERROR] No plugin found for prefix 'dependency' in the repositories "
            "[central (https://repo.example/x) -> [Help 1]\n[ERROR] \n[ERROR] Re-run Maven with "
            "-e",
            "No plugin found for prefix 'dependency' in the repositories [central.",
        ),
        ("[ERROR] \nSettings can't be read.\n\x1b[0m\n", "Settings can't be read."),
        ("\x1b[0m\x1b[0m\n", "it ended with status 7 and said nothing."),
    ],
)
def test_the_reason_why_maven_failed_is_never_empty(output: str, reason: str) -> None:
    assert maven_reason(output, 7) == reason
