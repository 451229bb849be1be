"""A broker behind TLS."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cogr.errors import ServiceError
from cogr.settings.indexing import RedisSettings
from indexers.fleet.broker import server_version
from ops.servers import ServerState, ValkeySpec, start


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
        assert server_version(trusting).count(".") == 2
        for wrong in ("localhost", f"127.0.0.1:{port}/0?ssl_ca_certs={certificate}"):
            host = wrong if "?" in wrong else f"{wrong}:{port}/0"
            with pytest.raises(ServiceError, match="(?i)certificate"):
                server_version(RedisSettings(url=f"rediss://{host}"))
