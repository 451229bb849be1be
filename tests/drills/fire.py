"""A fleet under fire: one command after the other, processes and servers that are killed at random,
and what must hold after each.

What dies is started again, as an orchestrator does. The catalogue goes from edition to edition by a
rebuild on workers or by an update; each is over when the same command has ended well, however often
it was killed before.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import httpx

from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Snapshot, open_snapshot
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.indexes import read_index
from indexers.lease import latest_lease, lease_to_rebuild
from tests.commands import sets
from tests.drills.catalogue import TOP, Catalogue, answers
from tests.drills.nursery import Broker, Node, Nursery, killed
from tests.indexers.backends.opensearch_worlds import overrides_of
from tests.indexers.rebuild.fleet.fleet_worlds import run_in

LEASE_SECONDS = 2.0
# Workers die of the drill and not of entities: none of these may be set aside for it.
ALTERED = json.dumps(
    {
        "indexers.rebuild.fleet.coordinator.LAST_DEATHS": 50,
        "indexers.rebuild.fleet.coordinator.POLL_SECONDS": 0.1,
        "indexers.rebuild.fleet.coordinator.LOOK_SECONDS": 0.5,
        "indexers.rebuild.fleet.broker.INSPECT_SECONDS": 0.5,
        "indexers.lease.REBUILD_SECONDS": LEASE_SECONDS,
        "indexers.generators.cache.FLUSH_ANSWERS": 32,
    }
)
SLOW = ("tests.indexers.faulty", json.dumps({"delay": 0.003}))
RETRY = 0.3
"""Seconds after which a command that found a service away is tried again."""


class Fire:
    """Everything that runs, and what was done to it.

    Args:
        folder: gets the catalogue and the store.
        opensearch: where to publish.
        node: the same, where it may be killed.
        weights: how often what is harmed.
    """

    def __init__(
        self,
        folder: Path,
        opensearch: OpenSearchSettings,
        *,
        items: int,
        weights: Mapping[str, float],
        node: Node | None = None,
        workers: int = 3,
        seed: int = 0,
    ) -> None:
        self.catalogue = Catalogue(folder, items)
        self.store = Store(folder / ".cogr")
        self.kills: Counter[str] = Counter()
        # A service that is away ends a command with status 3: the same command goes on when it is
        # back.
        self.accepted = {3, -signal.SIGKILL}
        self._folder, self._node = folder, node
        self._nursery, self._broker = Nursery(), Broker()
        self.prefix = f"drill-{uuid.uuid4().hex[:6]}"
        self._settings = opensearch.model_copy(update={"prefix": self.prefix})
        self._weights = dict(weights)
        self._draw = random.Random(seed)
        broker = f"redis.url={self._broker.state.url}"
        given = sets("backend=opensearch", broker, *overrides_of(self._settings))
        self._flags = ["-c", str(folder / "cogr.toml"), *given]
        self._serving: Snapshot | None = None
        self.reader: Reader | None = None
        self._command: BaseProcess | None = None
        self._retry_at = 0.0
        self._workers = [self._worker(number) for number in range(workers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, *_: object) -> None:
        self._nursery.close()
        self._broker.close()
        if self.reader is not None:
            self.reader.stop()
        if self._node is None and error is None:
            backend = OpenSearchBackend(self._settings, self.store)
            backend.cluster.call("DELETE", f"/{self.prefix}-*", doing="cleaning up")
            backend.close()

    # Processes

    def _start(self, module: str, log: str, *arguments: str) -> BaseProcess:
        whole = [ALTERED, *SLOW, module, *arguments, *self._flags]
        return self._nursery.start("tests.altered", whole, self._folder / f"{log}.log")

    def _worker(self, number: int) -> BaseProcess:
        return self._start("ops.cli", f"worker{number}", "worker", "--side", "item", "-v")

    def tend(self, arguments: Sequence[str]) -> dict[str, Any] | None:
        """Start what is gone. Returns what the command said once it has ended well."""
        for number, worker in enumerate(self._workers):
            if worker.exitcode is not None:
                self._workers[number] = self._worker(number)
        if self._command is None:
            if time.monotonic() >= self._retry_at:
                self._command = self._start("indexers.cli", "command", *arguments, "--json")
            return None
        status, log = self._command.exitcode, self._folder / "command.log"
        if status is None:
            return None
        self._command = None
        if status == 0:
            answer: dict[str, Any] = json.loads(Path(f"{log}.out").read_text("utf-8"))
            return answer
        assert status in self.accepted, f"status {status}: {log.read_text()[-4000:]}"
        self._retry_at = time.monotonic() + (RETRY if status > 0 else 0.0)
        return None

    # Harm

    def harm(self) -> None:
        """One blow, at what is there to be hit."""
        what = self._draw.choices(list(self._weights), list(self._weights.values()))[0]
        if what == "worker":
            self.kills[what] += killed(self._draw.choice(self._workers))
        elif what == "coordinator":
            if self._command is not None and self._command.exitcode is None:
                self.kills[what] += killed(self._command)
        elif what == "valkey":
            self.kills[what] += self._broker.die()
        elif what == "opensearch":
            self.kills[what] += self._node is not None and self._node.die()
        elif what == "flushall":
            self._broker.call("FLUSHALL")
        else:
            self._draw.choice(self._workers).terminate()

    def run(self, arguments: Sequence[str], most: int, pause: float) -> dict[str, Any]:
        """A command to its good end; killed around at random moments, until there were `most` kills
        and it is left in peace.
        """
        most += sum(self.kills.values())
        due = time.monotonic() + self._draw.uniform(0, 2 * pause)
        while True:
            answer = self.tend(arguments)
            if answer is not None:
                return answer
            if sum(self.kills.values()) < most and time.monotonic() >= due:
                self.harm()
                due = time.monotonic() + self._draw.uniform(0, 2 * pause)
            time.sleep(0.02)

    # Editions

    def first(self) -> None:
        """Both sides are published once, in peace, and the reader begins."""
        for side in ("query", "item"):
            self.run(("rebuild", "--side", side, "--workers", "local"), 0, 0)
        self._serving = self.catalogue.calm()
        expected = self._expected(self._serving)
        self.reader = Reader(str(self._settings.url), f"{self.prefix}-items", expected)
        self.reader.start()

    def next_edition(self, kind: str, most: int, pause: float) -> None:
        """One more edition by `rebuild` or `update`, under fire of at most so many kills, and all
        that must hold afterwards.
        """
        before = self._serving
        assert before is not None
        assert self.reader is not None
        if kind == "rebuild":
            self.catalogue.rewrite()
            arguments: tuple[str, ...] = ("rebuild", "--side", "item", "--workers", "celery")
        else:
            arguments = ("update", "--side", "item", "--changed", str(self.catalogue.change()))
        after = self.catalogue.calm()
        self.reader.expected = self._expected(before, after)
        answer = self.run(arguments, most, pause)
        assert answer["snapshot"] == after.id
        self._serving = after
        if self._node is not None:
            self._node.back()
        self.check(after, self.reader)
        self.reader.expected = self._expected(after)
        self.run(("prune", "--keep", "1", "--files"), 0, 0)

    def _expected(self, *snapshots: Snapshot) -> Expected:
        """What may be answered from now on."""
        queries = self.catalogue.asked()
        found = [answers(one, queries) for one in (snapshots[0], snapshots[-1])]
        return Expected(self.catalogue.edition, queries, found)

    # What must hold

    def check(self, calm: Snapshot, reader: Reader) -> None:
        """Same bytes, every index whole and verified, one index behind the alias, no lock and no
        temporary file left.
        """
        mine = open_snapshot(self.store, calm.id)
        assert self.store.read(mine.path) == calm.store.read(calm.path)
        assert mine.manifest.set_aside == 0
        backend = OpenSearchBackend(self._settings, self.store)
        try:
            self._check_indexes(backend, mine)
        finally:
            backend.close()
        with self.store.lock("rebuild-item", "the drill"):
            pass
        lease = latest_lease(self.store, lease_to_rebuild("item"))
        assert lease is None or lease.released or lease.seconds <= LEASE_SECONDS
        run = run_in(self.store)
        assert run is None or (run.state, dict(run.set_aside)) == ("finished", {})
        assert reader.wrong == []
        assert reader.is_alive()

    def _check_indexes(self, backend: OpenSearchBackend, mine: Snapshot) -> None:
        names = backend.cluster.call("GET", f"/{self.prefix}-*", doing="looking at all indexes")
        states = [read_index(backend.cluster, name) for name in names]
        there = [state for state in states if state is not None]
        assert all(state.complete and state.verified for state in there), there
        alias = f"{self.prefix}-items"
        assert [state.snapshot for state in there if alias in state.aliases] == [mine.id]
        assert backend.verify(mine, self.catalogue.asked()).documents == mine.manifest.entities


# The reader


@dataclass(frozen=True)
class Expected:
    """What may be answered: the edition, the queries, and for each snapshot that may serve, the
    older one first, its answers.
    """

    edition: int
    queries: Sequence[Sequence[str]]
    answers: Sequence[Sequence[Any]]


class Reader(threading.Thread):
    """Searches the alias without pause until it is stopped, and holds every answer against the
    snapshots that may serve.

    It speaks plain HTTP and JSON, as a shop would. A refusal is an answer that a shop can deal
    with; a wrong one is not.
    """

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
