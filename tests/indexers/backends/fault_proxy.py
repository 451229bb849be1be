"""A real HTTP proxy in front of a real node that fails on chosen requests."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.web_server import Answer, Request, json_answer, serve


def error_body(status: int, kind: str, reason: str) -> Answer:
    """An error as OpenSearch words it."""
    cause = {"type": kind, "reason": reason}
    return json_answer({"error": {"root_cause": [cause], **cause}, "status": status}, status)


@dataclass
class Fault:
    """What to do with the requests that it is for.

    Attributes:
        method, part: the requests: this method, and a path that contains this.
        answer: what to answer; None closes the connection without a word.
        times: how many requests it hits before it is used up; None for ever.
        skip: how many requests it lets pass first.
        forwarded: True: the node gets the request all the same, and only the answer is lost or
            replaced.
    """

    method: str
    part: str
    answer: Answer | None
    times: int | None = None
    skip: int = 0
    forwarded: bool = False


@dataclass
class Proxy:
    """Faults to come and requests seen. Every request goes to the node unless a fault hits it."""

    url: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[Request] = field(default_factory=list)
    rewrite: Callable[[Request, Callable[[Request], Answer]], Answer | None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault_for(self, request: Request) -> Fault | None:
        with self.lock:
            self.seen.append(request)
            for fault in self.faults:
                if request.is_for(fault.method, fault.part):
                    if fault.skip:
                        fault.skip -= 1
                        return None
                    if fault.times is None:
                        return fault
                    if fault.times:
                        fault.times -= 1
                        return fault
        return None

    def count(self, method: str, part: str) -> int:
        return sum(request.is_for(method, part) for request in self.seen)


@contextmanager
def proxy_to(target: str) -> Iterator[Proxy]:
    """A proxy on a free port of 127.0.0.1."""
    host = urlsplit(target).netloc

    def forward(request: Request) -> Answer:
        connection = http.client.HTTPConnection(host, timeout=60)
        headers = {
            name: request.headers[name] for name in ("content-type",) if name in request.headers
        }
        connection.request(request.method, request.path, request.body or None, headers)
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    def handle(request: Request) -> Answer | None:
        fault = proxy.fault_for(request)
        try:
            if fault is None:
                return (proxy.rewrite and proxy.rewrite(request, forward)) or forward(request)
            if fault.forwarded:
                forward(request)
        except OSError:  # The node is gone: the client sees what it would see of the node.
            return None
        return fault.answer

    with serve(handle) as url:
        proxy = Proxy(url)
        yield proxy
