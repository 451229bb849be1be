"""Push of a snapshot beside a plain `parallel_bulk` of the same documents into the same mapping,
alternating, medians.

    python benchmarks/bench_push.py [--url http://localhost:9200] [--items 300000] [--repeat 3]
        [--texts 60] [--learned]

The push is timed whole: create, bulk, refresh, merge, count, write block. The baseline only
sends and refreshes. Both sides' documents, mapping, chunk size and number of threads are the same.
With --texts, items have titles of 6 words and texts of so many, drawn as keywords are, and another
thing is measured: a push with the texts beside one without them, in CPU seconds of node and client,
each first in turn, after one that warms the node up and is not counted, and the megabytes of both
indexes (--repeat 0: neither); then one push more. Keywords are as common as words; with --learned,
as rare as those of a pair that was learned (bench_expanded_search.py, which measures searches).
Prints one JSON object.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from _servers import node
from _timing import in_turns, option_parser
from _worlds import COMMON, KEYWORDS_EACH, LEARNED, Vocabulary

from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Provenance, Row, Snapshot
from cogr.snapshots.texts import TextsWriter
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.backends.opensearch.client import BULK_THREADS, TIMEOUT, Cluster
from indexers.backends.opensearch.indexes import (
    documents,
    index_settings,
    mapping,
    meta_of,
    searched,
    stats,
)
from indexers.backends.opensearch.push import CHUNK_DOCUMENTS, push

PREFIX = "cogr-bench"
BASELINE = f"{PREFIX}-baseline"


def rows(items: int, vocabulary: Vocabulary = COMMON) -> Iterator[Row]:
    """Items with 15 distinct keywords of two words each, drawn by Zipf's law."""
    rng = np.random.default_rng(0)
    for number in range(items):
        drawn = vocabulary.draw(rng, 2 * KEYWORDS_EACH).tolist()
        words = tuple(dict.fromkeys(f"keyword {word:05d}" for word in drawn))
        title = f"Item number {number} of the benchmark"
        yield Row(f"item-{number:07d}", title, words[:KEYWORDS_EACH])


_SYLLABLES = {48 + digit: "bcdfgklmnp"[digit] + "aeiou"[digit % 5] for digit in range(10)}


def words_drawn(rng: np.random.Generator, count: int) -> list[str]:
    """Words by Zipf's law, of letters alone: in `wo12rd` an index of CoGR reads three, of which
    each item has two.
    """
    return [f"{word:05d}".translate(_SYLLABLES) for word in COMMON.draw(rng, count).tolist()]


def with_texts(
    store: Store, items: int, words: int, vocabulary: Vocabulary = COMMON, *, kept: bool
) -> Snapshot:
    """A snapshot of items with such titles, and with texts where they are `kept`."""
    rng = np.random.default_rng(1)

    with TextsWriter(store) as writer:

        def titled() -> Iterator[Row]:
            for row in rows(items, vocabulary):
                title, text = (" ".join(words_drawn(rng, count)) for count in (6, words))
                yield replace(row, text=title, body=writer.add([text])[0] if kept else "")

        provenance = lambda: Provenance(texts=writer.keep() if kept else None)  # noqa: E731
        return write_snapshot(store, "item", titled(), provenance)


WARM_UP = 20_000


def beside_texts(
    cluster: Cluster, items: int, words: int, repeat: int, vocabulary: Vocabulary
) -> dict[str, Any]:
    """Pushes with texts and without, in turn, and one push more."""
    found: dict[str, Any] = {"items": items, "words": words}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        snapshot = with_texts(store, items, words, vocabulary, kept=True)
        timed_push(cluster, with_texts(store, min(items, WARM_UP), words, kept=True))
        if repeat:
            titles = with_texts(store, items, words, vocabulary, kept=False)
            found |= in_turn(cluster, {"titles": titles, "texts": snapshot}, repeat)
        before = cpu_seconds(cluster)
        pushed = push(cluster, snapshot)
        found["last_push_cpu_s"] = round(cpu_seconds(cluster) - before, 1)
        found |= {"last_push_s": round(pushed.seconds, 1), "mb": megabytes(cluster, pushed.index)}
        cluster.call("DELETE", f"/{PREFIX}-*", doing="cleaning up")
    return found


def in_turn(cluster: Cluster, made: dict[str, Snapshot], repeat: int) -> dict[str, float]:
    """Medians of the CPU seconds of pushes, each kind first in turn, and the sizes."""
    found: dict[str, float] = {}
    times: dict[str, list[float]] = {name: [] for name in made}
    for _, names in in_turns(made, repeat, warm_up=0):
        for name in names:
            before = cpu_seconds(cluster)
            pushed = push(cluster, made[name])
            times[name].append(cpu_seconds(cluster) - before)
            print(f"{name}: {pushed.seconds:.1f} s, CPU {times[name][-1]:.1f}", file=sys.stderr)
            found[f"{name}_mb"] = megabytes(cluster, pushed.index)
            cluster.call("DELETE", f"/{pushed.index}", doing="cleaning up")
    return found | {f"push_{n}_cpu_s": round(statistics.median(of), 1) for n, of in times.items()}


def megabytes(cluster: Cluster, index: str) -> float:
    """Of an index on disk."""
    return round(float(stats(cluster, index, "store")["store"]["size_in_bytes"]) / 1e6, 1)


def cpu_seconds(cluster: Cluster) -> float:
    """Of the node and of this process, so that other work on the machine does not count."""
    nodes = cluster.call("GET", "/_nodes/stats/process", doing="reading the node's CPU")["nodes"]
    spent = sum(node["process"]["cpu"]["total_in_millis"] for node in nodes.values())
    return float(spent / 1e3 + time.process_time())


def timed_push(cluster: Cluster, snapshot: Snapshot, base: Snapshot | None = None) -> float:
    """Seconds of one push: in full, or by difference from a base."""
    pushed = push(cluster, snapshot, base)
    if (pushed.written < snapshot.manifest.entities) != (base is not None):
        raise SystemExit(
            f"{pushed.written} documents were written, which is not what was to be measured."
        )
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
        "settings": index_settings(settings.shards, settings.text_analyzer),
        "mappings": mapping(snapshot.side, cluster.version, meta),
    }
    client.indices.create(index=BASELINE, body=body)
    started = time.perf_counter()
    actions = (
        {"_op_type": "create", "_index": BASELINE, "_id": id_, "_source": document}
        for id_, document in searched(documents(snapshot), meta)
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
    parser = option_parser(__doc__)
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
    parser.add_argument("--texts", type=int, default=0, metavar="WORDS")
    parser.add_argument("--learned", action="store_true")
    options = parser.parse_args()
    with node(options.url) as url:
        if options.texts:
            cluster = Cluster(OpenSearchSettings(url=url, prefix=PREFIX))
            vocabulary = LEARNED if options.learned else COMMON
            asked = (options.items, options.texts, options.repeat, vocabulary)
            print(json.dumps(beside_texts(cluster, *asked)))
            return
        measure(url, options.items, options.repeat, options.text_analyzer)


def measure(url: str, items: int, repeat: int, text_analyzer: str) -> None:
    """Push and the baseline in turns; prints medians and their ratio."""
    cluster = Cluster(OpenSearchSettings(url=url, prefix=PREFIX, text_analyzer=text_analyzer))
    with tempfile.TemporaryDirectory() as folder:
        snapshot = write_snapshot(Store(folder), "item", rows(items), Provenance())
        times: dict[str, list[float]] = {"baseline": [], "push": []}
        for _, names in in_turns(times, repeat, warm_up=0):
            for name in names:
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
