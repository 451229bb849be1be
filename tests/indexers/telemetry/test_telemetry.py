"""Metrics and logs of a run, each as a reader outside of the process sees it."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cogr.settings.serving import LogSettings
from indexers.telemetry import logs, prometheus
from tests.commands import Command
from tests.documents import DOCS
from tests.web_server import Answer, Request, serve

PAGE = (DOCS / "observability.md").read_text("utf-8")
CANARY = "xanthic quokka"


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test switches on is off again after it."""
    monkeypatch.setattr(prometheus, "_server", None)
    yield
    logs.begin()


def samples(page: bytes) -> dict[str, float]:
    """Sample with its labels -> value."""
    lines = (line.rpartition(" ") for line in page.decode().splitlines())
    return {name: float(value) for name, _, value in lines if name[:1] != "#"}


def scraped(port: str) -> dict[str, float]:
    """What Prometheus would see."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return samples(answer.read())


# Metrics


def families() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every metric of indexing: name -> kind and labels. Those of the packages above are theirs to
    tell of.
    """
    return {
        one._name + ("_total" if one._type == "counter" else ""): (
            one._type,
            tuple(one._labelnames),
        )
        for one in prometheus.REGISTRY._names_to_collectors.values()
        if hasattr(one, "_labelnames") and not one._name.startswith("cogr_expander_")
    }


def test_the_page_lists_every_metric_with_kind_and_labels() -> None:
    rows = re.findall(r"^\| `(cogr_\w+)` \| (\w+) \| ([^|]*) \|", PAGE, re.MULTILINE)
    listed = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(rows) == len(listed)
    assert listed == families()
    # What a process was doing is not pushed: an alert on it would fire until the next push.
    parts = re.findall(r"^### (?:Runs|Publishing)$(.*?)^(?=###|Also)", PAGE, re.M | re.S)
    lasting = {name for text in parts for name in re.findall(r"^\| `(cogr_\w+)`", text, re.M)}
    doing = {"cogr_rebuild_entities_to_generate", "cogr_rebuild_entities_answered"}
    pushed = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in prometheus.LAST.collect()
    }
    assert pushed == lasting - doing


# Pushes


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
    first, second = (samples(one.body) for one in seen)
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


def test_a_gateway_that_does_not_answer_costs_a_warning_and_little_time(
    cogr_index: Command, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "PUSH_SECONDS", 1.0)
    prometheus.STAGE_SECONDS.clear()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        gateway = f"metrics.pushgateway=http://127.0.0.1:{silent.getsockname()[1]}"
        # A command without a stage pushes nothing.
        listed = cogr_index("list", "--set", gateway)
        assert (listed.status, "metrics" in listed.err) == (0, False)
        rebuilt = cogr_index(*REBUILD, "--set", gateway)
    assert rebuilt.status == 0
    assert rebuilt.err.count("not pushed to metrics.pushgateway") == 1


def test_a_port_that_is_taken_is_one_sentence(cogr_index: Command, shop: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = f"metrics.port={taken.getsockname()[1]}"
        cogr_index(*REBUILD, "--set", port).check_refused("Address already in use")


# Logs


def lines_of(err: str) -> list[dict[str, Any]]:
    """Every line is one JSON object, whoever wrote it."""
    return [json.loads(line) for line in err.splitlines()]


def test_a_rebuild_is_seen_by_a_scrape_and_in_lines_of_json(
    cogr_index: Command, shop: Path
) -> None:
    sets = ("--set", "log.format=json", "--set", "metrics.port=0")
    ended = cogr_index(*REBUILD, "--json", "-v", *sets)
    assert ended.status == 0
    lines = lines_of(ended.err)
    (port,) = re.findall(r"Metrics: http://127\.0\.0\.1:(\d+)/metrics\"", ended.err)
    seen = scraped(port)
    assert seen['cogr_runs_total{command="rebuild",outcome="finished",side="item"}'] >= 1
    assert seen['cogr_answers_total{outcome="completion",side="item"}'] >= 4
    assert seen['cogr_rebuild_entities_answered{side="item"}'] == 4
    assert seen["process_resident_memory_bytes"] > 0
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    pushed = [line for line in lines if line["message"].startswith("push ")]
    assert [(line["side"], line["snapshot"], line["stage"]) for line in pushed] == [
        ("item", ended.json["snapshot"], "push")
    ]
    assert any(line["message"] == "rebuild of items: finished" for line in lines)
    # An error is a line too.
    ended = cogr_index("publish", "item-r000-000000000000", "--set", "log.format=json")
    assert ended.status == 2
    assert lines_of(ended.err)[-1]["level"] == "error"


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_text_of_an_item_or_a_query_is_logged(
    cogr_index: Command, shop: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Items, queries and an unexpected error all quote the canary; no line does."""
    for name in ("items", "queries"):
        path = shop / "data" / f"{name}.jsonl"
        path.write_text(path.read_text().replace("green", CANARY))
    options = ("-v", "--set", f"log.format={form}")
    for side in ("item", "query"):
        ended = cogr_index("rebuild", "--side", side, "--json", *options)
        assert ended.status == 0
        assert CANARY not in ended.err
    try:
        raise ValueError(CANARY)
    except ValueError:
        logs.configure(LogSettings.model_validate({"format": form}))
        (handler,) = logging.getLogger("indexers").handlers
        record = logging.LogRecord(
            "indexers", logging.ERROR, __file__, 1, "failed", None, sys.exc_info()
        )
        said = handler.format(record)
        assert "ValueError" in said
        assert CANARY not in said


def test_fields_are_bound_for_a_block(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs._State, "verbose", True)
    logs.configure(LogSettings(format="json"))
    log = logging.getLogger("indexers.test")
    with logs.bound(run="r1", shard="s1"), logs.bound(shard="s2", worker=None):
        log.info("inside")
    log.info("outside")
    logging.getLogger("a.library").warning("line\nbreak \ud800", extra={"args_of_task": CANARY})
    inside, outside, library = lines_of(capsys.readouterr().err)
    assert (inside["run"], inside["shard"]) == ("r1", "s2")
    assert "worker" not in inside
    assert "run" not in outside
    assert library["logger"] == "a.library"
    assert library.keys() == {"time", "level", "logger", "message"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", library["time"])
