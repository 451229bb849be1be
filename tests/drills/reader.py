"""A reader of its own process: searches the alias without pause and holds every answer against the
snapshots that may serve.

It speaks plain HTTP and JSON, as a shop would. `expected.json` (replaced atomically by the drill)
says what each allowed snapshot answers; `seen.json` says what came. A refusal is an answer that a
shop can deal with; a wrong one is not.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TOP = 20


class Reader:
    """Searches `alias` at `url`."""

    def __init__(self, url: str, alias: str, folder: Path) -> None:
        self._netloc, self._alias, self._folder = urlsplit(url).netloc, alias, folder
        self._connection: http.client.HTTPConnection | None = None
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._latest: tuple[int, str] = (-1, "")

    def search_for_ever(self) -> None:
        """Until it is killed."""
        written = 0.0
        for turn in itertools.count():
            expected = json.loads((self._folder / "expected.json").read_text())
            words = expected["queries"][turn % len(expected["queries"])]
            self._ask(expected, turn % len(expected["queries"]), words)
            if time.monotonic() - written > 0.2:
                written = time.monotonic()
                self._write()
            time.sleep(0.02)

    def _ask(self, expected: dict[str, Any], number: int, words: list[str]) -> None:
        clauses = [{"match": {"keywords": {"query": word}}} for word in words]
        body = {
            "size": TOP,
            "track_total_hits": True,
            "_source": False,
            "query": {"bool": {"should": clauses, "minimum_should_match": 1}},
            "sort": [{"_score": "desc"}, {"item_id": "asc"}],
        }
        try:
            status, answer = self._post(
                f"/{self._alias}/_search?search_type=dfs_query_then_fetch", body
            )
        except (OSError, http.client.HTTPException):
            self.counts["unreachable"] += 1
            self._connection = None
            return
        if status in (429, 500, 502, 503) or (
            status == 200 and (answer["timed_out"] or answer["_shards"]["failed"])
        ):
            self.counts["refused"] += 1
            return
        if status != 200:
            self._is_wrong(f"status {status}: {answer}")
            return
        got = [
            answer["hits"]["total"]["value"],
            [[hit["_id"], float32(hit["sort"][0])] for hit in answer["hits"]["hits"]],
        ]
        self._judge(expected, number, got)

    def _judge(self, expected: dict[str, Any], number: int, got: list[Any]) -> None:
        fitting = [
            place for place, answers in enumerate(expected["answers"]) if answers[number] == got
        ]
        if not fitting:
            self._is_wrong(f"{expected['queries'][number]} in cycle {expected['cycle']}: {got}")
        elif self._latest == (expected["cycle"], "new") and 1 not in fitting:
            self._is_wrong(
                f"{expected['queries'][number]}: the old snapshot's answer came after the new one's"
            )
        else:
            self.counts["right"] += 1
            if fitting == [1]:
                self._latest = (expected["cycle"], "new")

    def _is_wrong(self, what: str) -> None:
        self.counts["wrong"] += 1
        self.wrong = [*self.wrong, what[:1000]][:20]

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._netloc, timeout=20)
        self._connection.request(
            "POST", path, json.dumps(body), {"content-type": "application/json"}
        )
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def _write(self) -> None:
        seen = {**self.counts, "wrong_answers": self.wrong}
        unfinished = self._folder / "seen.json.new"
        unfinished.write_text(json.dumps(seen))
        unfinished.replace(self._folder / "seen.json")


def float32(printed: float) -> float:
    """The float32 behind its shortest decimal form, which is how a cluster prints it."""
    value: float = struct.unpack("f", struct.pack("f", printed))[0]
    return value


def main() -> None:
    """`reader URL ALIAS FOLDER`; ends with the process that has started it."""
    url, alias, folder = sys.argv[1:]
    os.nice(5)
    Reader(url, alias, Path(folder)).search_for_ever()
