"""`cogr-ops opensearch` as a user meets it: whole commands. A stand-in program takes the place of
OpenSearch where the point
is how a start fails; the rest runs real nodes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import ServiceError, SettingsError
from cogr.settings import OpenSearchSettings
from indexers.backends.opensearch.client import Cluster
from ops.servers.instances import known, reap_orphans, start, stop
from ops.servers.machine import created_at, servers_folder, service_account
from ops.servers.opensearch import OpenSearchSpec
from ops.servers.programs import find_distribution, from_home, runtimes
from tests.commands import Command
from tests.ops.conftest import alone

COMMAND = [sys.executable, "-m", "ops.cli", "opensearch"]
AS_ROOT = os.geteuid() == 0
OTHER_USER = 65534


@pytest.fixture
def here(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Runs `cogr-ops opensearch` in this process with a cache of its own; keywords are environment
    variables.
    """
    return alone(cache, monkeypatch, capfd, "opensearch")


def environment(cache: Path, **more: str) -> dict[str, str]:
    """This process's environment without what names a server, with a cache of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COGR_")}
    return {**kept, "COGR_CACHE_DIR": str(cache), **more}


def run(variables: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=dict(variables), capture_output=True, text=True, check=False
    )


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    parsed = json.loads(done.stdout)
    assert isinstance(parsed, dict)
    return parsed


def stand_in(folder: Path, script: str) -> str:
    """A folder that looks like OpenSearch 3.8.0 and whose program is a shell script."""
    for name in ("bin", "lib", "config"):
        (folder / name).mkdir(parents=True)
    (folder / "lib" / "opensearch-3.8.0.jar").touch()
    (folder / "config" / "jvm.options").write_text("-Xms1g\n")
    (folder / "bin" / "opensearch").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "opensearch").chmod(0o755)
    return str(folder)


def test_a_node_that_ends_is_exit_3_with_its_last_words_and_its_log(
    cache: Path, here: Command
) -> None:
    script = (
        "echo starting; echo 'java.lang.IllegalStateException: no luck'; echo '\tat org.x.Y'; "
        "exit 1"
    )
    home = stand_in(cache / "home", script)
    ended = here("start", "--name", "unlucky", "--json", COGR_OPENSEARCH_HOME=home)
    assert (ended.status, ended.out) == (3, "")
    sentence = ended.err.splitlines()[-1]
    log = cache / "servers/instances/unlucky/opensearch.log"
    assert "ended while starting: java.lang.IllegalStateException: no luck" in sentence
    assert sentence.endswith(f"The log is {log}.")
    assert "starting" in log.read_text()
    assert json.loads(here("status", "--json").out) == {
        "running": False,
        "url": None,
        "servers": [],
    }


@pytest.mark.skipif(not AS_ROOT, reason="only root starts a node as somebody else")
def test_a_closed_umask_of_root_does_not_close_the_folders_to_the_node(
    cache: Path, here: Command
) -> None:
    home = stand_in(
        cache / "home", 'touch "$OPENSEARCH_TMPDIR/here" && echo "Error: ran as $(id -u)"; exit 1'
    )
    old = os.umask(0o077)
    try:
        ended = here("start", COGR_OPENSEARCH_HOME=home)
    finally:
        os.umask(old)
    assert f"Error: ran as {service_account().uid}" in ended.err


SLOW_TO_REMEMBER = """
import time
from ops.servers import instances
from ops.cli import main
write = instances.write_state
instances.write_state = lambda state: (time.sleep(0.5), write(state))
main()
"""


@pytest.mark.parametrize(
    "command", [COMMAND, [sys.executable, "-c", SLOW_TO_REMEMBER, "opensearch"]]
)
def test_ctrl_c_while_starting_leaves_nothing_behind(cache: Path, command: list[str]) -> None:
    home = stand_in(cache / "home", f"echo $$ > {cache}/pid; exec sleep 60")
    (cache / "pid").touch(mode=0o666)
    (cache / "pid").chmod(0o666)
    starting = subprocess.Popen(
        [*command, "start", "--name", "slow"],
        env=environment(cache, COGR_OPENSEARCH_HOME=home),
        stderr=subprocess.PIPE,
        # A test run in the background of a shell ignores Ctrl-C, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 30
    while not (text := (cache / "pid").read_text()).strip():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert created_at(int(text)) is not None
    starting.send_signal(signal.SIGINT)
    assert starting.wait(30) == 130
    assert created_at(int(text)) is None
    assert not (cache / "servers/instances/slow/state.json").exists()


def test_a_taken_port_is_exit_2(here: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = here("start", "--port", port)
    assert ended.status == 2
    assert (
        ended.err
        == f"Port {port} of 127.0.0.1 is taken; give another --port, or none for a free one.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--version", "three"], "no OpenSearch version"),
        (["--heap", "lots"], "no heap size"),
        (["--security", "--version", "3.8.0"], "only; leave --version out"),
        (["--name", "../x"], "not usable"),
    ],
)
def test_a_wrong_wish_is_exit_2_and_one_sentence(
    here: Command, arguments: list[str], told: str
) -> None:
    ended = here("start", *arguments)
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert told in ended.err


def test_without_maven_it_is_exit_2(cache: Path, here: Command) -> None:
    ended = here("start", PATH=str(cache))
    assert ended.status == 2
    assert "Maven (mvn), which fetches it, is not installed" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.slow
def test_what_maven_does_not_have_is_exit_3(here: Command) -> None:
    ended = here("start", "--version", "0.0.1")
    assert ended.status == 3
    assert "Maven could not fetch OpenSearch 0.0.1: " in ended.err
    assert "://" not in ended.err


def test_a_cluster_that_is_named_but_away_is_exit_3_and_starts_nothing(
    cache: Path, here: Command
) -> None:
    url = "http://127.0.0.1:9"
    ended = here("start", COGR_OPENSEARCH_URL=url)
    assert ended.status == 3
    assert url in ended.err
    assert "unset it to start a server here" in ended.err
    shown = json.loads(here("status", "--json", COGR_OPENSEARCH_URL=url).out)
    assert (shown["running"], shown["url"], shown["servers"]) == (False, url, [])
    assert not (cache / "servers" / "instances").exists()


@pytest.mark.server
@pytest.mark.slow
def test_a_cluster_that_is_named_is_used(here: Command, opensearch_2: OpenSearchSettings) -> None:
    url = str(opensearch_2.url)
    shown = json.loads(here("start", "--json", COGR_OPENSEARCH_URL=url).out)
    assert shown == {"running": True, "local": False, "url": url, "version": "2.19.5"}
    assert json.loads(here("status", "--json", COGR_OPENSEARCH_URL=url).out)["url"] == url


def home_of(version: str) -> str:
    """An unpacked distribution in the usual cache, so that a test with a cache of its own need not
    fetch it again.
    """
    return str(find_distribution(version, version, servers_folder(service_account()), print).home)


def documents(url: str) -> int:
    cluster = Cluster(OpenSearchSettings(url=url))
    try:
        cluster.call("PUT", "/kept", doing="test", exists_ok=True)
        cluster.call("POST", "/kept/_doc", doing="test", body={"a": 1}, params={"refresh": "true"})
        return int(cluster.call("GET", "/kept/_count", doing="test")["count"])
    finally:
        cluster.close()


@pytest.mark.server
@pytest.mark.slow
def test_a_life_with_two_starts_at_once_a_kill_and_a_restart(cache: Path) -> None:
    variables = environment(cache, COGR_OPENSEARCH_HOME=home_of("2.19.5"))
    command = [*COMMAND, "start", "--name", "life", "--port", "0", "--json"]
    both = [
        subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    first, second = (json.loads(starting.communicate()[0]) for starting in both)
    assert {first["already_running"], second["already_running"]} == {True, False}
    assert (first["pid"], first["url"]) == (second["pid"], second["url"])
    assert documents(first["url"]) == 1

    shown = answer(run(variables, "status", "--json"))
    assert {key: shown[key] for key in ("running", "url", "pid", "version")} == {
        "running": True,
        "url": first["url"],
        "pid": first["pid"],
        "version": "2.19.5",
    }
    assert Path(shown["folder"]) == cache / "servers/instances/life"
    assert Path(shown["log"]).is_file()
    refused = run(variables, "start", "--name", "life", "--port", "1")
    assert (refused.returncode, "runs already on port" in refused.stderr) == (2, True)

    os.kill(first["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while created_at(first["pid"]) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    died = run(variables, "status", "--json")
    assert (died.returncode, json.loads(died.stdout)["running"]) == (1, False)
    again = run(variables, "start", "--name", "life", "--port", "0", "--json")
    assert "ended without a stop; starting it again" in again.stderr
    assert documents(answer(again)["url"]) == 2, "the data outlives the node"

    assert answer(run(variables, "stop", "--json")) == {"stopped": ["life"], "removed": []}
    assert created_at(answer(again)["pid"]) is None
    assert answer(run(variables, "stop", "--json")) == {"stopped": [], "removed": []}
    assert (
        answer(run(variables, "start", "--name", "life", "--json"))["url"] == answer(again)["url"]
    )
    assert answer(run(variables, "stop", "--remove", "--json")) == {
        "stopped": ["life"],
        "removed": ["life"],
    }


def start_as(uid: int, home: Path, variables: dict[str, str], results: Any) -> None:
    """Start and stop a node in this (forked) process as another user."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.environ.clear()
    os.environ.update(variables)
    state = start(OpenSearchSpec(name="mine", port=0, brief=True)).state
    owner = Path(f"/proc/{state.pid}").stat().st_uid
    results.put((state.url, owner, stop(state, remove=True), str(state.folder)))


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.skipif(not AS_ROOT, reason="every other test here runs as an ordinary user")
def test_an_ordinary_user_starts_one_too(cache: Path) -> None:
    os.chown(cache, OTHER_USER, OTHER_USER)
    variables = environment(cache, COGR_OPENSEARCH_HOME=home_of("2.19.5"), HOME=str(cache))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=start_as, args=(OTHER_USER, cache, variables, results))
    child.start()
    url, owner, stopped, folder = results.get(timeout=300)
    child.join(60)
    assert url.startswith("http://127.0.0.1:")
    assert (owner, stopped) == (OTHER_USER, True)
    assert folder == str(cache / "servers/instances/mine")


@pytest.mark.skipif(not AS_ROOT, reason="only root becomes somebody else")
def test_folders_that_can_t_be_looked_into_are_passed_over(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = cache / "closed"
    (closed / "bin").mkdir(parents=True)
    (closed / "lib").mkdir()
    closed.chmod(0o700)
    monkeypatch.setattr("ops.servers.programs.JVM_FOLDERS", (closed, cache))
    account = service_account()

    def found() -> None:
        path = os.pathsep.join([str(closed / "bin"), "/usr/bin"])
        links = Path(without_java(path, cache / "own"))
        assert (links / "env").exists()
        os.environ.update(PATH=str(closed / "bin"), JAVA_HOME=str(closed / "lib"))
        assert list(runtimes()) == []
        with pytest.raises(SettingsError, match="holds no OpenSearch"):
            from_home(closed, None)

    (cache / "own").mkdir()
    os.chown(cache / "own", account.uid, account.gid)
    child = multiprocessing.get_context("fork").Process(target=as_user, args=(account.uid, found))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def as_user(uid: int, what: Callable[[], None]) -> None:
    """In this (forked) process, as another user."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    what()


def without_java(path: str, folder: Path) -> str:
    """A PATH with the same programs but java: one folder of links.

    Folders that this user may not look into have none for it.
    """
    links = folder / "bin"
    links.mkdir()
    for part in reversed(path.split(os.pathsep)):
        for program in programs_of(Path(part)):
            if program.name not in ("java", "mvn"):
                (links / program.name).unlink(missing_ok=True)
                (links / program.name).symlink_to(program)
    return str(links)


def programs_of(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


@pytest.mark.server
@pytest.mark.slow
def test_a_secured_node_asks_who_is_there(opensearch_secure: OpenSearchSettings) -> None:
    assert str(opensearch_secure.url).startswith("https://localhost:")
    assert Cluster(opensearch_secure).version.text == "3.4.0"
    wrong = opensearch_secure.model_copy(update={"username": "nobody"})
    with pytest.raises(ServiceError, match="credentials"):
        _ = Cluster(wrong).version
    with pytest.raises(ServiceError, match="certificate"):
        _ = Cluster(opensearch_secure.model_copy(update={"ca_file": None})).version


@pytest.mark.server
@pytest.mark.slow
def test_the_password_of_a_secured_node_is_nowhere_but_in_its_file(
    opensearch_secure: OpenSearchSettings,
) -> None:
    (state,) = (server for server in known("opensearch") if server.url == opensearch_secure.url)
    assert state.credentials_file is not None
    assert state.credentials_file.stat().st_mode & 0o777 == 0o600
    assert opensearch_secure.password is not None
    password = opensearch_secure.password.get_secret_value()
    holders = [
        path
        for path in state.folder.rglob("*")
        if path.is_file() and password.encode() in path.read_bytes()
    ]
    assert holders == [state.credentials_file]
    assert password not in Path(f"/proc/{state.pid}/environ").read_text(errors="replace")


@pytest.mark.server
@pytest.mark.slow
def test_a_node_listens_on_the_loopback_only(opensearch_2: OpenSearchSettings) -> None:
    port = int(str(opensearch_2.url).rsplit(":", 1)[1])
    listening = [
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if " 0A " in line
    ]
    listening += [
        line.split()[1]
        for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]
        if " 0A " in line
    ]
    mine = [address for address in listening if address.endswith(f":{port:04X}")]
    # 127.0.0.1, also written as an IPv6 address.
    assert mine
    assert all(
        address.split(":")[0] in ("0100007F", "0000000000000000FFFF00000100007F")
        for address in mine
    )


def test_a_node_whose_session_was_killed_is_removed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COGR_CACHE_DIR", str(cache))
    code = (
        "from ops.servers.instances import start; from ops.servers.opensearch import *\n"
        "OpenSearchSpec.finish = lambda self, state: state\n"
        "start(OpenSearchSpec(name='orphan', bound_to_caller=True))"
    )
    home = stand_in(cache / "home", "exec sleep 60")
    variables = environment(cache, COGR_OPENSEARCH_HOME=home)
    subprocess.run([sys.executable, "-c", code], env=variables, check=True)
    (orphan,) = known("opensearch")
    assert orphan.running
    assert orphan.owner is not None
    assert not orphan.owner.alive()
    reap_orphans("opensearch")
    assert not orphan.running
    assert known("opensearch") == []
    assert not orphan.folder.exists()
