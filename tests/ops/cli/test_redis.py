"""`cogr-ops redis` as a user meets it: a real Valkey is started, found again, killed,
and stopped.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import ServiceError
from cogr.settings.fleet import RedisSettings
from indexers.fleet.broker import Broker, server_version
from ops.servers import valkey
from ops.servers.instances import ServerState, read_state, start, stop, write_state
from ops.servers.machine import service_account
from tests.commands import Command
from tests.damages import HARMS, damage
from tests.ops.conftest import alone

AS_ROOT = os.geteuid() == 0
OTHER_USER = 65534


@pytest.fixture
def here(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Runs `cogr-ops redis` in this process with a cache of its own; keywords are environment
    variables.
    """
    return alone(cache, monkeypatch, capfd, "redis")


def test_a_life_with_a_password_a_kill_and_a_restart(here: Command) -> None:
    started = here("start", "--name", "life", "--port", "0", "--password", "--json")
    assert started.status == 0, started.err
    assert (started.json["running"], started.json["already_running"]) == (True, False)
    first = read_state(Path(started.json["folder"]))
    assert first is not None
    assert Path(f"/proc/{first.pid}").stat().st_uid == service_account().uid
    secret = Path(started.json["credentials_file"])
    assert secret.stat().st_mode & 0o077 == 0
    assert secret.read_text().split("=", 1)[1].strip() not in started.out + started.err
    Broker(valkey.connection(first), "kept").send({"a": 1})
    with pytest.raises(ServiceError, match="Authentication|NOAUTH"):
        server_version(RedisSettings(url=first.url))
    again = here("start", "--name", "life", "--json", "--password")
    assert (again.json["already_running"], again.json["pid"]) == (True, first.pid)
    refused = here("start", "--name", "life")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "runs already with a password" in refused.err
    os.kill(first.pid, signal.SIGKILL)
    revived = here("start", "--name", "life", "--port", "0", "--password", "--json")
    assert "ended without a stop; starting it again" in revived.err
    second = read_state(Path(revived.json["folder"]))
    assert second is not None
    assert Broker(valkey.connection(second), "kept").waiting() == 1, "the data outlives the server"
    assert here("status", "--json").json["url"] == second.url
    assert here("stop", "--remove", "--json").json == {"stopped": ["life"], "removed": ["life"]}
    nothing = here("status", "--json")
    assert (nothing.status, nothing.json) == (1, {"running": False, "url": None, "servers": []})
    assert nothing.sentence == "No Valkey runs here; start one with cogr-ops redis start."
    assert not Path(revived.json["folder"]).exists()


def test_a_server_that_was_stopped_is_named_and_keeps_its_port(here: Command) -> None:
    started = here("start", "--name", "kept", "--port", "0", "--json").json
    assert here("stop", "--name", "kept", "--json").json == {"stopped": ["kept"], "removed": []}
    assert here("stop", "--json").json == {"stopped": [], "removed": []}
    stopped = here("status")
    assert (stopped.status, stopped.sentence) == (
        1,
        "No Valkey runs here; start one with cogr-ops redis start --name kept.",
    )
    assert f"kept: stopped, {started['url']}" in stopped.out
    assert here("status", "--name", "nobody").sentence.startswith("nobody does not run here;")
    again = here("start", "--name", "kept", "--json").json
    assert (again["url"], again["already_running"]) == (started["url"], False)
    other = here("start", "--name", "other", "--port", "0", "--json").json
    shown = here("status", "--json")
    assert (shown.status, shown.json["url"]) == (0, other["url"])
    assert [server["name"] for server in shown.json["servers"]] == ["other", "kept"]
    assert here("stop", "--all").status == 0
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(started["url"].split(":")[2].split("/")[0])))
        taken.listen()
        elsewhere = here("start", "--name", "kept", "--json")
    assert elsewhere.json["url"] != started["url"]
    assert "which it had, is taken: it gets another one" in elsewhere.err
    assert here("stop", "--all", "--remove", "--json").json == {
        "stopped": ["kept"],
        "removed": ["kept", "other"],
    }


def test_two_starts_at_once_share_one_server_and_two_names_no_port(cache: Path) -> None:
    variables = {**os.environ, "COGR_CACHE_DIR": str(cache)}
    variables.pop("COGR_REDIS__URL", None)
    command = [sys.executable, "-m", "ops.cli", "redis", "start", "--json", "--name"]
    starting = [
        subprocess.Popen(
            [*command, name],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "one", "two", "two")
    ]
    said = [one.communicate() for one in starting]
    assert [one.returncode for one in starting] == [0] * 4, said
    first, same, second, its = (json.loads(out) for out, _ in said)
    assert first["url"] == same["url"] != second["url"] == its["url"]
    assert {first["already_running"], same["already_running"]} == {True, False}


def test_the_name_of_another_kind_of_server_is_refused(cache: Path, here: Command) -> None:
    folder = cache / "servers/instances/taken"
    here("start", "--name", "taken", "--port", "0")
    state = read_state(folder)
    assert state is not None
    write_state(state.model_copy(update={"kind": "opensearch"}))
    refused = here("start", "--name", "taken")
    assert (refused.status, refused.err) == (
        2,
        "taken was started as opensearch, not valkey; give another --name.\n",
    )
    write_state(state)
    here("stop", "--name", "taken")
    write_state(state.model_copy(update={"kind": "opensearch", "stopped": state.started}))
    refused = here("start", "--name", "taken")
    assert "taken was started as opensearch" in refused.err
    assert refused.status == 2


@pytest.mark.parametrize("how", HARMS)
def test_a_damaged_state_hides_no_other_server(
    cache: Path, here: Command, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    here("start", "--name", "whole", "--port", "0")
    here("start", "--name", "harmed", "--port", "0")
    file = cache / "servers/instances/harmed/state.json"
    kept = file.read_bytes()
    for number in range(15):
        damage(file, how, random.Random(number))
        shown = here("status", "--json")
        assert shown.status == 0
        assert "whole" in [server["name"] for server in shown.json["servers"]]
        if how in ("empty", "other"):
            assert "harmed/state.json can't be read" in caplog.text
            assert here("start", "--name", "harmed").status == 2
        file.write_bytes(kept)


def test_a_server_that_is_named_is_used(here: Command, valkey: RedisSettings) -> None:
    named = {"COGR_REDIS__URL": str(valkey.url)}
    started = here("start", "--json", **named)
    assert (started.status, started.json["local"], started.json["url"]) == (0, False, valkey.url)
    assert "nothing is started" in started.err
    away = here("status", "--json", COGR_REDIS__URL="redis://u:secret@127.0.0.1:1/0")
    assert (away.status, away.json["running"], away.json["url"]) == (
        3,
        False,
        "redis://127.0.0.1:1/0",
    )
    assert "secret" not in away.out
    failed = here("start", COGR_REDIS__URL="redis://127.0.0.1:1/0")
    assert (failed.status, failed.err.count("\n")) == (3, 1)


def test_what_can_t_be_started_is_one_sentence(here: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = here("start", "--port", str(port))
        assert (ended.status, ended.out) == (2, "")
        assert f"Port {port} of 127.0.0.1 is taken" in ended.err
    assert here("start", "--memory", "much").status == 2
    assert here("stop", "--name", "nobody").status == 2
    broken = here("start", "--port", "0", "--memory", "1kb", "--name", "UPPER")
    assert (broken.status, broken.err.count("\n")) == (2, 1)


def start_as(uid: int, variables: dict[str, str], results: Any) -> None:
    """Start and stop a server in this (forked) process as another user."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.environ.clear()
    os.environ.update(variables)
    state = start(valkey.ValkeySpec(name="mine", port=0)).state
    owner = Path(f"/proc/{state.pid}").stat().st_uid
    results.put((state.url, owner, stop(state, remove=True), str(state.folder)))


@pytest.mark.skipif(not AS_ROOT, reason="every other test here runs as an ordinary user")
def test_an_ordinary_user_starts_one_too(cache: Path) -> None:
    os.chown(cache, OTHER_USER, OTHER_USER)
    variables = {"PATH": os.environ["PATH"], "COGR_CACHE_DIR": str(cache), "HOME": str(cache)}
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=start_as, args=(OTHER_USER, variables, results))
    child.start()
    url, owner, stopped, folder = results.get(timeout=60)
    child.join(30)
    assert url.startswith("redis://127.0.0.1:")
    assert (owner, stopped) == (OTHER_USER, True)
    assert folder == str(cache / "servers/instances/mine")


@pytest.mark.slow
def test_a_broker_behind_sentinels(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COGR_CACHE_DIR", str(cache))
    master = start(valkey.ValkeySpec(name="master", port=0)).state
    program, _ = valkey.find_program(cache / "servers", service_account())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = cache / "sentinel.conf"
    host, master_port = str(master.url).removeprefix("redis://").split("/")[0].split(":")
    config.write_text(
        f"port {port}\nbind 127.0.0.1\nsentinel monitor main {host} {master_port} 1\n"
    )
    sentinel = subprocess.Popen(
        [str(program), str(config), "--sentinel"], stdout=subprocess.DEVNULL
    )
    try:
        redis = RedisSettings(url=f"sentinel://127.0.0.1:{port}", sentinel_master="main")
        wait_for_answer(redis)
        broker = Broker(redis, "q")
        broker.send({"a": 1})
        assert broker.waiting() == 1
        assert Broker(valkey.connection(master), "q").waiting() == 1
    finally:
        sentinel.kill()
        sentinel.wait()


def wait_for_answer(redis: RedisSettings) -> None:
    for _ in range(100):
        try:
            server_version(redis)
            return
        except ServiceError:
            pass
    raise AssertionError("no sentinel answers")


@contextmanager
def tls_in_front_of(state: ServerState, folder: Path) -> Iterator[tuple[int, Path]]:
    """A relay that speaks TLS and hands everything on to a server.

    Yields its port and the certificate to trust.
    """
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*made, *named, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    inner = int(str(state.url).rsplit(":", 1)[1].split("/")[0])

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to, back = await asyncio.open_connection("127.0.0.1", inner)
        await asyncio.gather(pump(reader, back), pump(to, writer), return_exceptions=True)

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(relay, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield server.sockets[0].getsockname()[1], certificate
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_with_a_certificate_that_is_checked(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COGR_CACHE_DIR", str(cache))
    state = start(valkey.ValkeySpec(name="inner", port=0, password=True)).state
    password = valkey.connection(state).password
    with tls_in_front_of(state, cache) as (port, certificate):
        trusting = RedisSettings(
            url=f"rediss://localhost:{port}/0", password=password, ca_file=str(certificate)
        )
        assert server_version(trusting) == state.version
        for wrong in ({"ca_file": None}, {"url": f"rediss://127.0.0.1:{port}/0"}):
            with pytest.raises(ServiceError, match="(?i)certificate"):
                server_version(trusting.model_copy(update=wrong))
