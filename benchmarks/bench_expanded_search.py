"""Expand and search by keywords beside a text BM25 query, in turns, over the same items of one
node.

    python benchmarks/bench_expanded_search.py [--items 300000] [--queries 1000] [--rounds 5]
        [--url http://localhost:9200]

Words are drawn by Zipf's law: titles of 6 words, texts of 40; the text query has 3 words of an
item, on two fields. Items have 15 keywords, queries 5, 15 and 30. "expanded" asks a running
expander each time, which has the keywords in its process's memory, or in Redis (`--hot 0`), and
searches with them; "text" is the text query. Queries are many, so that none comes again soon: a few
hundred asked over and over keep what their words match in the CPU's caches, which flatters the text
query. Two things are asked:

ids: of the best ten and nothing else, in the index that cogr wrote. What searching costs.
page: what a page of a shop shows: 24 documents, how many there are in all, and the numbers of two
    facets. The clause stands where the text query stood, in the team's own index, which has the
    keywords as a field (`cogr-index publish --into`).

By one client and by four; each asks again as soon as it is answered.

How common keywords are decides the cost of a search. Two kinds, one after the other:

learned: 60 items a keyword of a query on average. Those of `statistical` have 4 to 6 (nfcorpus 4.1,
    chorus 5.7, msrd 3.7; 99 of 100 have 36 at most), in catalogues of 3,000 to 20,000 items; ten
    times that leaves room for a catalogue that is larger.
common: 6,000 items a keyword, as common as words: no model that is rewarded for F1 writes such
    keywords, a stop list is missing.
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
from itertools import cycle, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _http_load import Connection, Load, ask, connect, for_seconds, request_bytes, run
from _servers import redis, serve_pair
from _timing import in_turns, option_parser
from _worlds import COMMON, KEYWORDS_EACH, LEARNED
from bench_combining import a_node
from bench_expander import expander, server
from pydantic_core import from_json

from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Row
from cogr_client import Expansion
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import index_settings, mapping
from indexers.backends.opensearch.search import query_body
from ops.servers import free_port

CLAUSES = (5, 15, 30)
TITLE, TEXT, ASKED = 6, 40, 3
KINDS = {"learned": LEARNED, "common": COMMON}
CLIENTS = (1, 4)
FACETS = {"brand": 500, "category": 100}
"""Keyword fields of the team's, with the number of their values."""
ASKS: dict[str, dict[str, Any]] = {
    "ids": {"size": 10, "_source": False},
    "page": {
        "size": 24,
        "track_total_hits": True,
        "aggs": {name: {"terms": {"field": name, "size": 20}} for name in FACETS},
    },
}

Connections = tuple[Connection, Connection]
"""A client's: to OpenSearch and to the expander."""
Way = Callable[["Place", Connections, str], Awaitable[int]]


class World:
    """Made-up items and queries, always the same."""

    def __init__(self, items: int, kind: str) -> None:
        self.items, self._kind = items, KINDS[kind]
        self._of_words, self._of_keywords = (np.random.default_rng(0) for _ in range(2))

    def words(self, count: int) -> list[str]:
        return [f"word{number}" for number in COMMON.draw(self._of_words, count).tolist()]

    def keywords(self, count: int) -> tuple[str, ...]:
        drawn = dict.fromkeys(self._kind.draw(self._of_keywords, 3 * count).tolist())
        return tuple(f"keyword {number}" for number in drawn)[:count]

    def rows(self) -> Iterator[Row]:
        for number in range(self.items):
            yield Row(f"item-{number:07d}", f"Item number {number}", self.keywords(KEYWORDS_EACH))

    def queries(self, count: int, clauses: int) -> list[Row]:
        """Texts of words that some item has; their own text is one clause."""
        texts = dict.fromkeys(" ".join(self.words(ASKED)) for _ in range(2 * count))
        return [
            Row(f"query-{clauses:02}-{number:05}", text, self.keywords(clauses - 1))
            for number, text in enumerate(list(texts)[:count])
        ]


def fill_text(cluster: Cluster, index: str, worlds: dict[str, World]) -> None:
    """The team's index: titles, texts, what it counts for facets, and a field for each kind of
    keywords.
    """
    keywords = mapping("item", cluster.version, {})["properties"]["keywords"]
    fields = {name: {"type": "text"} for name in ("title", "text")} | {
        name: {"type": "keyword"} for name in FACETS
    }
    body = {
        "settings": index_settings(1),
        "mappings": {"properties": fields | dict.fromkeys(worlds, keywords)},
    }
    cluster.call("PUT", f"/{index}", body=body, doing="making the text index")
    draw, lines = np.random.default_rng(0), []
    items = {kind: world.rows() for kind, world in worlds.items()}
    words = next(iter(worlds.values()))
    for number in range(words.items):
        document: dict[str, Any] = {
            "title": " ".join(words.words(TITLE)),
            "text": " ".join(words.words(TEXT)),
        }
        document |= {
            name: f"{name} {int(values * draw.random() ** 2)}" for name, values in FACETS.items()
        }
        document |= {kind: next(rows).keywords for kind, rows in items.items()}
        lines += [json.dumps({"index": {"_id": f"item-{number:07d}"}}), json.dumps(document)]
        if len(lines) == 4000 or number == words.items - 1:
            cluster.call(
                "POST", f"/{index}/_bulk", body="\n".join(lines) + "\n", doing="writing texts"
            )
            lines.clear()
    cluster.call("POST", f"/{index}/_refresh", doing="refreshing")
    cluster.call(
        "POST",
        f"/{index}/_forcemerge",
        params={"max_num_segments": 1},
        doing="merging",
    )


@dataclass(frozen=True)
class Place:
    """Where the two servers listen, the team's index, its field of keywords, what is asked (a key
    of ASKS).
    """

    opensearch: int
    expander: int
    index: str
    field: str
    asked: str


async def search_text(place: Place, connections: Connections, query: str) -> int:
    """The team's query; its status."""
    text = {"multi_match": {"query": query, "fields": ["title^2", "text"]}}
    return await search(place, connections, f"/{place.index}/_search", text)


async def expand_and_search(place: Place, connections: Connections, query: str) -> int:
    """The query's keywords, searched where they are."""
    status, answer = await ask(connections[1], request_bytes("/expand", {"query": query}))
    expanded = from_json(answer)
    if status != 200 or expanded["source"] != "cache":
        raise SystemExit(f"The expander answered {status}: {answer!r}")
    return await search_expanded(place, connections, Expansion.read(expanded))


async def search_expanded(place: Place, connections: Connections, expanded: Expansion) -> int:
    if place.asked == "page":
        clause = query_body(expanded.keywords, place.field)
        return await search(place, connections, f"/{place.index}/_search", clause)
    path = f"/{expanded.index}/_search?search_type=dfs_query_then_fetch"
    return await search(place, connections, path, dict(expanded.clause))


async def ask_once(place: Place, queries: list[str]) -> None:
    """Let the expander look every query up, so that all are cached."""
    connection = await connect(place.expander)
    for query in queries:
        await ask(connection, request_bytes("/expand", {"query": query}))
    connection[1].close()


async def search(place: Place, connections: Connections, path: str, query: dict[str, Any]) -> int:
    """Ask what is to be asked, with this query; the status."""
    status, _ = await ask(
        connections[0], request_bytes(path, {"query": query, **ASKS[place.asked]})
    )
    return status


async def load_of(
    way: Way, place: Place, queries: Iterator[str], clients: int, seconds: float
) -> Load:
    """Clients that go one of the ways over and over."""
    load, more = Load(), for_seconds(seconds)

    async def client() -> None:
        connections = (await connect(place.opensearch), await connect(place.expander))
        while more():
            query, started = next(queries), time.perf_counter()
            load.add(started, await way(place, connections, query))
        for _, writer in connections:
            writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = seconds
    if set(load.statuses) != {200}:
        raise SystemExit(f"Queries failed: {load.statuses}")
    return load


def compare(
    place: Place, queries: list[str], clients: int, rounds: int, seconds: float
) -> dict[str, float]:
    """Medians over rounds of p50 and p99 in milliseconds, of their ratios, and of searches a
    second; the first round warms up.
    """
    found: dict[str, list[float]] = {}
    ways = {"text": search_text, "expanded": expand_and_search}
    asked = {name: cycle(queries) for name in ways}
    for counts, names in in_turns(ways, rounds):
        loads = {
            name: run(load_of(ways[name], place, asked[name], clients, seconds)) for name in names
        }
        if not counts:
            continue
        for share in (0.5, 0.99):
            took = {name: 1000 * loads[name].percentile(share) for name in ways}
            ratios = {"expanded/text": took["expanded"] / took["text"]}
            for name, value in {**ratios, **took}.items():
                found.setdefault(f"{name} p{100 * share:g}", []).append(value)
        for name in ways:
            found.setdefault(f"{name} a second", []).append(loads[name].rate)
    return {name: round(median(of), 2) for name, of in found.items()}


def run_kind(
    kind: str, asked: argparse.Namespace, settings: OpenSearchSettings, prefix: str
) -> None:
    """Serve keywords of a kind beside the text index, compare, print."""
    world, port = World(asked.items, kind), free_port()
    queries = {clauses: world.queries(asked.queries, clauses) for clauses in asked.clauses}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        every = sorted((row for rows in queries.values() for row in rows), key=lambda row: row.id)
        there = f'[opensearch]\nurl = "{settings.url}"\nprefix = "{prefix}-{kind}"\n'
        serve_pair(folder, world.rows(), every, there)
        url = stack.enter_context(redis()).url
        # A busy machine may be late; the way with keywords is what is measured here.
        patient = ("serving.deadline=30",)
        given = expander(
            folder, port, f"redis.url={url}", *patient, expander__HOT_QUERIES=asked.hot
        )
        stack.enter_context(server(given, port, folder))
        node = int(str(settings.url).rpartition(":")[2])
        for clauses, what, clients in product(asked.clauses, ASKS, CLIENTS):
            place = Place(node, port, f"{prefix}-text", kind, what)
            texts = [row.text for row in queries[clauses]]
            run(ask_once(place, texts))
            found = json.dumps(compare(place, texts, clients, asked.rounds, asked.seconds))
            print(
                f"{clauses} {kind} keywords, {what}, {clients} at once: {found} (aim of the "
                "ratios: 1.2)",
                flush=True,
            )


def main() -> None:
    """Fill, then serve and compare each kind of keywords."""
    parser = option_parser(__doc__)
    parser.add_argument("--items", type=int, default=300_000)
    parser.add_argument("--queries", type=int, default=1000, help="for each number of keywords")
    parser.add_argument(
        "--hot",
        type=int,
        default=10_000,
        help="answers that its process keeps; with 0 it asks Redis each time",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument(
        "--keywords", choices=[*KINDS], nargs="+", default=[*KINDS], help="how common they are"
    )
    parser.add_argument(
        "--clauses", type=int, nargs="+", default=CLAUSES, help="keywords of a query"
    )
    parser.add_argument("--url", help="a cluster; a node is started by default")
    asked = parser.parse_args()
    prefix = f"bench-expanded-{os.getpid()}"
    with a_node(asked.url, vectors=False) as settings, closing(Cluster(settings)) as cluster:
        try:
            fill_text(
                cluster,
                f"{prefix}-text",
                {kind: World(asked.items, kind) for kind in asked.keywords},
            )
            for kind in asked.keywords:
                run_kind(kind, asked, settings, prefix)
        finally:
            cluster.call("DELETE", f"/{prefix}-*", doing="cleaning up")


if __name__ == "__main__":
    main()
