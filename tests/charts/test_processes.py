"""What the chart renders against what really runs: every pod's commands, configuration and probes,
drain and scrapes.

`make images` runs these tests again inside the images that it built.
"""

from __future__ import annotations

import json
import re
import threading
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import OpenSearchSettings
from cogr.store import Store
from indexers.fleet.run_files import Overview, overview
from ops.servers import ValkeySpec, free_port, stop
from tests.charts.conftest import Render, merged
from tests.charts.pods import BY_SIGTERM, Machine, Started, containers_of
from tests.charts.test_monitoring import named_metrics
from tests.indexers.generators.fake_endpoint import FakeEndpoint, Misbehave
from tests.owned_servers import start_owned
from tests.shops import TINY_TRAINING, read_jsonl, write_jsonl, write_sample_part, write_thing_shop
from tests.trainers import shop

pytestmark = pytest.mark.slow
ITEMS = 100
AT_ONCE = 32
UNANSWERABLE = "unanswerable"
GRACE = 120
"""worker.terminationGracePeriodSeconds, in seconds."""
TRAINING = 1200
"""Seconds that fine-tuning and a round of a very small model may take on a busy machine."""


def values_in(folder: Path, **settings: Any) -> dict[str, Any]:
    """Values whose volumes lie in a folder."""
    own = {
        "dataset": {"loader": "jsonl", "path": str(folder / "data")},
        "store": str(folder / "store"),
        "serving": {"live": "none"},
        "metrics": {"port": free_port()},
        **settings,
    }
    return {"settings": own, "data": {"existingClaim": "data", "mountPath": str(folder / "data")}}


def port_of(started: Started) -> int:
    (port,) = [port["containerPort"] for port in started.container["ports"]]
    return int(port)


def scraped(port: int) -> set[str]:
    """The names of every series of an answer; none where nobody answers."""
    try:
        return series(httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text)
    except httpx.HTTPError:
        return set()


def series(text: str) -> set[str]:
    """The names of every series in Prometheus' text format."""
    return set(re.findall(r"^(cogr_\w+)", text, re.MULTILINE))


def test_the_expander_answers_its_probes_and_the_test_hook_and_ends(
    render: Render, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, render({**values_in(tmp_path), "worker": {"enabled": False}}))
    (container,) = containers_of(machine.objects, "Deployment", "-expander")
    (hook,) = containers_of(machine.objects, "Pod", "-test-expand")
    with machine.running(container) as expander:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            expander.until(lambda probe=probe: expander.probed(probe))  # type: ignore[misc]
        code, _, query = hook["args"][1:]
        said = machine.finished(
            {**hook, "args": ["-c", code, f"http://127.0.0.1:{port_of(expander)}/expand", query]}
        )
        assert json.loads(said)["keywords"] == [query]
        expander.terminate()
        # Uvicorn hands the signal on when it has closed down.
        assert expander.end(60) in (0, BY_SIGTERM)


@pytest.mark.drill
def test_a_training_job_does_its_round(render: Render, tmp_path: Path) -> None:
    write_sample_part(tmp_path)
    values = merged(
        {"settings": tomllib.loads(TINY_TRAINING)},
        values_in(tmp_path),
        {"training": {"enabled": True, "round": 1}, "worker": {"enabled": False}},
        # Threads of several trainers spin on the cores of one machine.
        {"jobs": {"extraEnv": [{"name": "OMP_NUM_THREADS", "value": "1"}]}},
    )
    machine = Machine(tmp_path, render(values))
    begin, train = containers_of(machine.objects, "Job", "-round-1")
    machine.finished(begin)
    machine.finished(train, TRAINING)
    assert [round_.number for round_ in shop.whole(shop.Shop(tmp_path / "cogr.toml"))] == [0, 1]


class Release:
    """A shop with its workers, jobs and expander, and an endpoint that demands the key of the
    Secret.
    """

    def __init__(
        self,
        folder: Path,
        render: Render,
        redis: RedisSettings,
        opensearch: OpenSearchSettings,
        url: str,
    ) -> None:
        prefix = f"chart-{uuid.uuid4().hex[:8]}"
        write_thing_shop(folder, ITEMS)
        items = folder / "data" / "items.jsonl"
        # Updates go by the day on which an item was changed.
        write_jsonl(items, [item | {"updated": "2026-01-31"} for item in read_jsonl(items)])
        values = values_in(
            folder,
            redis={"url": str(redis.url)},
            opensearch={"url": opensearch.url, "prefix": prefix},
            generator={
                "name": "openai",
                "model": "shop",
                "openai": {"base_url": url},
            },
            serving={"live": "openai", "deadline": 5},
        )
        values |= {
            "secretSettings": {
                "generator.openai.api_key": {"name": "credentials", "key": "endpoint"}
            },
            "worker": {"sides": ["item"]},
            "rebuild": {"item": {"enabled": True}, "query": {"enabled": True, "workers": "local"}},
            "update": {"item": {"enabled": True}},
            "preflight": {"enabled": True},
            "test": {"query": "word1", "search": True},
            "monitoring": {"serviceMonitor": {"enabled": True}},
        }
        self.machine = Machine(folder, render(values), {"endpoint": "open"})
        self.store = Store(folder / "store")
        self.seen: set[str] = set()
        self.gateway = ""

    def containers(self, kind: str, name: str) -> list[Any]:
        """A job has a port of its own, since all pods share this machine's, and a Pushgateway."""
        found = containers_of(self.machine.objects, kind, name)
        for container in found:
            if container["command"] == ["cogr-index"]:
                own = ("metrics.port=0", f"metrics.pushgateway={self.gateway}")
                container["args"] += [part for one in own for part in ("--set", one)]
        return found

    def job(self, name: str) -> None:
        """A CronJob's pod to its end."""
        wait, container = self.containers("CronJob", name)
        self.machine.finished(wait)
        with self.machine.running(container) as job:
            self.see_end_of(job)

    def see_end_of(self, job: Started) -> None:
        """It pushes its last figures."""
        assert job.end(240) == 0, job.log.read_text()

    def saw(self, found: set[str]) -> bool:
        self.seen |= found
        return True

    def run(self) -> Overview | None:
        return overview(self.store, "item")


@contextmanager
def pushgateway() -> Iterator[tuple[str, set[str]]]:
    """The URL of a gateway, and the names of what is pushed to it."""
    pushed: set[str] = set()

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            pushed.update(series(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", pushed
        server.shutdown()


@pytest.mark.server
@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_a_release_works_drains_and_is_watched(
    render: Render, valkey: RedisSettings, opensearch: OpenSearchSettings, tmp_path: Path
) -> None:
    with (
        FakeEndpoint(hangs_up_on(UNANSWERABLE), delay=0.2, key="open") as endpoint,
        pushgateway() as (gateway, pushed),
    ):
        release = Release(tmp_path, render, valkey, opensearch, endpoint.url)
        release.gateway, release.seen = gateway, pushed
        machine = release.machine
        (preflight,) = release.containers("Job", "-preflight")
        assert "OpenSearch answers" in machine.finished(preflight)
        rebuild_on_workers_that_drain(release)
        # The first worker's answers were kept: asked again is at most what was under way when it
        # was stopped.
        assert ITEMS <= len(endpoint.bodies) <= ITEMS + AT_ONCE
        release.job("-rebuild-query")
        release.job("-update-item")
        (search,) = release.containers("Pod", "-test-search")
        assert json.loads(machine.finished(search).splitlines()[-1])["hits"]
        watch_the_expander(release)
    assert named_metrics() - release.seen == set()


def rebuild_on_workers_that_drain(release: Release) -> None:
    """One worker is stopped in the middle of its shard, and another one finishes it."""
    wait, container = release.containers("Deployment", "-worker")
    assert "Redis answers" in release.machine.finished(wait)
    waits, job = release.containers("CronJob", "-rebuild-item")
    release.machine.finished(waits)
    with release.machine.running(container) as worker:
        worker.until(lambda: worker.probed("startupProbe") and worker.probed("livenessProbe"))
        with release.machine.running(job) as rebuild:
            rebuild.until(lambda: (run := release.run()) and run.held and run.answered)
            worker.terminate()
            assert worker.end(GRACE) == 0, worker.log.read_text()
            rebuild.until(lambda: (run := release.run()) and not run.held)
            assert (run := release.run())
            assert (run.state, run.set_aside) == ("running", {})
            (port,) = re.findall(r"Metrics: http://\S+:(\d+)/metrics", rebuild.log.read_text())
            assert release.saw(scraped(port))
            with release.machine.running(container) as second:
                second.until(
                    lambda: (
                        release.saw(scraped(port_of(second)))
                        and (run := release.run())
                        and run.done
                    )
                )
                release.saw(scraped(port_of(second)))
                release.see_end_of(rebuild)
                release.saw(scraped(port_of(second)))


def watch_the_expander(release: Release) -> None:
    """It serves the pair that the jobs published, asks the model for what is unknown, and counts
    what fails.
    """
    (container,) = release.containers("Deployment", "-expander")
    with release.machine.running(container) as expander:
        expander.until(lambda: expander.probed("readinessProbe"))
        url = f"http://127.0.0.1:{port_of(expander)}/expand"
        expander.until(
            lambda: httpx.post(url, json={"query": "word1"}, timeout=30).json()["source"] == "index"
        )
        assert httpx.post(url, json={"query": "an unknown chair"}, timeout=30).json()["keywords"]
        assert httpx.post(url, json={"queries": 1}, timeout=30).status_code == 422
        assert httpx.post(url, json={"query": UNANSWERABLE}, timeout=30).json()["keywords"] == [
            UNANSWERABLE
        ]
        expander.until(lambda: fails_of_the_model(release, expander, url))


def fails_of_the_model(release: Release, expander: Started, url: str) -> bool:
    """Whether a failed call of the model was counted; asks once more, since a call may come too
    late for its deadline.
    """
    httpx.post(url, json={"query": f"{UNANSWERABLE} {uuid.uuid4().hex}"}, timeout=30)
    release.saw(scraped(port_of(expander)))
    return "cogr_expander_upstream_failures_total" in release.seen


def hangs_up_on(words: str) -> Misbehave:
    """An endpoint that breaks the connection when a prompt holds these words."""

    def misbehave(_: int, body: dict[str, Any]) -> None:
        if words in body["messages"][-1]["content"]:
            raise ConnectionResetError

    return misbehave


def test_a_pod_waits_for_a_service_that_comes_late(render: Render, tmp_path: Path) -> None:
    port = free_port()
    # OpenSearch is away, too, which does not concern a worker.
    redis = {"url": f"redis://127.0.0.1:{port}/0"}
    values = values_in(tmp_path, redis=redis, opensearch={"url": f"http://127.0.0.1:{port}"})
    machine = Machine(tmp_path, render({**values, "waitForServicesSeconds": 240}))
    wait, _ = containers_of(machine.objects, "Deployment", "-worker")
    with machine.running(wait) as waiting:
        waiting.until(lambda: "Waiting for Redis" in waiting.log.read_text())
        late = ValkeySpec(name=f"tests-late-{uuid.uuid4().hex[:8]}", port=port)
        started = start_owned(late)
        try:
            assert waiting.end(240) == 0, waiting.log.read_text()
        finally:
            stop(started.kind, started.name, remove=True)
        said = waiting.log.read_text()
        assert "Redis answers" in said
        assert "OpenSearch" not in said
