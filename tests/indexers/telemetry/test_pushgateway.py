"""What a command pushes when it ends, as a real Pushgateway has it then."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cogr.settings.serving import MetricsSettings
from indexers.telemetry import prometheus
from ops.servers import free_port
from tests.commands import Command, program

REBUILD = ("rebuild", "--side", "item")


class Gateway:
    """A Pushgateway."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"

    def page(self) -> str:
        """What Prometheus would scrape."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def group(self) -> dict[str, float]:
        """The samples of the item rebuilds' group, without the labels of the group."""
        found = {}
        for line in self.page().splitlines():
            if 'job="cogr-index-rebuild-item"' in line:
                name, _, value = line.rpartition(" ")
                assert 'instance="cogr"' in name
                found[re.sub(r'(instance|job)="[^"]*",?', "", name).replace(",}", "}")] = float(
                    value
                )
        return found


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    served = Gateway(free_port())
    line = [
        program("prometheus-pushgateway", "prometheus-pushgateway"),
        f"--web.listen-address={served.address}",
        # Debian's default is a file in /var.
        "--persistence.file=",
    ]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(served)
            yield served
        finally:
            process.terminate()


def _wait_for(served: Gateway) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            served.page()
        except urllib.error.URLError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def ended(shop: Path, url: str, *words: str) -> tuple[int, str]:
    """The status of a command in a process of its own, and its standard error."""
    line = [sys.executable, "-m", "tests.indexers.faulty", *words]
    line += ["--set", f"metrics.pushgateway={url}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=shop, timeout=300)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_rebuild_leaves_its_last_figures_in_the_gateway(shop: Path, gateway: Gateway) -> None:
    status, said = ended(shop, gateway.url, "{}", "indexers.cli", *REBUILD)
    assert (status, "metrics" in said) == (0, False), said
    first = gateway.group()
    assert first['cogr_runs_total{command="rebuild",outcome="finished",side="item"}'] == 1
    assert first['cogr_rebuild_entities{side="item"}'] == 4
    assert first['cogr_publishes_total{outcome="switched"}'] == 1
    assert first['cogr_gate_verdicts_total{outcome="refused"}'] == 0
    # The stages of a pair keep their side.
    assert first['cogr_stage_duration_seconds_count{side="item",stage="publish"}'] == 1
    assert first["push_time_seconds{}"] == pytest.approx(time.time(), abs=120)
    promtool = [program("promtool", "prometheus"), "check", "metrics"]
    page = gateway.page()
    lint = subprocess.run(promtool, input=page, capture_output=True, text=True, check=False)
    assert lint.returncode == 0, lint.stdout + lint.stderr

    # The next one fails: its outcome and counts replace the first one's, the success stays.
    faults = ('{"away_after": 2}', "indexers.cli", *REBUILD, "--generator", "scripted")
    assert ended(shop, gateway.url, *faults)[0] == 3
    second = gateway.group()
    success = 'cogr_last_success_timestamp_seconds{command="rebuild",side="item"}'
    assert second[success] == first[success]
    assert [name for name in second if name.startswith("cogr_runs_total")] == [
        'cogr_runs_total{command="rebuild",outcome="service_away",side="item"}'
    ]
    assert second['cogr_publishes_total{outcome="switched"}'] == 0
    assert second["push_time_seconds{}"] > first["push_time_seconds{}"]


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
