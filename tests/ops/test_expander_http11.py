"""Requests that offer another protocol, as Java's HttpClient and `curl --http2` send them, are answered as HTTP/1.1."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from http.client import parse_headers

import pytest

from tests.ops.expander_worlds import Running, running, workspace

BODY = b'{"query": "Green sofa"}'
LENGTH = b"Content-Length: %d" % len(BODY)
# As java.net.http.HttpClient sends it.
JAVA = (
    b"POST /expand HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\n%b\r\nHost: localhost\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\nUpgrade: h2c\r\n\r\n%b" % (LENGTH, BODY)
)
PLAIN = JAVA.replace(b"Upgrade: h2c\r\n", b"")
CHUNKED = JAVA.replace(LENGTH, b"Transfer-Encoding: chunked").replace(
    BODY, b"8\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:8], len(BODY) - 8, BODY[8:])
)
WEBSOCKET = JAVA.replace(b"h2c", b"websocket")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An expander with nothing behind it."""
    with running(workspace(tmp_path_factory.mktemp("bare"))) as expander:
        yield expander


def answers(expander: Running, sent: Sequence[bytes], count: int = 1) -> list[tuple[int, bytes]]:
    """The first statuses and bodies that come back on one connection that sends these pieces."""
    url = expander.client.base_url
    with socket.create_connection((url.host, url.port or 80), 30) as connection, connection.makefile("rb") as stream:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in sent:
            connection.sendall(piece)
        found = []
        for _ in range(count):
            status = int(stream.readline().split()[1])
            found.append((status, stream.read(int(parse_headers(stream)["content-length"]))))
        return found


def keywords(answer: tuple[int, bytes]) -> list[str]:
    status, body = answer
    assert status == 200, body
    words: list[str] = json.loads(body)["keywords"]
    return words


@pytest.mark.parametrize("request_", [JAVA, CHUNKED, WEBSOCKET], ids=["length", "chunked", "websocket"])
@pytest.mark.parametrize("size", [1, 7, 200, 1000])
def test_an_offer_is_declined_and_the_request_answered(bare: Running, request_: bytes, size: int) -> None:
    pieces = [request_[start : start + size] for start in range(0, len(request_), size)]
    assert keywords(answers(bare, pieces)[0]) == ["green sofa"]


def test_the_connection_goes_on_after_an_offer(bare: Running) -> None:
    requests = [JAVA, PLAIN, CHUNKED, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", JAVA]
    together = answers(bare, [b"".join(requests)], len(requests))
    assert [status for status, _ in together] == [200] * len(requests)
    assert json.loads(together[3][1]) == {"status": "ok"}


def test_offers_in_one_packet_are_as_many_as_they_like(bare: Running) -> None:
    offers = b"GET /healthz HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" * 1200
    assert {status for status, _ in answers(bare, [offers], 1200)} == {200}


def test_an_offer_hides_no_bad_request(bare: Running) -> None:
    assert answers(bare, [CHUNKED.replace(b"\r\n8\r\n", b"\r\nrubbish\r\n")])[0][0] == 400
    assert answers(bare, [b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n"])[0][0] in (400, 404)
    assert answers(bare, [JAVA.replace(BODY, b"?" * len(BODY))])[0][0] == 422
