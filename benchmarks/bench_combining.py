"""Keywords beside what a team has: text BM25, its own ranking, vectors. Weights are chosen on dev
queries, figures are of test queries; nDCG takes the labels' grades.

    python benchmarks/bench_combining.py           # the sample shop and nfcorpus, with vectors
    python benchmarks/bench_combining.py --data chorus --no-vectors --url http://localhost:9200

Keywords are `statistical`'s, learned from the training labels, in a field of the product index
(`cogr-index publish --into`). With vectors it starts a node with the k-NN plugin. Maven fetches
both, or COGR_OPENSEARCH_HOME names an unpacked OpenSearch 3.5.0. Embeddings are LSA's, in place of
a team's own. Data sets without dev queries set a share of the training queries apart as such.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _combining as combining
from _servers import node as a_plain_node
from _timing import option_parser
from _vectors import MAPPING, Lsa, node

from cogr.metrics import grades_of, ranked
from cogr.records import Query, Split
from cogr.settings import load_settings
from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Row, open_snapshot
from indexers.backends import text_boost
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.search import query_body
from indexers.rebuild.run import RebuildRequest, RebuildRun
from indexers.release.external import ForeignIndex
from indexers.workspace import Workspace
from trainers.demo import CATALOGUE

DEPTH = 100
CHOSEN_BY = "nDCG@10"
SHOWN = ("nDCG@10", "P@10", "R@10", "R@100")
BOOSTS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
NEARNESS = (5.0, 10.0, 20.0, 40.0)
DATA: dict[str, dict[str, Any]] = {
    "sample": {"loader": "jsonl", "path": str(CATALOGUE)},
    "nfcorpus": {"loader": "nfcorpus"},
    "chorus": {"loader": "chorus", "dev_share": 0.3},
}
Run = dict[str, list[str]]


@dataclass
class Shop:
    """A product index with words, keywords, a signal and perhaps vectors, and the queries that it
    is asked.
    """

    cluster: Cluster
    workspace: Workspace
    index: str
    field: str
    rows: Mapping[str, Row]
    lsa: Lsa | None
    _vectors: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def clause(self, query: Query) -> Any:
        """Its keywords, weighted."""
        return query_body(self.rows[query.id].weighted, self.field)

    def unweighted(self, query: Query) -> Any:
        """Its keywords, each of weight 1."""
        return query_body(list(self.rows[query.id].weighted), self.field)

    def blended(self, query: Query) -> combining.Body:
        """The two tiers."""
        boost = text_boost(self.rows[query.id].weights)
        return combining.two_tiers(query.text, self.clause(query), boost)

    def vector(self, query: Query) -> list[float]:
        assert self.lsa is not None
        if query.id not in self._vectors:
            self._vectors[query.id] = self.lsa.query(query.text)
        return self._vectors[query.id]

    def run(self, split: Split, body: Callable[[Query], combining.Body]) -> Run:
        """The best hits of every query of a split."""
        queries, found = self.workspace.dataset.queries[split], Run()
        asked = [{**body(query), "size": DEPTH, "_source": False} for query in queries]
        lines = "".join(f"{{}}\n{json.dumps(one)}\n" for one in asked)
        answer = self.cluster.call("POST", f"/{self.index}/_msearch", body=lines, doing="searching")
        for query, one in zip(queries, answer["responses"], strict=True):
            if "error" in one:
                raise SystemExit(f"{query.text}: {one['error']}")
            found[query.id] = [hit["_id"] for hit in one["hits"]["hits"]]
        return found

    def figures(self, run: Run, split: Split) -> dict[str, float]:
        """Means over the split's queries; nDCG by the labels' grades, where there are any."""
        dataset = self.workspace.dataset
        relevant = {query.id: dataset.relevant[query.id] for query in dataset.queries[split]}
        return ranked(run, relevant, cutoffs=(10, DEPTH), grades=grades_of(dataset)).means

    def tuned(
        self, body: Callable[..., combining.Body], *grids: Sequence[float]
    ) -> tuple[tuple[float, ...], Run]:
        """The weights that are best on dev, and the test queries' results with them."""

        def quality(weights: tuple[float, ...]) -> float:
            return self.figures(self.run("dev", lambda query: body(query, *weights)), "dev")[
                CHOSEN_BY
            ]

        best = max(itertools.product(*grids), key=quality)
        return best, self.run("test", lambda query: body(query, *best))


@dataclass(frozen=True)
class Way:
    """A way of searching, its weights, and its figures on test queries."""

    name: str
    weights: Mapping[str, float]
    figures: Mapping[str, float]


def prepare(settings: OpenSearchSettings, folder: Path, data: str, *, vectors: bool) -> Shop:
    """Keywords by `statistical`, and a product index that has them."""
    prefix = f"bench-combining-{os.getpid()}"
    chosen = {
        "dataset": DATA[data],
        "store": str(folder),
        "generator": {"name": "statistical"},
        "opensearch": {"url": settings.url, "prefix": prefix},
    }
    workspace = Workspace(load_settings(None, [], otherwise=chosen))
    cluster, index = Cluster(settings), f"{prefix}-products"
    lsa = Lsa(workspace.dataset.items) if vectors else None
    fill(cluster, index, workspace, lsa)
    ids = [rebuilt(workspace, side) for side in ("item", "query")]
    merged = ForeignIndex(workspace.into(index)).publish(ids[:1], lambda _: None, gate=False)
    cluster.call("POST", f"/{index}/_refresh", doing="refreshing")
    asked = open_snapshot(workspace.store, ids[1])
    return Shop(cluster, workspace, index, merged.field, asked.by_id, lsa)


def rebuilt(workspace: Workspace, side: Any) -> str:
    quiet: Any = lambda *_: nullcontext(lambda _: None)  # noqa: E731
    run = RebuildRun(workspace, RebuildRequest(side), quiet, lambda _: None)
    return run.carry_out().snapshot.id


def fill(cluster: Cluster, index: str, workspace: Workspace, lsa: Lsa | None) -> None:
    """A team's index: English words, a signal (in how many training queries an item is relevant),
    vectors.
    """
    words = {"type": "text", "analyzer": "english"}
    properties: dict[str, Any] = {
        "title": words,
        "text": words,
        combining.SIGNAL: {"type": "float"},
    }
    settings: dict[str, Any] = {"number_of_shards": 1, "number_of_replicas": 0}
    if lsa is not None:
        properties["embedding"] = MAPPING
        # Partial updates of an index whose vectors are derived from their files fail with status
        # 500 now and then (3.5.0).
        settings |= {"index.knn": True, "index.knn.derived_source.enabled": False}
    body = {"settings": settings, "mappings": {"properties": properties}}
    cluster.call("PUT", f"/{index}", body=body, doing="making the product index")
    dataset = workspace.dataset
    lines: list[dict[str, Any]] = []
    signal = Counter(
        id_ for query in dataset.queries["train"] for id_ in dataset.relevant[query.id]
    )
    for at, item in enumerate(dataset.items):
        document: dict[str, Any] = {
            "title": item.title,
            "text": item.text,
            combining.SIGNAL: signal[item.id],
        }
        if lsa is not None:
            document["embedding"] = lsa.items[at].tolist()
        lines += [{"index": {"_id": item.id}}, document]
        if len(lines) == 1000 or at == len(dataset.items) - 1:
            sent = "".join(json.dumps(line) + "\n" for line in lines)
            if cluster.call("POST", f"/{index}/_bulk", body=sent, doing="writing products")[
                "errors"
            ]:
                raise SystemExit("The product index refuses documents.")
            lines.clear()
    cluster.call("POST", f"/{index}/_refresh", doing="refreshing")


def without_vectors(shop: Shop) -> Iterator[Way]:
    """Today's search and (a), (b), (c)."""
    words = shop.run("test", lambda query: combining.today(query.text))
    yield Way("text alone", {}, shop.figures(words, "test"))
    keywords = shop.run("test", lambda query: combining.alone(shop.clause(query)))
    yield Way("(a) keywords alone", {}, shop.figures(keywords, "test"))
    plain = shop.run("test", lambda query: combining.alone(shop.unweighted(query)))
    yield Way("(a) keywords alone, all of weight 1", {}, shop.figures(plain, "test"))
    yield Way("two tiers", {}, shop.figures(shop.run("test", shop.blended), "test"))
    ways: list[tuple[str, Callable[..., combining.Body], dict[str, Sequence[float]]]] = [
        (
            "(b) text should keywords",
            lambda q, b: combining.beside_text(q.text, shop.clause(q), b),
            {"boost": BOOSTS},
        ),
        (
            "(c) keywords filter, text ranks",
            lambda q: combining.as_filter(q.text, shop.clause(q)),
            {},
        ),
        (
            "(c) keywords rescored by text",
            lambda q, w: combining.rescored(q.text, shop.clause(q), w),
            {"weight": BOOSTS},
        ),
        (
            "(c) function_score of a signal",
            lambda q, b, f: combining.by_signal(q.text, shop.clause(q), b, f),
            {"boost": BOOSTS, "factor": (0.01, 0.1, 1.0, 10.0)},
        ),
    ]
    for name, body, grids in ways:
        yield measured(shop, name, body, grids)
    fused = {
        id_: combining.reciprocal_rank_fusion([words[id_], keywords[id_]])[:DEPTH] for id_ in words
    }
    yield Way("fusion of text and keywords", {}, shop.figures(fused, "test"))


def with_vectors(shop: Shop) -> Iterator[Way]:
    """(d), beside the same without keywords."""
    yield measured(
        shop,
        "text should vectors",
        lambda q, n: combining.text_and_vectors(q.text, shop.vector(q), n),
        {"nearness": NEARNESS},
    )
    yield measured(
        shop,
        "(d) text should vectors should keywords",
        lambda q, b, n: combining.beside_both(q.text, shop.clause(q), shop.vector(q), b, n),
        {"boost": BOOSTS, "nearness": NEARNESS},
    )
    bodies: list[Callable[[Query], combining.Body]] = [
        lambda q: combining.today(q.text),
        lambda q: {"query": combining.neighbours(shop.vector(q))},
        lambda q: combining.alone(shop.clause(q)),
    ]
    runs = [shop.run("test", body) for body in bodies]
    yield Way("vectors alone", {}, shop.figures(runs[1], "test"))
    for name, count in (
        ("fusion of text and vectors", 2),
        ("(d) fusion of text, vectors and keywords", 3),
    ):
        fused = {
            id_: combining.reciprocal_rank_fusion([run[id_] for run in runs[:count]])[:DEPTH]
            for id_ in runs[0]
        }
        yield Way(name, {}, shop.figures(fused, "test"))


def measured(
    shop: Shop, name: str, body: Callable[..., combining.Body], grids: Mapping[str, Sequence[float]]
) -> Way:
    weights, run = shop.tuned(body, *grids.values())
    return Way(name, dict(zip(grids, weights, strict=True)), shop.figures(run, "test"))


@contextmanager
def a_node(url: str | None, *, vectors: bool) -> Iterator[OpenSearchSettings]:
    """The named cluster, or a node of this process."""
    if vectors and url is None:
        with node() as settings:
            yield settings
        return
    with a_plain_node(url) as found:
        yield OpenSearchSettings(url=found)


def show(shop: Shop, rows: Iterable[Way]) -> None:
    """Print a table, each row as soon as it is there."""
    dataset = shop.workspace.dataset
    sizes = ", ".join(
        f"{split} {len(dataset.queries[split])}" for split in ("train", "dev", "test")
    )
    print(f"\n{dataset.name}: {len(dataset.items)} items; queries: {sizes}")
    print(f"{'':44}" + "".join(f"{name:>9}" for name in SHOWN) + "  weights, chosen on dev")
    for row in rows:
        figures = "".join(f"{row.figures[name]:9.3f}" for name in SHOWN)
        print(
            f"{row.name:44}{figures}  "
            f"{' '.join(f'{name} {value:g}' for name, value in row.weights.items())}",
            flush=True,
        )


def main() -> None:
    """Run what is asked for."""
    parser = option_parser(__doc__, json=True)
    parser.add_argument("--data", nargs="*", choices=DATA, default=["sample", "nfcorpus"])
    parser.add_argument("--no-vectors", action="store_true")
    parser.add_argument(
        "--url",
        help="a cluster (with the k-NN plugin, unless --no-vectors); one is started by default",
    )
    asked = parser.parse_args()
    vectors, found = not asked.no_vectors, {}
    with a_node(asked.url, vectors=vectors) as settings:
        for data in asked.data:
            with tempfile.TemporaryDirectory() as folder:
                shop = prepare(settings, Path(folder), data, vectors=vectors)
                rows = itertools.chain(without_vectors(shop), with_vectors(shop) if vectors else ())
                if asked.json:
                    found[data] = [asdict(row) for row in rows]
                else:
                    show(shop, rows)
                shop.cluster.call(
                    "DELETE", f"/{shop.index.removesuffix('products')}*", doing="cleaning up"
                )
    if asked.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
