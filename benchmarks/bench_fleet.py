"""What rebuilds on workers cost: two workers over one, a rebuild over the engine alone. The
coordinator's memory by size is bench_scale.py's.

    python benchmarks/bench_fleet.py [--part workers,engine] [--entities 1200] [--prompts 96]
        [--quick] [--json]

workers: an endpoint that takes 0.1 s for any request, four at once a worker (generator `openai`):
    entities a second of two workers over those of one, from the first answer to the last; and the
    wall time of whole rebuilds. Real Valkey, real worker processes.
engine: wall time of `cogr-index rebuild` in this process over `LLM.generate` of the same engine on
    the same prompts, both with empty caches, in turn, medians of --repeat (vLLM, SmolLM2-135M).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from _servers import redis
from _timing import Row, option_parser, report, timed

sys.path.insert(0, str(Path(__file__).parent.parent))

from cogr.settings.indexing import RedisSettings
from indexers.rebuild.run import RebuildRequest, make_job
from indexers.workspace import Workspace
from tests.indexers.generators.fake_endpoint import FakeEndpoint
from tests.indexers.rebuild.fleet.fleet_worlds import MIN_SHARD, Fleet, attempts_in, fleet_in
from tests.shops import generate_and_freeze, write_thing_shop
from tests.smollm2 import smollm2

PARTS = ("workers", "engine")
DELAY, AT_ONCE = 0.1, 4


# Two workers over one


def workers_over_one(entities: int) -> Row:
    """Rates of one and of two workers at an endpoint of fixed speed."""
    with redis() as broker, FakeEndpoint(delay=DELAY) as endpoint:
        rates, walls = zip(
            *(_rate(broker, endpoint.url, workers, entities) for workers in (1, 2)), strict=True
        )
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
                engine = partial(generator._engine.generate, use_tqdm=False)
                alone.append(timed(engine, tokens, generator._sampling)[1])
                workspace.store.remove("cache")
                whole.append(timed(generate_and_freeze, job)[1])
    notes = {
        "prompts": prompts,
        "engine_seconds": round(median(alone), 1),
        "rebuild_seconds": round(median(whole), 1),
    }
    return Row(
        "rebuild over LLM.generate", median(whole) / median(alone), "", target=1.05, notes=notes
    )


def main() -> int:
    """Exit status 1 when a target was missed."""
    parser = option_parser(__doc__, json=True)
    parser.add_argument(
        "--part", default="workers", help="comma-separated; engine takes minutes on a CPU"
    )
    parser.add_argument("--entities", type=int, default=1200)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.entities, options.prompts, options.repeat = 60, 4, 1
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


if __name__ == "__main__":
    sys.exit(main())
