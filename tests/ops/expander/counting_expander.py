"""A real expander behind a relay that numbers its answers, for tests of what clients remember."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.web_server import Answer, Request, serve

WAYS = ("counting", "moving", "pruned")


@contextmanager
def counting(upstream: str) -> Iterator[dict[str, str]]:
    """Addresses of relays to the expander at `upstream`, by way. What a client asks under an
    address and any ending of its own is
    counted apart from what others ask; the number of each answer is in the place of its reason.

    counting: the expander's answers.
    moving: each answer says that something was published: it is of another query snapshot than the
        last one.
    pruned: the first answer names an index that is not there any more.
    """
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))

    def handle(request: Request) -> Answer:
        headers = {name: request.headers[name] for name in ("authorization", "content-type")}
        answer = httpx.post(f"{upstream}/expand", content=request.body, headers=headers, timeout=60)
        said = _changed(answer.json(), next(numbers[request.path]), request.path.split("/")[1])
        return answer.status_code, json.dumps(said).encode()

    with serve(handle) as url:
        yield {way: f"{url}/{way}" for way in WAYS}


def _changed(said: dict[str, Any], number: int, way: str) -> dict[str, Any]:
    said["reason"] = str(number)
    if way == "moving":
        said["snapshots"]["query"] += f"-{number}"
    if way == "pruned" and number == 1:
        said["index"] += "-pruned"
    return said
