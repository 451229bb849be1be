"""Rendered pods as plain processes: their command lines, configuration, probes and the test hook against what really runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from cogr.fleet_settings import RedisSettings
from tests.charts.conftest import Object, Render, one

pytestmark = pytest.mark.slow
MODULES = {"cogr-index": "indexers.cli", "cogr-train": "trainers.cli", "cogr-ops": "ops.cli"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def values(folder: Path, redis: str = "") -> dict[str, Any]:
    (folder / "data").mkdir()
    settings = {
        "dataset": {"loader": "jsonl", "path": str(folder / "data")},
        "store": str(folder / "store"),
        "redis": {"url": redis},
        "generator": {"name": "scripted"},
        "serving": {"port": free_port(), "live": "none"},
        "metrics": {"port": free_port()},
    }
    return {"settings": settings, "worker": {"enabled": bool(redis)}, "expander": {"pdb": {"enabled": False}}}


@contextmanager
def running(container: Object, config: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A container's command as a process of this machine, with its configuration where it lies here."""
    line = [str(config) if part == "/etc/cogr/cogr.toml" else part for part in container["args"]]
    command = [sys.executable, "-m", MODULES[container["command"][0]], *line]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COGR_")}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def configured(objects: list[Object], folder: Path) -> Path:
    config = next(o for o in objects if o["kind"] == "ConfigMap" and "cogr.toml" in o["data"])
    (folder / "cogr.toml").write_text(config["data"]["cogr.toml"])
    return folder / "cogr.toml"


def until(true: Callable[[], bool], log: Path, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def answers(container: Object, probe: str) -> bool:
    """Whether the kubelet would be content with a probe."""
    http = container[probe]["httpGet"]
    port = next(port["containerPort"] for port in container["ports"] if port["name"] == http["port"])
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{http['path']}", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def container_of(objects: list[Object], kind: str, name: str) -> Object:
    found: Object = one(objects, kind, name)["spec"]["template"]["spec"]["containers"][0]
    return found


def test_the_expander_answers_its_probes_and_the_test_hook_and_ends(render: Render, tmp_path: Path) -> None:
    objects = render(values(tmp_path))
    container = container_of(objects, "Deployment", "-expander")
    hook = one(objects, "Pod", "-test-expand")["spec"]["containers"][0]
    log = tmp_path / "log"
    with running(container, configured(objects, tmp_path), log) as process:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            until(lambda probe=probe: answers(container, probe), log)  # type: ignore[misc]
        code, _, query = hook["args"][1:]
        url = f"http://127.0.0.1:{container['ports'][0]['containerPort']}/expand"
        ended = subprocess.run([sys.executable, "-c", code, url, query], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["keywords"] == [query]
        process.send_signal(signal.SIGTERM)
        # Uvicorn hands the signal on when it has closed down.
        assert process.wait(60) in (0, -signal.SIGTERM)


def test_a_worker_waits_works_and_drains(render: Render, valkey: RedisSettings, tmp_path: Path) -> None:
    objects = render(values(tmp_path, str(valkey.url)))
    config, log = configured(objects, tmp_path), tmp_path / "log"
    pod = one(objects, "Deployment", "-worker")["spec"]["template"]["spec"]
    with running(pod["initContainers"][0], config, log) as process:
        assert process.wait(180) == 0, log.read_text()
    assert "Redis answers" in log.read_text()
    container = pod["containers"][0]
    with running(container, config, log) as process:
        until(lambda: answers(container, "startupProbe") and "Waiting for shards" in log.read_text(), log)
        assert answers(container, "livenessProbe")
        broker = Redis.from_url(str(valkey.url))
        until(lambda: any(client["cmd"] == "brpop" for client in broker.client_list()), log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(pod["terminationGracePeriodSeconds"]) == 0, log.read_text()


def test_a_service_that_is_late_is_waited_for_by_name_and_one_that_never_comes_is_an_error(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "cogr.toml").write_text(
        f'[dataset]\nloader = "jsonl"\npath = "."\n[redis]\nurl = "redis://127.0.0.1:{port}/0"\ntimeout = 1\n'
        f'[opensearch]\nurl = "http://127.0.0.1:{port}"\n'
    )
    line = ["wait", "--timeout", "0", "--for", "redis", "-c", str(tmp_path / "cogr.toml")]
    ended = subprocess.run([sys.executable, "-m", "ops.cli", *line], capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    assert "Waiting for Redis" in ended.stderr
    assert "OpenSearch" not in ended.stderr
