"""What rebuilds on workers cost: two workers over one, a rebuild over the engine alone, the
coordinator's memory by size.

    python benchmarks/bench_fleet.py [--part workers,engine,memory] [--entities 1200] [--prompts 96]
        [--sizes 10000 1000000] [--quick] [--json]

workers: an endpoint that takes 0.1 s for any request, four at once a worker (generator `openai`):
    entities a second of two workers over those
of one, from the first answer to the last; and the wall time of whole rebuilds. Real Valkey, real
worker processes.
engine: wall time of `cogr-index rebuild` in this process over `LLM.generate` of the same engine on
    the same prompts, both with
empty caches, in turn, medians of --repeat (vLLM, SmolLM2-135M).
memory: peak resident memory of a coordinator, by the number of entities that it plans; a worker in
    a thread answers by `scripted`. Each
size has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from _timing import Row, report

from cogr.records import Advance

sys.path.insert(0, str(Path(__file__).parent.parent))

from cogr.settings.indexing import RedisSettings
from indexers.rebuild.fleet.broker import Message
from indexers.rebuild.fleet.worker import Worker
from indexers.rebuild.run import RebuildRequest, make_job, rebuild_side
from indexers.workspace import Workspace
from ops import servers
from ops.servers import ValkeySpec
from tests.indexers.generators.fake_endpoint import FakeEndpoint
from tests.indexers.rebuild.fleet.fleet_worlds import MIN_SHARD, Fleet, attempts_in, fleet_in
from tests.shops import generate_and_freeze, write_thing_shop
from tests.smollm2 import smollm2

PARTS = ("workers", "engine", "memory")
DELAY, AT_ONCE = 0.1, 4


# Two workers over one


def workers_over_one(entities: int) -> Row:
    """Rates of one and of two workers at an endpoint of fixed speed."""
    wanted = ValkeySpec(name=f"bench-{os.getpid()}", port=0)
    state = servers.start(wanted)
    try:
        with FakeEndpoint(delay=DELAY) as endpoint:
            rates, walls = zip(
                *(_rate(RedisSettings(url=state.url), endpoint.url, n, entities) for n in (1, 2)),
                strict=True,
            )
    finally:
        servers.stop(state.kind, state.name, remove=True)
    notes = {
        "entities": entities,
        "one_per_second": round(rates[0], 1),
        "two_per_second": round(rates[1], 1),
    }
    walls_said = {"wall_one": round(walls[0], 1), "wall_two": round(walls[1], 1)}
    # A row's target is the most that it may be: the share of the time that two workers need.
    return Row(
        "time of two workers over one",
        rates[0] / rates[1],
        "",
        target=1 / 1.9,
        notes=notes | walls_said,
    )


def _rate(redis: RedisSettings, url: str, workers: int, entities: int) -> tuple[float, float]:
    settings: dict[str, Any] = {
        "generator.name": "openai",
        "generator.model": "fake",
        "generator.openai.base_url": url,
    }
    settings |= {MIN_SHARD: 40, "indexers.rebuild.fleet.worker.SHARD_SECONDS": 5}
    with (
        tempfile.TemporaryDirectory() as folder,
        fleet_in(Path(folder), redis, entities, settings) as fleet,
    ):
        for _ in range(workers):
            fleet.worker()
        time.sleep(10)
        started = time.monotonic()
        fleet.outcome(fleet.rebuild(), seconds=3600)
        return _between_first_and_last(fleet), time.monotonic() - started


def _between_first_and_last(fleet: Fleet) -> float:
    """Entities a second, from the start of the first shard to the end of the last one."""
    done = attempts_in(fleet.store)
    began, ended = min(a.started for a in done), max(a.started + a.seconds for a in done)
    return sum(one.items for one in done) / (ended - began)


# A rebuild over the engine alone


def over_the_engine(prompts: int, repeat: int) -> Row:
    """Wall time of a rebuild over that of the engine alone."""
    with tempfile.TemporaryDirectory() as name:
        write_thing_shop(Path(name), prompts)
        overrides = [
            "generator.name=vllm",
            f"generator.model={smollm2()}",
            "generator.vllm={max_model_len = 768}",
            "generator.sampling.max_tokens=32",
        ]
        workspace = Workspace.open(Path(name) / "cogr.toml", overrides)
        job = make_job(workspace, RebuildRequest("item"))
        generator: Any = job.generator
        with generator:
            requests = [job.request(entity) for entity in job.entities]
            fitting, _ = generator.encoded(requests)
            tokens = [{"prompt_token_ids": ids} for _, ids in fitting]
            generator._engine.generate(tokens[:4], generator._sampling, use_tqdm=False)
            alone, whole = [], []
            for _ in range(repeat):
                alone.append(
                    _seconds(
                        lambda: generator._engine.generate(
                            tokens, generator._sampling, use_tqdm=False
                        )
                    )
                )
                workspace.store.remove("cache")
                whole.append(_seconds(lambda: generate_and_freeze(job)))
    notes = {
        "prompts": prompts,
        "engine_seconds": round(median(alone), 1),
        "rebuild_seconds": round(median(whole), 1),
    }
    return Row(
        "rebuild over LLM.generate", median(whole) / median(alone), "", target=1.05, notes=notes
    )


def _seconds(what: Any) -> float:
    started = time.perf_counter()
    what()
    return time.perf_counter() - started


# The coordinator's memory


def memory(sizes: Sequence[int]) -> Iterator[Row]:
    """Peaks by size; the last row is their spread."""
    peaks = []
    for size in sizes:
        ended = subprocess.run(
            [sys.executable, __file__, "--coordinate", str(size)],
            check=True,
            capture_output=True,
            text=True,
        )
        found = json.loads(ended.stdout)
        peaks.append(found["peak_mb"])
        yield Row(f"coordinator, {size:,} entities", found["peak_mb"], "MB", notes=found)
    yield Row("largest over smallest peak", max(peaks) - min(peaks), "MB", target=200.0)


class InThread:
    """A broker whose one worker answers at once."""

    def __init__(self, workspace: Workspace) -> None:
        self._worker = Worker(workspace, "bench")

    def send(self, message: Message) -> None:
        self._worker.take(message.model_dump())

    def waiting(self) -> int:
        return 0

    def active(self, run: str) -> set[str]:  # noqa: ARG002
        return set()


def coordinate(size: int) -> dict[str, Any]:
    """One rebuild on a worker in this process; megabytes at the peak, after the data set was
    loaded, and before.
    """
    from indexers.rebuild.fleet import broker, coordinator

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_thing_shop(folder, size)
        before = _peak()
        coordinator.MIN_SHARD = 2000
        sets = ["rebuild.workers=celery", "redis.url=redis://127.0.0.1:1/0"]
        workspace = Workspace.open(folder / "cogr.toml", sets)
        in_thread: Any = InThread(workspace)
        broker.Broker = lambda *_: in_thread  # type: ignore[assignment,misc]
        assert len(workspace.dataset.items) == size
        loaded = _peak()
        started = time.monotonic()
        outcome = rebuild_side(workspace, RebuildRequest("item", push=False), no_bar, print_nothing)
        assert outcome.generated == size
        seconds = round(time.monotonic() - started, 1)
    return {
        "before_mb": before,
        "data_set_mb": loaded - before,
        "rebuild_mb": _peak() - loaded,
        "peak_mb": _peak(),
        "seconds": seconds,
    }


def no_bar(_: str, __: int) -> AbstractContextManager[Advance]:
    """No progress is shown."""
    return nullcontext(lambda _: None)


def print_nothing(_: str) -> None:
    """Standard output is the figure's."""


def _peak() -> float:
    """Peak resident memory of this process so far, MB (Linux)."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return round(int(line.split()[1]) / 1024, 1)


def main() -> int:
    """Exit status 1 when a target was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--part", default="workers,memory", help="comma-separated; engine takes minutes on a CPU"
    )
    parser.add_argument("--entities", type=int, default=1200)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--coordinate", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.coordinate:
        print(json.dumps(coordinate(options.coordinate)))
        return 0
    if options.quick:
        options.entities, options.prompts, options.repeat, options.sizes = 60, 4, 1, [100, 200]
    rows = list(_rows(options))
    report(rows, as_json=options.json)
    return 1 if any(row.ok is False for row in rows) and not options.quick else 0


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    parts = options.part.split(",")
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"--part knows {', '.join(PARTS)}, not {sorted(unknown)[0]}")
    if "workers" in parts:
        yield workers_over_one(options.entities)
    if "engine" in parts:
        yield over_the_engine(options.prompts, options.repeat)
    if "memory" in parts:
        yield from memory(options.sizes)


if __name__ == "__main__":
    sys.exit(main())
