"""Brokers behind sentinels and behind TLS."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import ServiceError
from cogr.settings.indexing import RedisSettings
from indexers.fleet.broker import Broker, Message, server_version
from ops.expander.redis_cache import connect
from ops.servers import ServerState, ValkeySpec, find_valkey, start


@pytest.mark.slow
def test_a_broker_behind_sentinels(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COGR_CACHE_DIR", str(cache))
    master = start(ValkeySpec(name="master", port=0))
    program, _ = find_valkey()
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
        redis = RedisSettings(url=f"sentinel://127.0.0.1:{port}/3?master_name=main")
        wait_for_answer(redis)
        broker = Broker(redis, "q")
        broker.send(Message(side="item", run="r", shard="s", attempt=1))
        assert broker.waiting() == 1
        there = RedisSettings(url=str(master.url).replace("/0", "/3"))
        assert Broker(there, "q").waiting() == 1
        # The expander's client takes the same database.
        cache: Any = connect(redis)
        assert asyncio.run(cache.llen("cogr:q")) == 1
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
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    named = "-subj /CN=localhost -addext subjectAltName=DNS:localhost"
    files = ["-keyout", key, "-out", certificate]
    subprocess.run([*made.split(), *named.split(), *files], check=True, capture_output=True)
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
    state = start(ValkeySpec(name="inner", port=0))
    with tls_in_front_of(state, cache) as (port, certificate):
        trusting = RedisSettings(url=f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}")
        assert server_version(trusting) == state.version
        for wrong in ("localhost", f"127.0.0.1:{port}/0?ssl_ca_certs={certificate}"):
            host = wrong if "?" in wrong else f"{wrong}:{port}/0"
            with pytest.raises(ServiceError, match="(?i)certificate"):
                server_version(RedisSettings(url=f"rediss://{host}"))
