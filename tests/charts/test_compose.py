"""The compose file as processes: our services' own commands, variables, configuration and health
checks on real servers.

There is no compose engine here. Its schema is checked by `make chart-lint`; what is replaced are
ports, and addresses of what other images serve.
"""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from cogr.settings import load_settings
from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import OpenSearchSettings
from ops.servers import free_port
from tests.charts.conftest import ROOT, Object
from tests.charts.pods import BY_SIGTERM, Machine
from tests.charts.test_templates import parse
from tests.commands import program
from tests.shops import write_thing_shop

OPS = ROOT / "ops"
SERVICES: dict[str, Any] = yaml.safe_load((OPS / "compose.yaml").read_text())["services"]
OURS = ("expander", "worker", "jobs")
CONFIG = OPS / "compose" / "cogr.toml"
PROMETHEUS = OPS / "compose" / "prometheus.yaml"


def mounts(service: str) -> dict[str, str]:
    """Path in the container -> what the compose file mounts there."""
    pairs = (
        volume.removesuffix(":ro").rpartition(":")
        for volume in SERVICES[service].get("volumes", [])
    )
    return {inside: source for source, _, inside in pairs}


def documented_job() -> list[str]:
    """The command for `jobs` in the file's own head."""
    (line,) = re.findall(
        r"^#.* jobs (cogr-index .+)$", (OPS / "compose.yaml").read_text(), re.MULTILINE
    )
    return str(line).split()


def health_check(service: str) -> list[str]:
    """The command that says whether a container is well: the service's own, else its image's."""
    if own := SERVICES[service].get("healthcheck"):
        return list(own["test"][1:])
    text = (ROOT / SERVICES[service]["build"]["dockerfile"]).read_text().replace("\\\n", "")
    (line,) = re.findall(r"^HEALTHCHECK .* CMD +(\[.+\])$", text, re.MULTILINE)
    return list(json.loads(line))


@pytest.mark.parametrize(
    ("service", "line"),
    [(name, SERVICES[name]["command"]) for name in OURS[:2]] + [("jobs", documented_job())],
)
def test_the_real_commands_take_every_command_line(service: str, line: list[str]) -> None:
    parse(line)
    assert (ROOT / SERVICES[service]["build"]["dockerfile"]).exists()


def test_every_file_that_is_mounted_is_there() -> None:
    sources = {source for name in SERVICES for source in mounts(name).values()}
    files = {source for source in sources if source.startswith("./")}
    assert len(files) == 6
    assert [source for source in files if not (OPS / source).exists()] == []


def test_the_configuration_names_the_services() -> None:
    settings = load_settings(CONFIG)
    addresses = {
        (parts.hostname, parts.port)
        for parts in map(urlsplit, (settings.redis.url, settings.opensearch.url))
    }
    assert addresses == {("valkey", 6379), ("opensearch", 9200)}
    for service in OURS:
        assert SERVICES[service]["environment"]["COGR_CONFIG"] == "/etc/cogr/cogr.toml"
        assert {"/etc/cogr/cogr.toml", settings.store, settings.dataset.path} == set(
            mounts(service)
        )
        awaited = SERVICES[service]["depends_on"]
        assert all(
            SERVICES[name].get("healthcheck")
            for name, of in awaited.items()
            if of["condition"] == "service_healthy"
        )


def test_prometheus_scrapes_the_ports_that_are_served() -> None:
    scraped = yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    gateway = urlsplit(SERVICES["jobs"]["environment"]["COGR_METRICS__PUSHGATEWAY"]).netloc
    honoured = [job for job in scraped if job.get("honor_labels")]
    assert [job["static_configs"] for job in honoured] == [[{"targets": [gateway]}]]
    assert gateway.partition(":")[0] in SERVICES
    targets = {
        target
        for job in scraped
        for static in job["static_configs"]
        for target in static["targets"]
    }
    metrics = load_settings(CONFIG).metrics
    port = parse(SERVICES["expander"]["command"])["port"]
    assert targets == {
        *(f"expander:{port}", f"worker:{metrics.port}", f"jobs:{metrics.port}", gateway)
    }


@pytest.mark.slow
def test_promtool_agrees_with_the_configuration(tmp_path: Path) -> None:
    text = PROMETHEUS.read_text()
    for inside, source in mounts("prometheus").items():
        text = text.replace(inside, str(OPS / source))
    (tmp_path / "prometheus.yml").write_text(text)
    line = [program("promtool", "prometheus"), "check", "config", str(tmp_path / "prometheus.yml")]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 rule files found" in ended.stdout


def test_grafana_is_given_what_the_dashboards_ask_for() -> None:
    mounted = mounts("grafana")
    files = {
        inside: yaml.safe_load((OPS / source).read_text())
        for inside, source in mounted.items()
        if "yaml" in inside
    }
    (source,) = files["/etc/grafana/provisioning/datasources/cogr.yaml"]["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert urlsplit(source["url"]).netloc == "prometheus:9090"
    (provider,) = files["/etc/grafana/provisioning/dashboards/cogr.yaml"]["providers"]
    assert provider["type"] == "file"
    boards = [
        json.loads(path.read_text())
        for path in (OPS / mounted[provider["options"]["path"]]).glob("*.json")
    ]
    assert len(boards) == len({board["uid"] for board in boards}) == 3
    for board in boards:
        (variable,) = board["templating"]["list"]
        assert (variable["type"], variable["query"]) == ("datasource", source["type"])
        wanted = {"type": source["type"], "uid": f"${{{variable['name']}}}"}
        assert all(panel["datasource"] == wanted for panel in board["panels"])
    assert all(file["apiVersion"] == 1 for file in files.values())


class Stack:
    """The services of ours on this machine."""

    def __init__(self, folder: Path, redis: RedisSettings, opensearch: OpenSearchSettings) -> None:
        write_thing_shop(folder, 60)
        prefix = f"compose-{uuid.uuid4().hex[:8]}"
        self.ports = {"8600": str(free_port()), "9464": str(free_port())}
        self.variables = {
            "COGR_REDIS__URL": str(redis.url),
            "COGR_OPENSEARCH__URL": str(opensearch.url),
            "COGR_OPENSEARCH__PREFIX": prefix,
            # What auto takes with labels is fitted first, which takes longer.
            "COGR_GENERATOR__NAME": "extractive",
            "COGR_METRICS__PORT": self.ports["9464"],
            # Nothing listens there, which costs a job no more than a warning.
            "COGR_METRICS__PUSHGATEWAY": f"http://127.0.0.1:{free_port()}",
            "COGR_STORE": str(folder / "store"),
            "COGR_DATASET__PATH": str(folder / "data"),
        }
        self.machine = Machine(
            folder, [{"kind": "ConfigMap", "data": {"cogr.toml": CONFIG.read_text()}}]
        )

    def container(self, service: str, line: Sequence[str]) -> Object:
        """A command in a service's container."""
        variables = {**SERVICES[service]["environment"], **self.variables}
        if service == "jobs":  # In a container of its own it has the worker's port.
            variables["COGR_METRICS__PORT"] = "0"
        for port, free in self.ports.items():
            line = [re.sub(rf"\b{port}\b", free, part) for part in line]
        return {
            "name": service,
            "image": f"cogr-{service}:compose",
            "command": line[:1],
            "args": line[1:],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "volumeMounts": [{"name": "config", "mountPath": "/etc/cogr/cogr.toml"}],
        }

    def service(self, name: str) -> Object:
        return self.container(name, SERVICES[name]["command"])

    def is_well(self, name: str) -> bool:
        """What its health check says."""
        with self.machine.running(self.container(name, health_check(name))) as check:
            return check.end(60) == 0

    def source_of(self, query: str) -> str:
        """Where the expander has a query's keywords from."""
        url = f"http://127.0.0.1:{self.ports['8600']}/expand"
        return str(httpx.post(url, json={"query": query}, timeout=30).json()["source"])


@pytest.mark.drill
@pytest.mark.server
@pytest.mark.timeout(900)
def test_the_services_work_together(
    valkey: RedisSettings, opensearch: OpenSearchSettings, tmp_path: Path
) -> None:
    stack = Stack(tmp_path, valkey, opensearch)
    with stack.machine.running(stack.service("expander")) as expander:
        expander.until(lambda: stack.is_well("expander"))
        assert stack.source_of("word1") == "none"
        with stack.machine.running(stack.service("worker")) as worker:
            worker.until(lambda: stack.is_well("worker"))
            for side in ("item", "query"):
                line = [part if part != "item" else side for part in documented_job()]
                stack.machine.finished(stack.container("jobs", line), 600)
            worker.terminate()
            assert worker.end(120) == 0, worker.log.read_text()
        expander.until(lambda: stack.source_of("word1") in ("index", "cache"))
        expander.terminate()
        # Uvicorn hands the signal on when it has closed down.
        assert expander.end(60) in (0, BY_SIGTERM)
