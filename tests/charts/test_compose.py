"""The compose file as processes: our services' own commands, variables, configuration and health
checks on real servers.

There is no compose engine here. Its schema is checked by `make chart-lint`; what is replaced are
ports, and addresses of what other images serve.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from cogr.settings import load_settings
from tests.charts.test_templates import parse
from tests.documents import ROOT

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
    assert all((OPS / source).exists() for source in files), files


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
