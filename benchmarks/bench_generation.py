"""Ways to make vLLM write faster, each on and off in one run, in turns: what it saves, and what it
does to the keywords.

    python benchmarks/bench_generation.py [--idea NAME ...] [--items 12] [--repeat 3]
        [--quick] [--json]

Some seven minutes on one quiet core. SmolLM2-135M as bundled, zero-shot, prompts for items of the
sample shop. Each way of running the engine is a process of its own. Seconds are CPU seconds of that
process, which computes on one thread: other work on the machine changes them little. Nothing is
kept from one turn to the next: the prefix cache is emptied before each. A model of this size that
was never trained for it seldom ends a list, so what shortens completions saves more here than it
will with a trained one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from _timing import Row, report

sys.path.insert(0, str(Path(__file__).parent.parent))

from cogr.datasets import load_dataset
from cogr.keywords import parse
from cogr.prompts import PAPER, Prompter, cut_by_estimate
from cogr.settings.indexing import Sampling
from indexers.generators import Request
from indexers.generators.vllm_lm import VllmGenerator, VllmOptions, set_environment
from tests.smollm2 import smollm2
from trainers.demo import CATALOGUE

K_MAX = 30
LIST = rf"[^,\n]{{1,60}}(, [^,\n]{{1,60}}){{0,{K_MAX - 1}}}"
"""One line of at most K_MAX keywords, as a regular expression."""


@dataclass(frozen=True)
class Way:
    """One way of generating.

    Attributes:
        engine: arguments of vLLM's engine, over the generator's own.
        sampling: what requests ask for, over the generator's own.
        length: most tokens of a completion.
        order: of the prompts: as drawn, or the longest first.
        at_once: prompts that the engine has at a time; None is all of them.
        refilled: a prompt goes in for each that is finished; else the next ones wait until all are.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    length: int = 32
    order: str = "drawn"
    at_once: int | None = None
    refilled: bool = True


LONG = Way(length=64)
UNEVEN = {"stop": ["\n"]}

IDEAS: dict[str, tuple[str, Way, Way]] = {
    "prefix": (
        "prefixes cached",
        Way(engine={"enable_prefix_caching": False}, length=16),
        Way(length=16),
    ),
    "blocks": (
        "prefixes cached in blocks of 32, not 128",
        Way(engine={"block_size": 128}, length=16),
        Way(engine={"block_size": 32}, length=16),
    ),
    "newline": ("stop at the end of the line", LONG, Way(length=64, sampling={"stop": ["\n"]})),
    "list": ("nothing but a list on one line", LONG, Way(length=64, sampling={"regex": LIST})),
    "length": ("max_tokens 64, not 128", Way(length=128), LONG),
    "refill": (
        "a prompt in for each answer out, 4 at once",
        Way(length=64, sampling=UNEVEN, at_once=4, refilled=False),
        Way(length=64, sampling=UNEVEN, at_once=4),
    ),
    "batch": ("all prompts at once, not 4", Way(at_once=4), Way()),
    "order": (
        "the longest prompts first, 4 at once",
        Way(at_once=4),
        Way(order="longest", at_once=4),
    ),
}
"""Name -> what it is, without it, with it."""


# In the engine's process


class _Tried(VllmGenerator):
    """The generator with other arguments for its engine, and other sampling from turn to turn."""

    def __init__(self, engine: Mapping[str, Any]) -> None:
        short = {"max_model_len": 1024}
        super().__init__(VllmOptions(model=smollm2(), engine=short, sampling=Sampling()))
        self._more = engine

    def engine_arguments(self) -> dict[str, Any]:
        return super().engine_arguments() | dict(self._more)

    def turn(self, way: Way, requests: list[Request]) -> dict[str, float]:
        """Answer the requests in that way; what it took and what came out."""
        self._prepare(way, len(requests))
        rounds = (
            [requests] if way.refilled or way.at_once is None else _in_lots(requests, way.at_once)
        )
        began = time.perf_counter(), time.process_time()
        answers = [answer for lot in rounds for answer in self.generate(lot)]
        wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        texts = [answer.text for answer in answers]  # type: ignore[union-attr]
        kept = [parse(text)[:K_MAX] for text in texts]
        return {
            "cpu": cpu,
            "wall": wall,
            "tokens": sum(answer.tokens for answer in answers) / len(requests),  # type: ignore[union-attr]
            "keywords": sum(map(len, kept)) / len(requests),
            "empty": sum(not keywords for keywords in kept),
        }

    def _prepare(self, way: Way, prompts: int) -> None:
        from vllm.sampling_params import StructuredOutputsParams

        self.options = self.options.model_copy(update={"in_flight": way.at_once or prompts})
        self.__dict__.pop("_sampling", None)
        own = dict(way.sampling)
        if regex := own.pop("regex", None):
            own["structured_outputs"] = StructuredOutputsParams(regex=regex)
        for name, value in (own | {"max_tokens": way.length}).items():
            setattr(self._sampling, name, value)
        self._sampling.__post_init__()
        self._engine.reset_prefix_cache()


def _in_lots(requests: list[Request], size: int) -> list[list[Request]]:
    return [requests[start : start + size] for start in range(0, len(requests), size)]


def _ordered(generator: VllmGenerator, requests: list[Request], order: str) -> list[Request]:
    if order == "drawn":
        return requests
    fitting, _ = generator.encoded(requests)
    return [request for request, ids in sorted(fitting, key=lambda pair: -len(pair[1]))]


def serve(asked: Connection, engine: Mapping[str, Any], items: int) -> None:
    """Take one turn for each way that is asked for. Runs in a process of its own."""
    set_environment()
    requests = shop_requests(items)
    with _Tried(engine) as generator:
        generator.turn(Way(length=4), requests[:2])
        asked.send("ready")
        while (way := asked.recv()) is not None:
            asked.send(generator.turn(way, _ordered(generator, requests, way.order)))


def shop_requests(items: int) -> list[Request]:
    """Item prompts of the sample shop, drawn by a fixed seed."""
    entities = load_dataset("jsonl", CATALOGUE).entities("item")
    prompter = Prompter(PAPER["item"], 512, cut_by_estimate)
    drawn = random.Random(0).sample(list(entities), items)
    return [Request(entity.id, entity, prompter(entity)) for entity in drawn]


# In this process


class EngineProcesses:
    """Processes with an engine each, started when they are first needed."""

    def __init__(self, items: int) -> None:
        self._items = items
        self._running = ExitStack()
        self._known: dict[str, Connection] = {}

    def __enter__(self) -> EngineProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def turn(self, way: Way) -> dict[str, float]:
        """One turn of the engine that the way needs."""
        name = repr(way.engine)
        if name not in self._known:
            self._known[name] = self._running.enter_context(_engine(way.engine, self._items))
        self._known[name].send(way)
        answer: dict[str, float] = self._known[name].recv()
        return answer


@contextmanager
def _engine(engine: Mapping[str, Any], items: int) -> Iterator[Connection]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs, engine, items)
    )
    process.start()
    theirs.close()
    try:
        if ours.recv() != "ready":
            raise RuntimeError("the engine's process said something else than that it is ready")
        yield ours
        ours.send(None)
        process.join(60)
    finally:
        process.kill()
        process.join()


def measured(ideas: list[str], engines: EngineProcesses, repeat: int) -> Iterator[Row]:
    """Each idea beside its absence. All ways take turns; medians of their turns."""
    ways = {repr(way): way for idea in ideas for way in IDEAS[idea][1:]}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(repeat):
        for name, way in ways.items():
            turns[name].append(engines.turn(way))
            print(
                f"turn {turn + 1} of {repeat}, {turns[name][-1]['cpu']:.1f} s: {name}",
                file=sys.stderr,
                flush=True,
            )
    found = {
        name: {key: median(turn[key] for turn in taken) for key in taken[0]}
        for name, taken in turns.items()
    }
    for idea in ideas:
        what, *both = IDEAS[idea]
        yield _row(f"{idea}: {what}", *(found[repr(way)] for way in both))


def _row(name: str, off: Mapping[str, float], on: Mapping[str, float]) -> Row:
    shown = {
        "tokens": "tokens an item",
        "keywords": "keywords an item",
        "empty": "empty",
        "wall": "wall seconds",
    }
    notes = {words: f"{off[key]:.1f} -> {on[key]:.1f}" for key, words in shown.items()}
    return Row(name, on["cpu"], "s", alternatives={"without": off["cpu"]}, notes=notes)


def main() -> int:
    """Always exit status 0: these are comparisons, not targets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--idea", choices=IDEAS, nargs="+", default=list(IDEAS))
    parser.add_argument("--items", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.items, options.repeat = 2, 1
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with EngineProcesses(options.items) as engines:
        report(measured(options.idea, engines, options.repeat), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
