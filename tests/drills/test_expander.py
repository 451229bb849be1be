"""Redis, OpenSearch and the model of a running expander are killed in turn and come back, under
half the load that it bears.

Whatever is away, every answer is 200; and an upstream that is there again is used within five
seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import pytest

from cogr.snapshots import Row
from ops.servers import OpenSearchSpec, ValkeySpec, free_port
from tests.drills.servers import Mortal
from tests.ops.expander.expander_worlds import ITEMS, is_ready, serve_pair, wait_for, workspace

AWAY = float(os.environ.get("DRILL_AWAY", "60"))
"""Seconds for which each upstream is away."""
BACK = 5.0
"""Seconds after which one that is there again must be used."""
KNOWN = [f"known query {number}" for number in range(2000)]
CACHED = 5
"""Seconds for which an answer is cached: the hot query's is there again and again, those of the
known ones are gone by their next turn.
"""
CLIENTS = 4
MODEL = """
import sys
from aiohttp import web

answer = {"choices": [{"message": {"content": "sofa, couch"}, "finish_reason": "stop"}]}
application = web.Application()
application.router.add_post("/v1/chat/completions", lambda request: web.json_response(answer))
web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""

pytestmark = [pytest.mark.server, pytest.mark.drill, pytest.mark.timeout(1800)]


@dataclass
class Upstream:
    """One thing behind the expander: how it is killed and started, and the source of answers that
    shows that it is used.
    """

    name: str
    kill: Callable[[], None]
    start: Callable[[], None]
    source: str


@dataclass
class Answers:
    """What the clients got: when, with which status, from where; and latencies."""

    statuses: Counter[int] = field(default_factory=Counter)
    sources: list[tuple[float, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def used_after(self, moment: float, source: str) -> float | None:
        """Seconds from a moment to the next answer of this source; None before there is one."""
        return next(
            (when - moment for when, of in self.sources if when > moment and of == source), None
        )


@contextmanager
def server_of(kind: str) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """A Redis or an OpenSearch of the drill's own: its address, how to kill it, how to start it on
    its old port.
    """
    spec = ValkeySpec if kind == "redis" else OpenSearchSpec
    name = f"tests-{os.getpid()}-expander-{kind}"
    server = Mortal(spec(name=name, port=0))
    try:
        yield str(server.state.url), server.kill, server.revive
    finally:
        server.stop()


@contextmanager
def model() -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """An OpenAI-compatible endpoint in a process of its own."""
    port = free_port()
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        processes.append(subprocess.Popen([sys.executable, "-c", MODEL, str(port)]))
        wait_for(lambda: listens(port))

    def kill() -> None:
        processes[-1].kill()
        processes[-1].wait()

    start()
    try:
        yield f"http://127.0.0.1:{port}/v1", kill, start
    finally:
        kill()


def listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def expander(folder: Path, *sets: str) -> Iterator[str]:
    """`cogr-ops serve` in a process of its own, ready; its address."""
    port = free_port()
    given = [part for one in sets for part in ("--set", one)]
    constants = {
        "ops.expander.expander.HOT_QUERIES": 0,
        "ops.expander.redis_cache.CACHE_SECONDS": CACHED,
    }
    command = [sys.executable, "-m", "tests.altered", json.dumps(constants), "ops.cli", "serve"]
    options = ["-c", str(folder / "cogr.toml"), "--port", str(port), "--model", "any"]
    process = subprocess.Popen([*command, *options, *given])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            wait_for(lambda: is_ready(client), 120)
            yield str(client.base_url)
    finally:
        process.terminate()
        process.wait(30)


async def ask(client: httpx.AsyncClient, query: str, answers: Answers) -> None:
    started = time.monotonic()
    answer = await client.post("/expand", json={"query": query})
    answers.seconds.append(time.monotonic() - started)
    answers.statuses[answer.status_code] += 1
    if answer.status_code == 200:
        answers.sources.append((time.monotonic(), answer.json()["source"]))


async def load(url: str, answers: Answers, ended: Callable[[], bool], pause: float) -> None:
    """Clients that ask a hot query, known and unknown ones in turn, each waiting `pause` seconds
    between two.
    """
    numbers = count()

    def query(number: int) -> str:
        return (KNOWN[0], KNOWN[number // 3 % len(KNOWN)], f"unknown query {time.monotonic_ns()}")[
            number % 3
        ]

    async def go_on(client: httpx.AsyncClient) -> None:
        while not ended():
            await ask(client, query(next(numbers)), answers)
            await asyncio.sleep(pause)

    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        await asyncio.gather(*(go_on(client) for _ in range(CLIENTS)))


async def half_of_what_it_bears(url: str) -> float:
    """The pause that halves the rate of clients without any."""
    answers, ends = Answers(), time.monotonic() + 3
    await load(url, answers, lambda: time.monotonic() > ends, 0.0)
    return 2 * CLIENTS * 3 / len(answers.seconds)


async def killed_in_turn(url: str, upstreams: list[Upstream], table: list[str]) -> Answers:
    """Kill each, wait, start it again, and wait until its answers are there."""
    answers, done = Answers(), asyncio.Event()
    clients = asyncio.create_task(load(url, answers, done.is_set, await half_of_what_it_bears(url)))
    for upstream in upstreams:
        upstream.kill()
        await asyncio.sleep(AWAY)
        # The start returns when the server answers; the expander may be quicker.
        await asyncio.to_thread(upstream.start)
        there, gave_up = time.monotonic(), time.monotonic() + 60
        while (
            used := answers.used_after(there, upstream.source)
        ) is None and time.monotonic() < gave_up:
            await asyncio.sleep(0.05)
        took = f"used again after {used or 60:.1f} s"
        table.append(f"{upstream.name} killed for {AWAY:g} s: {took}")
        assert used is not None
        assert used <= BACK, upstream.name
    done.set()
    await clients
    return answers


def test_each_upstream_dies_and_comes_back(tmp_path: Path, drill_table: list[str]) -> None:
    with ExitStack() as stack:
        redis_url, *redis = stack.enter_context(server_of("redis"))
        search_url, *search = stack.enter_context(server_of("opensearch"))
        model_url, *answering = stack.enter_context(model())
        sets = (f"opensearch.url={search_url}", f"redis.url={redis_url}")
        # A busy machine may be late; what is killed here refuses at once.
        patient = ("serving.deadline=4",)
        endpoint = ("serving.live=openai", f"generator.openai.base_url={model_url}")
        queries = [Row(f"q{number:04}", text, ("sofa",)) for number, text in enumerate(KNOWN)]
        serve_pair(workspace(tmp_path, *sets), ITEMS, queries)
        url = stack.enter_context(expander(tmp_path, *sets, *patient, *endpoint))
        upstreams = [
            Upstream("Redis", redis[0], redis[1], "cache"),
            Upstream("OpenSearch", search[0], search[1], "index"),
            Upstream("the model", answering[0], answering[1], "model"),
        ]
        answers = asyncio.run(killed_in_turn(url, upstreams, drill_table))
    drill_table.append(
        f"{answers.statuses.total()} queries meanwhile: statuses {dict(answers.statuses)}"
    )
    assert set(answers.statuses) == {200}
