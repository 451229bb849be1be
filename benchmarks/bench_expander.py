"""The query expander under load, on loopback: beside a plain FastAPI route with one Redis GET, with
a model asleep, and its memory.

    python benchmarks/bench_expander.py              # all three
    python benchmarks/bench_expander.py cached

cached: the same request and the same Redis value, expander and plain route in turn, medians of the
    ratios over rounds; the expander once
        without what it remembers itself (`HOT_QUERIES` is 0), as for all but the queries
        asked most, and once with.
asleep: a model that accepts and never answers, unknown queries; once with the circuit breaker and
    once without.
memory: a million distinct queries, resident memory on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice, repeat
from pathlib import Path

import psutil
from _http_load import Load, for_seconds, in_turns, request_bytes, run, send

from cogr.settings import load_settings
from cogr.settings.indexing import RedisSettings
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from indexers.release import release
from indexers.workspace import Workspace
from ops import servers
from ops.servers import ValkeySpec, free_port

CONNECTIONS = 4
QUERY = "green velvet sofa"
KEYWORDS = tuple(f"keyword number {number}" for number in range(14))
PLAIN = """
import sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from redis.asyncio import Redis

app, redis = FastAPI(), Redis.from_url(sys.argv[1])


class Ask(BaseModel):
    query: str


@app.post("/expand")
async def plain(ask: Ask) -> dict[str, str]:
    return {"value": (await redis.get(ask.query)).decode()}


uvicorn.run(app, port=int(sys.argv[2]), log_config=None, access_log=False)
"""


@contextmanager
def redis() -> Iterator[RedisSettings]:
    """A Valkey of our own."""
    state = servers.start(ValkeySpec(name=f"bench-{os.getpid()}", port=0))
    try:
        yield RedisSettings(url=state.url)
    finally:
        servers.stop(state.kind, state.name, remove=True)


@contextmanager
def server(arguments: list[str], port: int, folder: Path) -> Iterator[psutil.Process]:
    """A server process, once it listens."""
    with subprocess.Popen([sys.executable, *arguments], cwd=folder) as process:
        try:
            wait_until_it_listens(port, process)
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)


def wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
        except urllib.error.HTTPError as error:
            if error.code == 404:  # The plain route.
                return
        except OSError:
            continue
        else:
            return
        time.sleep(0.1)
    raise SystemExit(f"The server ended with status {process.returncode}.")


def wait_for_the_model(port: int) -> None:
    while (
        b'"model":"openai"'
        not in urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60).read()
    ):
        time.sleep(0.1)


def expander(folder: Path, port: int, *overrides: str, **constants: int) -> list[str]:
    """Arguments of an expander over the folder's pair; `constants` are those of its modules."""
    sets = [part for override in overrides for part in ("--set", override)]
    altered = {
        f"ops.expander.{name.replace('__', '.')}": value for name, value in constants.items()
    }
    command = ["-m", "tests.altered", json.dumps(altered), "ops.cli", "serve"]
    options = ["-c", str(folder / "cogr.toml"), "--port", str(port), "--model", "asleep"]
    return [*command, *options, *sets]


def cpu_of(process: psutil.Process) -> float:
    """Seconds of CPU of a server and its worker."""
    every = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in every)


def make_shop(folder: Path) -> None:
    """A pair in the memory backend, in which one query is known."""
    (folder / "cogr.toml").write_text(
        '[dataset]\nloader = "jsonl"\npath = "data"\n[serving]\nlive = "none"\n'
    )
    workspace = Workspace(load_settings(folder / "cogr.toml"))
    snapshots = [
        write_snapshot(workspace.store, "item", [Row("a", "Velvet sofa", KEYWORDS)], Provenance()),
        write_snapshot(workspace.store, "query", [Row("q", QUERY, KEYWORDS)], Provenance()),
    ]
    release(workspace, [snapshot.id for snapshot in snapshots], gate=False)


def shown(name: str, load: Load) -> str:
    times = " ".join(
        f"p{100 * share:g} {1000 * load.percentile(share):.2f} ms" for share in (0.5, 0.99, 1.0)
    )
    return f"{name:9} {load.rate:7.0f} requests/s  {times}  {load.statuses}"


def cached(folder: Path, rounds: int, seconds: float) -> None:
    """The two expanders and the plain route in turn."""
    ports = {"plain": free_port(), "expander": free_port(), "remembers": free_port()}
    with redis() as settings:
        url = str(settings.url)
        from redis import Redis

        Redis.from_url(url).set(QUERY, str(list(KEYWORDS)))
        # Redis may be late on a busy machine; the cached path is what is measured here.
        patient = (f"redis.url={url}", "serving.deadline=30")
        with (
            server(["-c", PLAIN, url, str(ports["plain"])], ports["plain"], folder) as plain,
            server(
                expander(folder, ports["expander"], *patient, expander__HOT_QUERIES=0),
                ports["expander"],
                folder,
            ) as asks,
            server(
                expander(folder, ports["remembers"], *patient), ports["remembers"], folder
            ) as remembers,
        ):
            processes = {"plain": plain, "expander": asks, "remembers": remembers}
            request = request_bytes("/expand", {"query": QUERY})
            ratios: dict[tuple[str, str], list[float]] = {}
            for counts, names in in_turns(ports, rounds):
                loads, cpu = {}, {}
                for name in names:
                    before = cpu_of(processes[name])
                    loads[name] = run(
                        send(ports[name], repeat(request), CONNECTIONS, for_seconds(seconds))
                    )
                    cpu[name] = (cpu_of(processes[name]) - before) / len(loads[name].latencies)
                if counts:
                    add_ratios(ratios, loads, cpu)
            print(answered(ports["expander"]))
    for name in ("expander", "remembers"):
        found = {
            what: f"{statistics.median(ratios[name, what]):.2f}"
            for what in ("CPU", "p99", "throughput")
        }
        print(f"cached, {name}: ratios {found} (targets: p99 <= 1.3, throughput >= 0.8)")


def add_ratios(
    ratios: dict[tuple[str, str], list[float]], loads: dict[str, Load], cpu: dict[str, float]
) -> None:
    """Print a round's loads, and note what each took over the plain route; `cpu` is seconds a
    request.
    """
    for name, load in loads.items():
        of = {
            "CPU": cpu[name] / cpu["plain"],
            "p99": load.percentile(0.99) / loads["plain"].percentile(0.99),
            "throughput": load.rate / loads["plain"].rate,
        }
        for what, ratio in of.items():
            ratios.setdefault((name, what), []).append(ratio)
        print(f"{shown(name, load)}  {1e6 * cpu[name]:.0f} us of CPU a request", flush=True)


@contextmanager
def asleep_model() -> Iterator[int]:
    """A port that accepts connections and never answers: the kernel accepts for a process that does
    nothing.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
        yield int(listening.getsockname()[1])


def asleep(folder: Path, seconds: float) -> None:
    """Unknown queries while the model sleeps."""
    for name, breaker in (
        ("breaker", {}),
        ("no breaker", {"upstream__BREAKER_FAILURES": 1_000_000_000}),
    ):
        port = free_port()
        with asleep_model() as model:
            endpoint = f"generator.openai.base_url=http://127.0.0.1:{model}/v1"
            more = ("serving.live=openai", endpoint, "serving.deadline=0.15")
            with server(expander(folder, port, *more, **breaker), port, folder) as process:
                wait_for_the_model(port)
                numbers = count()
                requests = (
                    request_bytes("/expand", {"query": f"unknown {next(numbers)}"})
                    for _ in repeat(None)
                )
                load = run(send(port, requests, 4 * CONNECTIONS, for_seconds(seconds)))
                cpu = 1e6 * cpu_of(process) / len(load.latencies)
                print(
                    f"{shown(name, load)}  {cpu:.0f} us of CPU a request, its start included",
                    flush=True,
                )
                print(answered(port))
                failed = sum(times for status, times in load.statuses.items() if status != 200)
                p99 = 1000 * load.percentile(0.99)
                print(
                    f"asleep, {name}: {failed} failed (target 0), p99 {p99:.0f} ms (target <= 170)"
                )


def memory_of(process: psutil.Process) -> float:
    """Megabytes of a server's worker."""
    return max(one.memory_info().rss for one in (process, *process.children())) / 1e6


def memory(folder: Path, queries: int, batch: int = 50) -> None:
    """Resident memory over distinct queries."""
    port = free_port()
    with (
        redis() as settings,
        server(expander(folder, port, f"redis.url={settings.url}"), port, folder) as process,
    ):
        numbers = count()
        for part in range(11):
            requests = (
                request_bytes(
                    "/expand",
                    {"queries": [f"distinct query {number}" for number in islice(numbers, batch)]},
                )
                for _ in range(queries // 10 // batch if part else 1)
            )
            run(send(port, requests, CONNECTIONS, lambda: True))
            print(
                f"{part * queries // 10:8} queries  {memory_of(process):6.1f} MB",
                flush=True,
            )
        print(answered(port))


def answered(port: int) -> str:
    """How queries were answered, by the expander's own count."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    return "\n".join(
        re.findall(r"^cogr_expander_(?:queries|upstream_failures)_total.*$", page, re.MULTILINE)
    )


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", default=["cached", "asleep", "memory"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load of cached")
    parser.add_argument("--asleep-seconds", type=float, default=30.0)
    parser.add_argument("--queries", type=int, default=1_000_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_shop(folder)
        if "cached" in asked.what:
            cached(folder, asked.rounds, asked.seconds)
        if "asleep" in asked.what:
            asleep(folder, asked.asleep_seconds)
        if "memory" in asked.what:
            memory(folder, asked.queries)


if __name__ == "__main__":
    main()
