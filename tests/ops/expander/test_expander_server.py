"""The server under the expander, by raw sockets: requests that never end, signals, its end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from ops.expander.app import READ_SECONDS
from tests.commands import Command
from tests.ops.expander.expander_worlds import is_up, running, wait_for, workspace

BODY = b'{"query": "Green sofa"}'
LENGTH = b"Content-Length: %d" % len(BODY)
# The offer of another protocol, as of java.net.http.HttpClient, is ignored.
PLAIN = (
    b"POST /expand HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    b"%b\r\n\r\n%b" % (LENGTH, BODY)
)
CHUNKED = PLAIN.replace(LENGTH, b"Transfer-Encoding: chunked").replace(
    BODY, b"8\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:8], len(BODY) - 8, BODY[8:])
)
HALF_BODY = PLAIN[:-5]


@contextmanager
def served(
    folder: Path, read_seconds: float = READ_SECONDS
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`cogr-ops serve` in a process of its own; its address."""
    workspace(folder)
    constants = json.dumps({"ops.expander.app.READ_SECONDS": read_seconds})
    command = [sys.executable, "-m", "tests.altered", constants, "ops.cli", "serve"]
    with subprocess.Popen(
        [*command, "--port", "0", "-c", str(folder / "cogr.toml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        url = next(
            word for line in process.stderr for word in line.split() if word.endswith("/expand")
        )
        with httpx.Client(base_url=url.removesuffix("/expand"), timeout=60) as client:
            wait_for(lambda: is_up(client))
        yield process, url.removesuffix("/expand")
        process.terminate()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one with nothing behind it, which waits a second for heads and bodies."""
    with served(tmp_path_factory.mktemp("hasty"), read_seconds=1.0) as (_, url):
        yield url


def connected(url: str) -> socket.socket:
    address = urlsplit(url)
    connection = socket.create_connection((str(address.hostname), address.port or 80), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def said_until_closed(connection: socket.socket) -> tuple[bytes, float]:
    """Everything that comes before the other side closes, and how many seconds that took."""
    started, said = time.monotonic(), b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            said += part
    return said, time.monotonic() - started


@pytest.mark.parametrize("sent", [HALF_BODY, CHUNKED[:-5]], ids=["length", "chunked"])
def test_a_body_that_does_not_end_is_refused_and_closed(hasty: str, sent: bytes) -> None:
    with connected(hasty) as connection:
        connection.sendall(sent)
        said, seconds = said_until_closed(connection)
    assert said.split()[1] == b"408"
    assert b"must arrive within 1 seconds" in said
    assert seconds < 10


@pytest.mark.slow
@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_what_is_under_way_is_answered_before_it_ends(tmp_path: Path, told: signal.Signals) -> None:
    with served(tmp_path) as (process, url), connected(url) as connection:
        connection.sendall(HALF_BODY)
        # Its head is read: what comes after it on another connection is answered.
        assert httpx.get(f"{url}/healthz").status_code == 200
        process.send_signal(told)
        connection.sendall(PLAIN[-5:])
        said, _ = said_until_closed(connection)
        assert said.split()[1] == b"200"
        assert process.wait(30) == 0


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as (process, _):
        (worker,) = psutil.Process(process.pid).children()
        worker.kill()
        assert process.wait(30) == 3
        assert "ended by itself" in process.stderr.read()


def test_a_port_that_is_taken_is_said(tmp_path: Path, cogr_ops: Command) -> None:
    workspace(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, config = taken.getsockname()[1], tmp_path / "cogr.toml"
        ended = cogr_ops("serve", "--port", port, "-c", config)
    assert ended.status == 3
    assert "choose another --host or --port" in ended.err.replace("\n", " ")


@pytest.mark.parametrize("playground", [False, True])
def test_the_root_leads_on_and_an_error_that_nobody_expected_is_logged(
    tmp_path: Path,
    playground: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> bytes:
        raise RuntimeError("nobody expected this")

    with running(workspace(tmp_path), playground=playground) as expander:
        found = expander.client.get("/", follow_redirects=True)
        assert found.status_code == 200
        assert found.url.path == ("/playground/" if playground else "/openapi.json")
        monkeypatch.setattr(expander.parts.metrics, "page", fails)
        assert expander.client.get("/metrics").status_code == 500
        assert expander.metric("cogr_expander_bugs_total") == 1
    assert "RuntimeError" in caplog.text
