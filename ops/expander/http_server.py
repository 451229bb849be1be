"""The HTTP server of the expander: Granian and its limits. It knows no routes.

It speaks only HTTP/1.1 and ignores offers of another protocol (RFC 9110, section 7.8): Java's
HttpClient offers HTTP/2 with each request, curl with --http2. Slow heads and idle connections are
closed. Connections are accepted only while there are file descriptors for them; the kernel keeps
the others waiting. Admission control limits the time of a body.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable

from fastapi import FastAPI
from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings
from granian.log import LogLevels

from cogr.errors import ServiceError
from ops.expander.admission import READ_SECONDS
from ops.expander.circuit_breaker import MAX_IN_FLIGHT, MAX_REQUESTS, MODEL_CONCURRENCY

HEAD_BYTES = 16_384
"""Largest head; over it 431."""
CONNECTIONS = 10_000
"""Most connections at once, if there are enough file descriptors."""
GRACE = 10
"""Seconds that open connections have when the server is to end; then they are cut."""
_DESCRIPTORS = 65_536
_WAITING = 2048
"""Connections that the kernel keeps waiting."""


def free_address(host: str, port: int) -> tuple[str, int]:
    """The IP address and port to listen on; a port of 0 becomes a free one. Raises ServiceError."""
    try:
        # The server opens its port for sharing, so another server on the same port would go
        # unnoticed.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as probe:
            address: tuple[str, int] = probe.getsockname()[:2]
    except OSError as error:
        raise ServiceError(
            f"Nothing can listen on {host}:{port} ({error.strerror}); choose another --host or "
            "--port."
        ) from error
    return address


def serve(make: Callable[[], FastAPI], address: tuple[str, int]) -> None:
    """Serve the application that `make` gives, in one worker process, until SIGTERM or SIGINT.
    Requests under way are finished. Raises ServiceError.
    """
    server = Granian(
        "",
        address=address[0],
        port=address[1],
        interface=Interfaces.ASGI,
        loop=Loops.uvloop,
        http=HTTPModes.http1,
        websockets=False,
        backlog=_WAITING,
        backpressure=most_connections(),
        http1_settings=HTTP1Settings(
            header_read_timeout=round(1000 * READ_SECONDS),
            max_buffer_size=HEAD_BYTES,
            pipeline_flush=True,
        ),
        workers_kill_timeout=GRACE,
        log_level=LogLevels.error,
        log_dictconfig={"loggers": {"_granian": {"propagate": True}}},
    )
    try:
        server.serve(target_loader=make, wrap_loader=False)
    except SystemExit as ended:
        raise ServiceError("The HTTP server ended by itself; the lines above say why.") from ended


def most_connections() -> int:
    """Most connections, so that file descriptors are left for files and upstreams."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    behind = MAX_REQUESTS + MAX_IN_FLIGHT + MODEL_CONCURRENCY + 64
    return min(CONNECTIONS, max(most - behind, most // 2))
