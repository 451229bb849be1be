"""Push of a snapshot that differs from its parent in 1 % of the items: by difference beside in
full, alternating, medians.

    python benchmarks/bench_update.py [--url http://localhost:9200] [--items 300000]
        [--share 0.01] [--repeat 5]

Both are timed whole, up to the frozen and marked index. Of the changed items a tenth is gone and a
tenth is new. The first two of each warm the node up and are not counted: a new JVM takes twice as
long for either, a team's has been running for days. Prints one JSON object.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator

from _servers import node
from _timing import in_turns, option_parser
from bench_push import PREFIX, rows, timed_push

from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import mark, read_index
from indexers.backends.opensearch.push import push

WARM_UP = 2


def changed(items: int, share: float) -> Iterator[Row]:
    """The rows after the changes."""
    every = round(1 / share)
    for number, row in enumerate(rows(items)):
        kind = number // every % 10
        if number % every:
            yield row
        elif kind == 0:
            yield dataclasses.replace(row, id=f"{row.id}-new")
        elif kind != 1:
            yield dataclasses.replace(row, keywords=row.keywords[1:])


def main() -> None:
    """Measure and print."""
    parser = option_parser(__doc__)
    parser.add_argument("--url", help="as of bench_push.py")
    parser.add_argument("--items", type=int, default=300_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with node(options.url) as url, tempfile.TemporaryDirectory() as folder:
        cluster, store = Cluster(OpenSearchSettings(url=url, prefix=PREFIX)), Store(folder)
        base = write_snapshot(store, "item", rows(options.items), Provenance())
        snapshot = write_snapshot(
            store, "item", changed(options.items, options.share), Provenance(parent=base.id)
        )
        index = push(cluster, base).index
        state = read_index(cluster, index)
        assert state is not None, "it was just pushed"
        mark(cluster, state, verified=True)
        times: dict[str, list[float]] = {"full": [], "difference": []}
        for counts, names in in_turns(times, options.repeat, WARM_UP):
            for name in names:
                seconds = timed_push(cluster, snapshot, base if name == "difference" else None)
                if counts:
                    times[name].append(seconds)
                print(f"{name}: {seconds:.2f} s", file=sys.stderr)
        cluster.call("DELETE", f"/{index}", doing="cleaning up")
    medians = {name: round(statistics.median(some), 2) for name, some in times.items()}
    ratio = round(medians["difference"] / medians["full"], 3)
    print(json.dumps({"items": options.items, "share": options.share, **medians, "ratio": ratio}))


if __name__ == "__main__":
    main()
