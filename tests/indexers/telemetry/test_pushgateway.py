"""What a command pushes when it ends."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cogr.settings.serving import MetricsSettings
from indexers.telemetry import prometheus
from ops.servers import free_port
from tests.commands import Command
from tests.web_server import Answer, Request, serve

REBUILD = ("rebuild", "--side", "item")


@pytest.fixture
def pushed() -> Iterator[tuple[str, list[Request]]]:
    """The URL of a gateway, and what it was sent."""
    seen: list[Request] = []

    def take(request: Request) -> Answer:
        seen.append(request)
        return 202, b""

    with serve(take) as url:
        yield url, seen


def ended(shop: Path, url: str, *words: str) -> tuple[int, str]:
    """The status of a command in a process of its own, and its standard error."""
    line = [sys.executable, "-m", "tests.indexers.faulty", *words]
    line += ["--set", f"metrics.pushgateway={url}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=shop, timeout=300)
    return done.returncode, done.stderr


def samples(request: Request) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in request.body.decode().splitlines())
    return {name: float(value) for name, _, value in lines if name[0] != "#"}


@pytest.mark.slow
def test_a_rebuild_pushes_its_last_figures(shop: Path, pushed: tuple[str, list[Request]]) -> None:
    url, seen = pushed
    status, said = ended(shop, url, "{}", "indexers.cli", *REBUILD)
    assert (status, "metrics" in said) == (0, False), said
    faults = ('{"away_after": 2}', "indexers.cli", *REBUILD, "--generator", "scripted")
    assert ended(shop, url, *faults)[0] == 3
    # POST: a gateway keeps what it is not sent again, such as the time of the last success.
    group = "POST /metrics/job/cogr-index-rebuild-item/instance/cogr"
    assert [f"{one.method} {one.path}" for one in seen] == [group] * 2
    first, second = map(samples, seen)
    assert first['cogr_runs_total{command="rebuild",outcome="finished",side="item"}'] == 1
    assert first['cogr_rebuild_entities{side="item"}'] == 4
    assert first['cogr_publishes_total{outcome="switched"}'] == 1
    assert first['cogr_gate_verdicts_total{outcome="refused"}'] == 0
    # The stages of a pair keep their side.
    assert first['cogr_stage_duration_seconds_count{side="item",stage="publish"}'] == 1
    success = 'cogr_last_success_timestamp_seconds{command="rebuild",side="item"}'
    assert success in first.keys() - second.keys()
    assert second['cogr_runs_total{command="rebuild",outcome="service_away",side="item"}'] == 1
    assert second['cogr_publishes_total{outcome="switched"}'] == 0


def test_what_a_process_was_doing_is_not_pushed() -> None:
    """An alert on it would fire until the next push."""
    page = (Path(__file__).parents[3] / "docs" / "observability.md").read_text("utf-8")
    sections = dict(re.findall(r"^### (Runs|Publishing)$(.*?)^(?=###|Also)", page, re.M | re.S))
    named = {
        name for text in sections.values() for name in re.findall(r"^\| `(cogr_\w+)`", text, re.M)
    }
    doing = {"cogr_rebuild_entities_to_generate", "cogr_rebuild_entities_answered"}
    pushed = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in prometheus.LAST.collect()
    }
    assert pushed == named - doing


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "absent"])
def test_a_gateway_that_does_not_answer_costs_a_warning_and_little_time(
    cogr_index: Command, shop: Path, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    assert prometheus.PUSH_SECONDS <= 10
    monkeypatch.setattr(prometheus, "PUSH_SECONDS", 1.0)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if silent:
            listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        rebuilt = cogr_index(*REBUILD, "--set", f"metrics.pushgateway=http://{address}")
        assert rebuilt.status == 0
        assert rebuilt.err.count("not pushed to metrics.pushgateway") == 1
        began = time.monotonic()
        prometheus.push(MetricsSettings(pushgateway=f"http://{address}"), "job", "cogr")
        assert time.monotonic() - began < 5


def test_a_command_without_a_stage_pushes_nothing(cogr_index: Command, shop: Path) -> None:
    prometheus.STAGE_SECONDS.clear()
    listed = cogr_index("list", "--set", f"metrics.pushgateway=http://127.0.0.1:{free_port()}")
    assert (listed.status, "metrics" in listed.err) == (0, False)
    refused = cogr_index("list", "--set", "metrics.pushgateway=gateway:9091")
    assert (refused.status, "metrics.pushgateway" in refused.sentence) == (2, True)
