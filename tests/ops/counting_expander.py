"""A real expander behind a relay that numbers its answers, for tests of what clients remember."""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

WAYS = ("counting", "moving", "pruned")


@contextmanager
def counting(upstream: str) -> Iterator[dict[str, str]]:
    """Addresses of relays to the expander at `upstream`, by way. What a client asks under an address and any ending of its own is
    counted apart from what others ask; the number of each answer is in the place of its reason.

    counting: the expander's answers.
    moving: each answer says that something was published: it is of another query snapshot than the last one.
    pruned: the first answer names an index that is not there any more.
    """
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))

    class Relay(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name: self.headers[name] for name in ("authorization", "content-type")}
            answer = httpx.post(f"{upstream}/expand", content=body, headers=headers, timeout=60)
            said = _changed(answer.json(), next(numbers[self.path]), self.path.split("/")[1])
            self.send_response(answer.status_code)
            content = json.dumps(said).encode()
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Relay) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield {way: f"http://127.0.0.1:{server.server_address[1]}/{way}" for way in WAYS}
        server.shutdown()
        thread.join()


def _changed(said: dict[str, Any], number: int, way: str) -> dict[str, Any]:
    said["reason"] = str(number)
    if way == "moving":
        said["snapshots"]["query"] += f"-{number}"
    if way == "pruned" and number == 1:
        said["index"] += "-pruned"
    return said
