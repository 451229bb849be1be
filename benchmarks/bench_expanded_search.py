"""Expand and search by keywords beside a text BM25 query, in turns, over the same items of one node.

    python benchmarks/bench_expanded_search.py [--items 300000] [--queries 200] [--rounds 5] [--url http://localhost:9200]

Words are drawn by Zipf's law: titles of 6 words, texts of 40; the text query has 3 words of an item, on two fields. Items have 15
keywords, queries 5, 15 and 30. Keywords come cached from a running expander, as for most searches of a shop. Asked for are the
ids of the best ten. Latencies are taken twice:

one at a time: those of `cogr-ops shadow`, on a machine that sleeps between two requests and has to be woken for each.
at once: of a server under load; four clients, each of which asks again as soon as it is answered.

How common keywords are decides the cost of a search. Two kinds, one after the other:

learned: 60 items a keyword of a query on average. Those of `statistical` have 4 to 6 (nfcorpus 4.1, chorus 5.7, msrd 3.7; 99 of 100
have 36 at most), in catalogues of 3,000 to 20,000 items; ten times that leaves room for a catalogue that is larger.
common: 6,000 items a keyword, as common as words: no model that is rewarded for F1 writes such keywords, a stop list is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _http_load import Connection, Load, ask, connect, for_seconds, request_bytes
from bench_combining import a_node
from bench_expander import expander, free_port, redis, server

from cogr.settings import OpenSearchSettings, load_settings
from cogr.snapshots import Provenance, Row, write_snapshot
from indexers.backends.opensearch.client import Cluster
from indexers.publishing import publish, push_and_verify
from indexers.workspace import Workspace
from ops.shadow.bodies import CLAUSE_ALONE, Body
from ops.shadow.logs import Searched
from ops.shadow.replay import Candidate, Expander, Present, Reader, check, replay

CLAUSES = (5, 15, 30)
KEYWORDS, TITLE, TEXT, ASKED = 15, 6, 40, 3
WORDS = (60_000, 0.8)
"""Different ones, and the exponent of Zipf's law."""
KINDS = {"learned": (90_000, 0.3), "common": (60_000, 0.8)}
"""The same of keywords."""
AT_ONCE = 4
BEST_TEN = {"size": 10, "_source": False}
TEXT_QUERY = Body({"query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"]}}}, "the text query")

Connections = tuple[Connection, Connection]
"""A client's: to OpenSearch and to the expander."""
Way = Callable[["Ports", Connections, str], Awaitable[int]]


class Zipf:
    """Numbers drawn by Zipf's law; the same for one seed."""

    def __init__(self, size: int, exponent: float) -> None:
        odds = np.arange(1, size + 1) ** -exponent
        self._cumulative = np.cumsum(odds / odds.sum())
        self._rng = np.random.default_rng(0)

    def __call__(self, count: int) -> list[int]:
        found: list[int] = np.searchsorted(self._cumulative, self._rng.random(count)).tolist()
        return found


class World:
    """Made-up items and queries; the same for one seed."""

    def __init__(self, items: int, kind: str) -> None:
        self.items = items
        self._words, self._keywords = Zipf(*WORDS), Zipf(*KINDS[kind])

    def words(self, count: int) -> list[str]:
        return [f"word{number}" for number in self._words(count)]

    def keywords(self, count: int) -> tuple[str, ...]:
        found = dict.fromkeys(self._keywords(3 * count))
        return tuple(f"keyword {number}" for number in found)[:count]

    def rows(self) -> Iterator[Row]:
        for number in range(self.items):
            yield Row(f"item-{number:07d}", f"Item number {number}", self.keywords(KEYWORDS))

    def queries(self, count: int, clauses: int) -> list[Row]:
        """Texts of words that some item has; their own text is one clause."""
        texts = dict.fromkeys(" ".join(self.words(ASKED)) for _ in range(2 * count))
        return [
            Row(f"query-{clauses:02}-{number:05}", text, self.keywords(clauses - 1))
            for number, text in enumerate(list(texts)[:count])
        ]


def fill_text(cluster: Cluster, index: str, world: World) -> None:
    """The team's index."""
    properties = {"title": {"type": "text"}, "text": {"type": "text"}}
    body = {"settings": {"number_of_replicas": 0, "refresh_interval": -1}, "mappings": {"properties": properties}}
    cluster.call("PUT", f"/{index}", body=body, doing="making the text index")
    lines: list[str] = []
    for number in range(world.items):
        document = {"title": " ".join(world.words(TITLE)), "text": " ".join(world.words(TEXT))}
        lines += [json.dumps({"index": {"_id": f"item-{number:07d}"}}), json.dumps(document)]
        if len(lines) == 4000 or number == world.items - 1:
            cluster.call("POST", f"/{index}/_bulk", body="\n".join(lines) + "\n", doing="writing texts")
            lines.clear()
    cluster.call("POST", f"/{index}/_refresh", doing="refreshing")
    cluster.call("POST", f"/{index}/_forcemerge", params={"max_num_segments": 1}, timeout=1800, doing="merging")


def serve_pair(folder: Path, cluster: OpenSearchSettings, prefix: str, world: World, queries: list[Row]) -> None:
    """Keywords of the same items, and of the queries, published."""
    lines = ['[dataset]\nloader = "jsonl"\npath = "data"', '[serving]\nlive = "none"']
    lines.append(f'[opensearch]\nurl = "{cluster.url}"\nprefix = "{prefix}"')
    (folder / "cogr.toml").write_text("\n".join(lines))
    workspace = Workspace(load_settings(folder / "cogr.toml"))
    snapshots = [
        write_snapshot(workspace.store, "item", world.rows(), Provenance()),
        write_snapshot(workspace.store, "query", sorted(queries, key=lambda row: row.id), Provenance()),
    ]
    for snapshot in snapshots:
        push_and_verify(workspace.backend, workspace.store, snapshot, 1)
    publish(workspace.backend, workspace.store, [snapshot.id for snapshot in snapshots])


def compare(present: Present, candidate: Candidate, queries: list[Row], rounds: int) -> dict[str, Any]:
    """Medians over rounds of p50 and p99 in milliseconds, and of their ratios; the first round warms up and is not counted."""
    asked = [Searched(row.text, 1) for row in queries]
    milliseconds: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        done = replay(asked, present, candidate, 1e9)
        if done.failed:
            raise SystemExit(f"Queries failed: {done.failed}")
        if not number:
            continue
        assert {one.candidate.source for one in done.compared} == {"cache"}
        text = [one.present.seconds for one in done.compared]
        both = [one.candidate.seconds for one in done.compared]
        expanding = [one.candidate.expanding for one in done.compared]
        for share in (50, 99):
            times = {"text": text, "expanded": both, "of it expanding": expanding}
            found = {f"{name} p{share}": 1000 * float(np.percentile(of, share)) for name, of in times.items()}
            for name, value in found.items():
                milliseconds.setdefault(name, []).append(value)
            ratios.setdefault(f"p{share}", []).append(found[f"expanded p{share}"] / found[f"text p{share}"])
    of_medians = [{name: round(median(of), 2) for name, of in some.items()} for some in (ratios, milliseconds)]
    return dict(zip(("ratios", "milliseconds"), of_medians, strict=True))


@dataclass(frozen=True)
class Ports:
    """Where the two servers listen, and the team's index."""

    opensearch: int
    expander: int
    index: str


async def search_text(ports: Ports, connections: Connections, query: str) -> int:
    """The team's query; its status."""
    body = {**TEXT_QUERY.fill(query), **BEST_TEN}
    status, _ = await ask(connections[0], request_bytes(f"/{ports.index}/_search", body))
    return status


async def expand_and_search(_: Ports, connections: Connections, query: str) -> int:
    """The expander's clause, searched where the expander says."""
    status, answer = await ask(connections[1], request_bytes("/expand", {"query": query}))
    expanded = json.loads(answer)
    if status != 200 or expanded["source"] != "cache":
        raise SystemExit(f"The expander answered {status}: {answer!r}")
    path = f"/{expanded['index']}/_search?search_type=dfs_query_then_fetch"
    status, _ = await ask(connections[0], request_bytes(path, {"query": expanded["clause"], **BEST_TEN}))
    return status


async def load_of(way: Way, ports: Ports, queries: list[str], seconds: float) -> Load:
    """Clients that go one of the two ways over and over."""
    load, more, asked = Load(), for_seconds(seconds), cycle(queries)

    async def client() -> None:
        connections = (await connect(ports.opensearch), await connect(ports.expander))
        while more():
            query, started = next(asked), time.perf_counter()
            load.add(started, await way(ports, connections, query))
        for _, writer in connections:
            writer.close()

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    load.seconds = seconds
    if set(load.statuses) != {200}:
        raise SystemExit(f"Queries failed: {load.statuses}")
    return load


def compare_loads(ports: Ports, queries: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    """As `compare`, under load; and requests a second."""
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        ways = {"text": search_text, "expanded": expand_and_search}
        loads = {
            name: asyncio.run(load_of(ways[name], ports, queries, seconds))
            for name in (ways if number % 2 else reversed(ways))
        }
        if not number:
            continue
        for share in (0.5, 0.99):
            text, both = (1000 * loads[name].percentile(share) for name in ways)
            for name, value in {"ratio": both / text, "text": text, "expanded": both}.items():
                found.setdefault(f"{name} p{100 * share:g}", []).append(value)
        for name in ways:
            found.setdefault(f"{name} a second", []).append(loads[name].rate)
    return {name: round(median(of), 2) for name, of in found.items()}


def run_kind(kind: str, asked: argparse.Namespace, settings: OpenSearchSettings, prefix: str) -> None:
    """Serve keywords of a kind beside the text index, compare, print."""
    world, port = World(asked.items, kind), free_port()
    queries = {clauses: world.queries(asked.queries, clauses) for clauses in CLAUSES}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        serve_pair(folder, settings, f"{prefix}-{kind}", world, [row for rows in queries.values() for row in rows])
        url = stack.enter_context(redis()).url
        # A busy machine may be late; the way with keywords is what is measured here.
        patient = (f"redis.url={url}", "serving.cache_timeout=5", "serving.deadline=5", "serving.index_timeout=5")
        stack.enter_context(server(expander(folder, port, *patient), port, folder))
        reader = Reader(Cluster(settings), 10)
        present = Present(reader, f"{prefix}-text", TEXT_QUERY)
        candidate = Candidate(reader, Expander(f"http://127.0.0.1:{port}"), CLAUSE_ALONE)
        check(present, candidate)
        for clauses, rows in queries.items():
            what = f"{asked.items} items, {clauses} {kind} keywords"
            found = json.dumps(compare(present, candidate, rows, asked.rounds))
            print(f"{what}, one at a time: {found} (target of the ratios <= 1.2)", flush=True)
            ports = Ports(int(str(settings.url).rpartition(":")[2]), port, f"{prefix}-text")
            found = json.dumps(compare_loads(ports, [row.text for row in rows], asked.rounds, asked.seconds))
            print(f"{what}, {AT_ONCE} at once: {found} (target of the ratios <= 1.2)", flush=True)


def main() -> None:
    """Fill, then serve and compare each kind of keywords."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=300_000)
    parser.add_argument("--queries", type=int, default=200, help="for each number of keywords")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--keywords", choices=[*KINDS], nargs="+", default=[*KINDS], help="how common they are")
    parser.add_argument("--url", help="a cluster; a node is started by default")
    asked = parser.parse_args()
    prefix = f"bench-expanded-{os.getpid()}"
    with a_node(asked.url, vectors=False) as settings, closing(Cluster(settings)) as cluster:
        try:
            fill_text(cluster, f"{prefix}-text", World(asked.items, "learned"))
            for kind in asked.keywords:
                run_kind(kind, asked, settings, prefix)
        finally:
            cluster.call("DELETE", f"/{prefix}-*", doing="cleaning up")


if __name__ == "__main__":
    main()
