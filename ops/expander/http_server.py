"""The HTTP server of the expander: Granian and its configuration. It knows no routes.

It speaks only HTTP/1.1 and ignores offers of another protocol (RFC 9110, section 7.8): Java's
HttpClient offers HTTP/2 with each request, curl with --http2. Slow heads and idle connections are
closed. Connections are accepted only while there are file descriptors for them; the kernel keeps
the others waiting. Admission control limits the time of a body. The server ends in bounded time,
whereas Granian itself waits for open connections without limit.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable

from fastapi import FastAPI
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server

from cogr.errors import ServiceError
from cogr.settings.serving import ServingSettings
from ops.expander.admission import READ_SECONDS
from ops.expander.circuit_breaker import MAX_IN_FLIGHT, MAX_REQUESTS, MODEL_CONCURRENCY

log = logging.getLogger(__name__)

HEAD_BYTES = 16_384
"""Largest head; over it 431."""
CONNECTIONS = 10_000
"""Most connections at once, if there are enough file descriptors."""
GRACE = 10.0
"""Seconds that open connections have when the server is to end; then they are cut."""
_DESCRIPTORS = 65_536
_WAITING = 2048
"""Connections that the kernel keeps waiting."""
# Its log lines go to the program's log. It warns at each start that it is embedded in a program,
# which is intended.
_LOG = {"loggers": {"_granian": {"propagate": True}}}


def free_address(settings: ServingSettings) -> tuple[str, int]:
    """The IP address and port to listen on; a port of 0 becomes a free one. Raises ServiceError."""
    host, port = settings.host, settings.port
    try:
        # The server opens its port for sharing, so another server on the same port would go
        # unnoticed.
        with socket.create_server((host, port), family=_family(host)) as probe:
            address: tuple[str, int] = probe.getsockname()[:2]
    except OSError as error:
        raise ServiceError(
            f"Nothing can listen on {host}:{port} ({error.strerror}); choose another "
            "serving.host or serving.port."
        ) from error
    return address


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def serve(
    app: FastAPI,
    address: tuple[str, int],
    begun: Callable[[Callable[[], None]], None],
) -> None:
    """Answer requests until asked to end; requests under way are finished.

    Args:
        address: as `free_address` gave it.
        begun: gets a function that ends the server, by a call in this thread, once it listens.

    Raises:
        ServiceError: it ended by itself; the log says why.
    """
    async with app.router.lifespan_context(app):
        await _serve(_server(app, address), address, begun)


def _server(app: FastAPI, address: tuple[str, int]) -> Server:
    return Server(
        app,
        address=address[0],
        port=address[1],
        # The caller starts and closes the application, also where the server does not end by
        # itself.
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        backlog=_WAITING,
        backpressure=most_connections(),
        http1_settings=HTTP1Settings(
            header_read_timeout=round(1000 * READ_SECONDS),
            max_buffer_size=HEAD_BYTES,
            pipeline_flush=True,
        ),
        log_level=LogLevels.error,
        log_dictconfig=_LOG,
    )


async def _serve(
    server: Server, address: tuple[str, int], begun: Callable[[Callable[[], None]], None]
) -> None:
    ended = asyncio.Event()
    serving = asyncio.create_task(server.serve())
    while not serving.done() and not await _listens(address):
        await asyncio.sleep(0.01)
    begun(ended.set)
    ending = asyncio.create_task(ended.wait())
    await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.is_set():
        ending.cancel()
        await serving
        raise ServiceError("The HTTP server ended by itself; the lines above say why.")
    server.stop()  # type: ignore[no-untyped-call]
    await asyncio.wait({serving}, timeout=GRACE)
    if not serving.done():
        log.warning(
            "Connections were still open %g s after the end was asked for; they are cut.", GRACE
        )
        serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def _listens(address: tuple[str, int]) -> bool:
    """Whether connections are accepted there. Granian does not report when it is ready."""
    try:
        _, writer = await asyncio.open_connection(*address)
    except OSError:
        return False
    writer.close()
    return True


def most_connections() -> int:
    """Most connections, so that file descriptors are left for files and upstreams."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    behind = MAX_REQUESTS + MAX_IN_FLIGHT + MODEL_CONCURRENCY + 64
    return min(CONNECTIONS, max(most - behind, most // 2))
