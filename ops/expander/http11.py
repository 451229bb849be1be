"""The HTTP server under the expander: uvicorn, speaking HTTP/1.1 alone, whatever a client offers. Knows no routes."""

from __future__ import annotations

from typing import Any

import uvicorn
from fastapi import FastAPI
from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def server_config(app: FastAPI) -> uvicorn.Config:
    """How the expander is served."""
    return uvicorn.Config(app, http=Http11, log_config=None, access_log=False, server_header=False)


class Http11(HttpToolsProtocol):
    """Takes a request that offers another protocol as if it had not: RFC 9110, section 7.8.

    Java's HttpClient offers HTTP/2 with each request unless told otherwise, curl by --http2. httptools stops behind the head
    of such a request and uvicorn takes that for its end, so that the body would be lost (uvicorn's issue 2722).
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = _Declining(self)
        # As uvicorn's own parser has it: what follows a request with `Connection: close` does not take its answer away.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    @property
    def offered(self) -> bool:
        """Whether the request whose head was just read offers an upgrade. CONNECT asks for a tunnel, which is no offer."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the head comes again without its offer."""
        if not self.offered:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is complete, unless this is the end that the parser sees in an offer."""
        if not self.offered:
            super().on_message_complete()

    def head_without_offer(self) -> bytes:
        """The head that was just read, without its Upgrade."""
        first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        kept = (b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade")
        return b"%b%b\r\n" % (first, b"".join(kept))


class _Declining(HttpRequestParser):
    """Goes on where the plain parser stops at an offer: with the same head without it, then with what follows."""

    def __init__(self, protocol: Http11) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        """Parse what was received. Raises HttpParserError, and HttpParserUpgrade for CONNECT."""
        while True:
            try:
                return super().feed_data(data)
            except HttpParserUpgrade as stopped:
                if not self._protocol.offered:
                    raise
                data = memoryview(data)[stopped.args[0] :]
            super().feed_data(self._protocol.head_without_offer())
