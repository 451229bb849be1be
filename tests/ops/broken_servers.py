"""Upstreams as they go wrong: nobody there, one that accepts and never answers, one that gives bad
answers.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def _http(
    body: bytes, length: int, status: str = "200 OK", kind: str = "application/json"
) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    return head.encode() + body


BAD_ANSWERS = {
    "noise": bytes(range(256)) * 40,
    "web page": _http(b"<html>hi</html>", 15, kind="xhtml+xml"),
    "wrong json": _http(b'{"hits": [1]}', 13),
    "list": _http(b"[[null]]", 8),
    "null": _http(b"null", 4),
    "error": _http(b"{}", 2, "500 Oh"),
    "half": _http(b"{", 500),
    "redis types": b"%1\r\n+server\r\n:5\r\n*2\r\n$-1\r\n:7\r\n",
    "redis error": b"-ERR nothing works here\r\n" * 20,
    "redis huge": b"$999999999999\r\nabc",
}
FAULTS = ("absent", "hanging", "closing", *BAD_ANSWERS)


@contextmanager
def broken(fault: str) -> Iterator[int]:
    """The port of a server that is broken in this way."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    port = listening.getsockname()[1]
    if fault == "absent":
        listening.close()
        yield port
        return
    kept: list[socket.socket] = []
    thread = threading.Thread(target=_serve, args=(listening, fault, kept), daemon=True)
    thread.start()
    try:
        yield port
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)
        for one in kept:
            one.close()


def _serve(listening: socket.socket, fault: str, kept: list[socket.socket]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        if fault == "closing":
            connection.close()
            continue
        kept.append(connection)
        if fault in BAD_ANSWERS:
            threading.Thread(
                target=_answer, args=(connection, BAD_ANSWERS[fault]), daemon=True
            ).start()


def _answer(connection: socket.socket, answer: bytes) -> None:
    try:
        while connection.recv(65536):
            connection.sendall(answer)
    except OSError:
        return
