"""Push of a snapshot beside a plain `parallel_bulk` of the same documents into the same mapping,
alternating, medians.

    python benchmarks/bench_push.py [--url http://localhost:9200] [--items 300000] [--repeat 3]

The push is timed whole: create, bulk, refresh, merge, count, write block. The baseline only
sends and refreshes. Both sides' documents, mapping, chunk size and number of threads are the same.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Provenance, Row, Snapshot
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.backends.opensearch.client import BULK_THREADS, TIMEOUT, Cluster
from indexers.backends.opensearch.indexes import documents, index_settings, mapping, meta_of
from indexers.backends.opensearch.push import CHUNK_DOCUMENTS, push
from ops.servers import OpenSearchSpec, start, stop

PREFIX = "cogr-bench"
BASELINE = f"{PREFIX}-baseline"
VOCABULARY, KEYWORDS, ZIPF = 60_000, 15, 0.8


def rows(items: int, seed: int = 0) -> Iterator[Row]:
    """Items with 15 distinct keywords of two words each, drawn by Zipf's law (exponent 0.8) from a
    vocabulary of 60,000.
    """
    draw = np.random.default_rng(seed)
    odds = np.arange(1, VOCABULARY + 1) ** -ZIPF
    cumulative = np.cumsum(odds / odds.sum())
    for number in range(items):
        drawn = np.searchsorted(cumulative, draw.random(2 * KEYWORDS))
        words = dict.fromkeys(f"keyword {int(word):05d}" for word in drawn)
        yield Row(
            f"item-{number:07d}", f"Item number {number} of the benchmark", tuple(words)[:KEYWORDS]
        )


def timed_push(cluster: Cluster, snapshot: Snapshot) -> float:
    """Seconds of one push from nothing."""
    pushed = push(cluster, snapshot)
    cluster.call("DELETE", f"/{pushed.index}", doing="cleaning up")
    return pushed.seconds


def timed_baseline(cluster: Cluster, snapshot: Snapshot, url: str) -> float:
    """Seconds of `parallel_bulk` of the same documents, refresh included."""
    from opensearchpy import OpenSearch
    from opensearchpy.helpers import parallel_bulk

    settings = cluster.settings
    client = OpenSearch([url], timeout=TIMEOUT, pool_maxsize=BULK_THREADS + 1)
    meta = meta_of(snapshot.manifest, settings.text_analyzer)
    body = {
        "settings": index_settings(settings.shards),
        "mappings": mapping(snapshot.side, cluster.version, meta),
    }
    client.indices.create(index=BASELINE, body=body)
    started = time.perf_counter()
    actions = (
        {"_op_type": "create", "_index": BASELINE, "_id": id_, "_source": document}
        for id_, document in documents(snapshot)
    )
    sent = parallel_bulk(
        client,
        actions,
        thread_count=BULK_THREADS,
        chunk_size=CHUNK_DOCUMENTS,
        raise_on_error=True,
    )
    written = sum(1 for _ in sent)
    client.indices.refresh(index=BASELINE)
    seconds = time.perf_counter() - started
    client.indices.delete(index=BASELINE)
    if written != snapshot.manifest.entities:
        raise SystemExit(f"parallel_bulk wrote {written} of {snapshot.manifest.entities}.")
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url",
        help=(
            "a node that may be loaded; indexes cogr-bench-* are made and removed. One is "
            "started by default"
        ),
    )
    parser.add_argument("--items", type=int, default=300_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--text-analyzer",
        default="standard",
        help="opensearch.text_analyzer",
    )
    options = parser.parse_args()
    with node(options.url) as url:
        measure(url, options.items, options.repeat, options.text_analyzer)


@contextmanager
def node(url: str | None) -> Iterator[str]:
    """The URL of a node: the given one, or one that is started for the time of the block."""
    if url:
        yield url
        return
    started = start(
        OpenSearchSpec(
            version="3.8.0",
            name=f"benchmark-{os.getpid()}",
            port=0,
            options="-Xmx1g",
        )
    )
    try:
        yield str(started.url)
    finally:
        stop(started.kind, started.name, remove=True)


def measure(url: str, items: int, repeat: int, text_analyzer: str) -> None:
    """Push and the baseline in turns; prints medians and their ratio."""
    cluster = Cluster(OpenSearchSettings(url=url, prefix=PREFIX, text_analyzer=text_analyzer))
    with tempfile.TemporaryDirectory() as folder:
        snapshot = write_snapshot(Store(folder), "item", rows(items), Provenance())
        times: dict[str, list[float]] = {"baseline": [], "push": []}
        for number in range(repeat):
            # Alternating, and the first of a pair is not always the same.
            for name in ("baseline", "push") if number % 2 else ("push", "baseline"):
                seconds = (
                    timed_push(cluster, snapshot)
                    if name == "push"
                    else timed_baseline(cluster, snapshot, url)
                )
                times[name].append(seconds)
                print(
                    f"{name}: {seconds:.2f} s, {items / seconds:,.0f} documents/s", file=sys.stderr
                )
    push_s, baseline_s = statistics.median(times["push"]), statistics.median(times["baseline"])
    result = {
        "items": items,
        "opensearch": cluster.version.text,
        "push_s": round(push_s, 2),
        "baseline_s": round(baseline_s, 2),
        "push_per_s": round(items / push_s),
        "baseline_per_s": round(items / baseline_s),
        "ratio": round(baseline_s / push_s, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
