"""Small HTTP servers for tests: every answer comes from a function."""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes]


@dataclass
class Request:
    """What came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def is_for(self, method: str, part: str) -> bool:
        return self.method == method and part in self.path


def json_answer(value: object, status: int = 200) -> Answer:
    """A value as JSON."""
    return status, json.dumps(value).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def serve(
    handle: Callable[[Request], Answer | None],
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """A server whose every answer `handle` gives, with further headers; None closes the connection.
    Yields its URL.
    """
    more = headers or {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = handle(Request(self.command, self.path, headers, body))
            if answer is None:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(answer[0])
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(answer[1])))
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer[1])

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _answer  # noqa: N815 (names that http.server looks for)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = _Server(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
