"""A reader beside the drill: searches the alias without pause and holds every answer against the
snapshots that may serve.

It speaks plain HTTP and JSON, as a shop would. The drill says what each allowed snapshot answers. A
refusal is an answer that a shop can deal with; a wrong one is not.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

TOP = 20


@dataclass(frozen=True)
class Expected:
    """What may be answered: the edition, the queries, and for each snapshot that may serve, the
    older one first, its answers.
    """

    edition: int
    queries: Sequence[Sequence[str]]
    answers: Sequence[Sequence[Any]]


class Reader(threading.Thread):
    """Searches `alias` at `url` until it is stopped."""

    def __init__(self, url: str, alias: str, expected: Expected) -> None:
        super().__init__(daemon=True)
        self.expected = expected
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._client = httpx.Client(base_url=url, timeout=20)
        self._path = f"/{alias}/_search?search_type=dfs_query_then_fetch"
        self._latest: tuple[int, str] = (-1, "")
        self._stopped = threading.Event()

    def run(self) -> None:
        """Search until it is stopped."""
        for turn in itertools.count():
            if self._stopped.wait(0.02):
                return
            expected = self.expected
            self._ask(expected, turn % len(expected.queries))

    def stop(self) -> None:
        """Return once it has ended."""
        self._stopped.set()
        self.join()

    def _ask(self, expected: Expected, number: int) -> None:
        clauses = [{"match": {"keywords": {"query": word}}} for word in expected.queries[number]]
        body = {
            "size": TOP,
            "track_total_hits": True,
            "_source": False,
            "query": {"bool": {"should": clauses, "minimum_should_match": 1}},
            "sort": [{"_score": "desc"}, {"item_id": "asc"}],
        }
        try:
            response = self._client.post(self._path, json=body)
        except httpx.HTTPError:
            self.seen["unreachable"] += 1
            return
        answer = response.json()
        whole = not (answer.get("timed_out") or answer.get("_shards", {}).get("failed"))
        if response.status_code in (429, 500, 502, 503) or not whole:
            self.seen["refused"] += 1
        elif response.status_code != 200:
            self._is_wrong(f"status {response.status_code}: {answer}")
        else:
            hits = answer["hits"]["hits"]
            found = [[hit["_id"], float32(hit["sort"][0])] for hit in hits]
            self._judge(expected, number, [answer["hits"]["total"]["value"], found])

    def _judge(self, expected: Expected, number: int, got: list[Any]) -> None:
        asked, edition = expected.queries[number], expected.edition
        fitting = [at for at, answers in enumerate(expected.answers) if answers[number] == got]
        if not fitting:
            self._is_wrong(f"{asked} in edition {edition}: {got}")
        elif self._latest == (edition, "new") and 1 not in fitting:
            self._is_wrong(f"{asked}: the old snapshot's answer came after the new one's")
        else:
            self.seen["right"] += 1
            if fitting == [1]:
                self._latest = (edition, "new")

    def _is_wrong(self, what: str) -> None:
        self.wrong = [*self.wrong, what[:1000]][:20]


def float32(printed: float) -> float:
    """The float32 behind its shortest decimal form, which is how a cluster prints it."""
    value: float = struct.unpack("f", struct.pack("f", printed))[0]
    return value
