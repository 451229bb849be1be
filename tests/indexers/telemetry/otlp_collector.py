"""An OTLP/HTTP collector on a free port of this machine: decodes the real protobuf messages and
keeps the spans.
"""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector:
    """Runs in a thread of its own, in a `with` block.

    Attributes:
        spans: decoded spans, as they came.
        services: their resources' service names, aligned with `spans`.
        raw: bodies of all requests.
    """

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: list[str] = []
        self.raw: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(
                    gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                )
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        self.raw.append(body)
        for resource in request.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(span)
                    self.services.append(names["service.name"])

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def parent_of(self, span: Any) -> Any:
        """The span that it is a child of; None for a root."""
        return (
            next((one for one in self.spans if one.span_id == span.parent_span_id), None)
            if span.parent_span_id
            else None
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    """A span's attributes as plain values."""
    return {
        one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes
    }
