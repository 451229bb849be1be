"""The query expander under load, on loopback, beside a plain FastAPI route with one Redis GET.

    python benchmarks/bench_expander.py [--rounds 5] [--seconds 5]

The same request and the same Redis value, expander and plain route in turn, medians of the ratios
over rounds; the expander once without what it remembers itself (`HOT_QUERIES` is 0), as for all but
the queries asked most, and once with.
"""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import psutil
from _http_load import Load, for_seconds, request_bytes, run, send
from _servers import redis, serve_pair
from _timing import in_turns, option_parser

from cogr.snapshots import Row
from ops.servers import free_port

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


def expander(folder: Path, port: int, *overrides: str, **constants: int) -> list[str]:
    """Arguments of an expander over the folder's pair; `constants` are those of its modules."""
    sets = [part for override in overrides for part in ("--set", override)]
    altered = {
        f"ops.expander.{name.replace('__', '.')}": value for name, value in constants.items()
    }
    command = ["-m", "tests.altered", json.dumps(altered), "ops.cli", "serve"]
    options = ["-c", str(folder / "cogr.toml"), "--port", str(port)]
    return [*command, *options, *sets]


def cpu_of(process: psutil.Process) -> float:
    """Seconds of CPU of a server and its worker."""
    every = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in every)


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


def answered(port: int) -> str:
    """How queries were answered, by the expander's own count."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    return "\n".join(
        re.findall(r"^cogr_expander_(?:queries|upstream_failures)_total.*$", page, re.MULTILINE)
    )


def main() -> None:
    """Measure and print."""
    parser = option_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        serve_pair(folder, [Row("a", "Velvet sofa", KEYWORDS)], [Row("q", QUERY, KEYWORDS)])
        cached(folder, asked.rounds, asked.seconds)


if __name__ == "__main__":
    main()
