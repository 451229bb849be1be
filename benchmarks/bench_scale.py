"""A catalogue of made-up items from its file to what serves: seconds, bytes and peak memory of
every stage, by size.

    python benchmarks/bench_scale.py [--items 10000 100000 1000000] [--url http://localhost:9200]
        [--quick] [--json]

Each size runs in a process of its own, so that peaks are its own: load the data set, plan, generate
(`scripted`, in this process), assemble, push, mirror, verify, publish, and all of it again with
nothing changed. A stage is linear when its time per item does not grow with the size. The memory of
a stage is the process' peak during it, on Linux two figures: anonymous memory (RssAnon, sampled
every 10 ms), which is what the stage needs, and all that is resident (VmHWM), with the pages of
mapped files, which the kernel drops when somebody needs their place. CPU seconds are those of all
threads. Bytes are what the stage left in the store, or in the index. --quick takes 200 and 400
items and no server (backend memory), to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from _servers import node
from _timing import T, option_parser, timed
from _worlds import KEYWORDS_EACH
from bench_push import timed_baseline, words_drawn

from indexers.backends.memory import mirror_of
from indexers.backends.opensearch import OpenSearchBackend
from indexers.generators import extractive
from indexers.rebuild.assembly import Rebuilt, freeze
from indexers.rebuild.plan import generate_missing, make_plan
from indexers.rebuild.run import RebuildRequest, RebuildRun, make_job
from indexers.release.order import probes
from indexers.workspace import Workspace

SIZES = (10_000, 100_000, 1_000_000)
PREFIX = "cogr-scale"
WORDS = 24
QUERIES = 20
WARM_UP = 100


def write_catalogue(folder: Path, items: int) -> None:
    """items.jsonl: titles of six words, texts of 18 more, drawn by Zipf's law from 60,000 words;
    and a configuration.
    """
    rng = np.random.default_rng(0)
    data = folder / "data"
    data.mkdir()
    with (data / "items.jsonl").open("w", encoding="utf-8") as file:
        for number in range(items):
            words = words_drawn(rng, WORDS)
            item = {
                "id": f"item{number:08}",
                "title": " ".join(words[:6]),
                "text": " ".join(words[6:]),
            }
            file.write(json.dumps(item) + "\n")
    extractive.SCRIPTED_WORDS = KEYWORDS_EACH
    (folder / "cogr.toml").write_text(
        '[dataset]\nloader = "jsonl"\npath = "data"\n[generator]\nname = "scripted"\n'
    )


class Stages:
    """Times stages and takes the peak of each."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self._folder = folder
        self._quiet = quiet
        self.rows: dict[str, dict[str, float]] = {}

    def run(self, name: str, what: Callable[[], T]) -> T:
        """Do it and note seconds, peak megabytes and megabytes left on disk."""
        before = _bytes_below(self._folder)
        with Peak() as peak:
            done, seconds, cpu = timed(what)
        self.rows[name] = {
            "seconds": round(seconds, 3),
            "cpu_seconds": round(cpu, 3),
            "anon_mb": peak.anonymous,
            "peak_mb": peak.resident,
            "disk_mb": round((_bytes_below(self._folder) - before) / 1e6, 1),
        }
        if not self._quiet:
            print(f"  {name}: {self.rows[name]}", file=sys.stderr, flush=True)
        return done


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Peak:
    """The process' largest memory while the block runs, in MB: `anonymous`, and all that is
    `resident`; one figure without /proc.
    """

    _EVERY = 0.01

    def __init__(self) -> None:
        self.anonymous = self.resident = 0.0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Peak:
        if _STATUS.exists():
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew.
            self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        if _STATUS.exists():
            self._ended.set()
            self._sampler.join()
            self.resident = _megabytes("VmHWM")
        else:
            self.resident = self.anonymous = round(
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1
            )

    def _sample(self) -> None:
        while True:
            self.anonymous = max(self.anonymous, _megabytes("RssAnon"))
            if self._ended.wait(self._EVERY):
                return


_STATUS = Path("/proc/self/status")


def _megabytes(name: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return round(int(line.split()[1]) / 1e3, 1)


def measure(folder: Path, items: int, url: str | None) -> dict[str, dict[str, float]]:
    """All stages of one size, in this process; a few items go first, so that no stage pays for
    imports.
    """
    if items > WARM_UP:
        with tempfile.TemporaryDirectory() as small:
            measure(Path(small), WARM_UP, url)
    write_catalogue(folder, items)
    stages = Stages(folder, quiet=items <= WARM_UP)
    workspace = _workspace(folder, url)
    stages.run("load", lambda: workspace.dataset)
    job = make_job(workspace, RebuildRequest("item"))
    plan = stages.run("plan", lambda: make_plan(job))
    stages.run("generate", lambda: generate_missing(job, plan, lambda _: None))
    snapshot = stages.run("assemble", lambda: freeze(job, plan, {})).snapshot
    backend = workspace.backend
    pushed = stages.run("push", lambda: backend.push(snapshot))
    stages.run("mirror", lambda: mirror_of(snapshot))
    queries = stages.run("probes", lambda: probes(backend, snapshot, QUERIES))
    stages.run("verify", lambda: backend.verify(snapshot, queries))
    stages.run("publish", lambda: backend.publish({"item": snapshot.id}))
    stages.rows["push"] |= {
        "per_second": round(items / pushed.seconds),
    }
    if isinstance(backend, OpenSearchBackend):
        baseline = timed_baseline(backend.cluster, snapshot, str(url))
        stages.rows["push"] |= {
            "baseline_per_second": round(items / baseline),
            "over_baseline": round(baseline / pushed.seconds, 3),
        }
    again = stages.run("rerun", lambda: _rerun(folder, url))
    if again.generated:
        raise SystemExit(
            f"The rerun generated {again.generated} items, although nothing had changed."
        )
    if isinstance(backend, OpenSearchBackend):
        backend.cluster.call("DELETE", f"/{pushed.index}", doing="cleaning up")
    return stages.rows


def _workspace(folder: Path, url: str | None) -> Workspace:
    settings = [f"store={folder / 'store'}"]
    settings += (
        [f"opensearch.url={url}", f"opensearch.prefix={PREFIX}", "backend=opensearch"]
        if url
        else []
    )
    return Workspace.open(folder / "cogr.toml", settings)


def _rerun(folder: Path, url: str | None) -> Rebuilt:
    """The whole command once more, from the file of items on."""
    return RebuildRun(
        _workspace(folder, url),
        RebuildRequest("item"),
        lambda *_: nullcontext(lambda _: None),
        lambda _: None,
    ).carry_out()


def table(sizes: dict[int, dict[str, dict[str, float]]]) -> Iterator[str]:
    """Lines: a stage in each, seconds, memory (anonymous of resident) and bytes by size, and how
    much longer an item takes in the largest than in the smallest.
    """
    smallest, largest = min(sizes), max(sizes)
    yield (
        f"{'stage':10}"
        + "".join(f"{f'{size:,} items':>42}" for size in sizes)
        + f"{'an item, largest/smallest':>28}"
    )
    for stage in sizes[smallest]:
        cells = [rows[stage] for rows in sizes.values()]
        shown = "".join(
            f"{c['seconds']:>10.2f} s {c['anon_mb']:>7.0f} of {c['peak_mb']:>5.0f} MB "
            f"{c['disk_mb']:>7.0f} MB"
            for c in cells
        )
        growth = (cells[-1]["seconds"] / largest) / max(1e-9, cells[0]["seconds"] / smallest)
        yield f"{stage:10}{shown}{growth:>28.2f}"
    for size, rows in sizes.items():
        push = rows["push"]
        total = sum(row["seconds"] for stage, row in rows.items() if stage != "rerun")
        baseline = (
            f", {push['over_baseline']:.2f} of a plain bulk" if "over_baseline" in push else ""
        )
        cpu = sum(row["cpu_seconds"] for row in rows.values())
        anonymous, resident = (
            max(row[name] for row in rows.values()) for name in ("anon_mb", "peak_mb")
        )
        yield (
            f"{size:,} items: {total:.1f} s in all ({cpu:.1f} s of CPU with the rerun), peak "
            f"{anonymous:.0f} MB anonymous of {resident:.0f} MB; push {push['per_second']:,} "
            f"documents/s{baseline}, "
            f"rerun {rows['rerun']['seconds']:.1f} s"
        )


def _in_own_process(items: int, url: str | None) -> dict[str, dict[str, float]]:
    command = [
        sys.executable,
        __file__,
        "--one",
        str(items),
        *(["--url", url] if url else ["--no-server"]),
    ]
    print(f"{items:,} items", file=sys.stderr, flush=True)
    rows: dict[str, dict[str, float]] = json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    )
    return rows


def main() -> None:
    """Measure and print."""
    parser = option_parser(__doc__, json=True)
    parser.add_argument("--items", type=int, nargs="+", default=SIZES)
    parser.add_argument(
        "--url",
        help="a node that may be loaded; indexes cogr-scale-* are made. One is started by default",
    )
    parser.add_argument(
        "--no-server", action="store_true", help="the backend memory instead of OpenSearch"
    )
    parser.add_argument("--quick", action="store_true", help="200 and 400 items, no server")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(Path(folder), options.one, options.url)))
        return
    sizes = (200, 400) if options.quick else options.items
    with nullcontext() if options.quick or options.no_server else node(options.url) as url:
        found = {size: _in_own_process(size, url) for size in sizes}
    print(json.dumps(found) if options.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
