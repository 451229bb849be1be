"""Alerts and dashboards name only what is there: metrics, sections of the docs, stages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from indexers.telemetry.prometheus import REGISTRY
from ops.expander.upstream import Metrics
from tests.commands import program, ran
from tests.documents import ROOT
from trainers.training.rounds import ROUND_STAGES, SFT_STAGES

OPS = ROOT / "ops"
BOARDS = sorted((OPS / "dashboards").glob("*.json"))
RULES = [
    rule
    for group in yaml.safe_load((OPS / "alerts/cogr.yaml").read_text())["groups"]
    for rule in group["rules"]
]


def exposed() -> set[str]:
    """Names of every series that the expander and the processes of a rebuild can answer a scrape
    with.
    """
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    return {
        family.name + ending
        for registry in (Metrics().registry, REGISTRY)
        for family in registry.collect()
        for ending in endings.get(family.type, [""])
    }


def expressions(board: Path) -> list[str]:
    return [
        target["expr"]
        for panel in json.loads(board.read_text())["panels"]
        for target in panel["targets"]
    ]


def test_every_metric_is_one_that_is_exposed() -> None:
    asked = [rule["expr"] for rule in RULES] + [e for board in BOARDS for e in expressions(board)]
    named = {name for expression in asked for name in re.findall(r"\bcogr_\w+", expression)}
    assert len(named) > 10
    assert named <= exposed()


def test_every_alert_leads_to_its_section() -> None:
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^## (.+)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
        assert anchor in [heading.lower().replace(" ", "-") for heading in headings], rule["alert"]


def test_every_alert_has_a_firing_and_a_quiet_case() -> None:
    cases = yaml.safe_load((OPS / "alerts/cogr.test.yaml").read_text())["tests"]
    quiet = {case["alertname"] for test in cases for case in test.get("alert_rule_test", [])}
    asked = str([test.get("promql_expr_test") for test in cases])
    firing = set(re.findall(r'alertname="(\w+)"', asked))
    assert quiet == firing == {rule["alert"] for rule in RULES}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["check", "rules", "cogr.yaml"], ["test", "rules", "cogr.test.yaml"]]
)
def test_prometheus_agrees(arguments: list[str]) -> None:
    ran(program("promtool", "prometheus"), *arguments, cwd=OPS / "alerts")


def test_the_training_panels_show_every_stage_of_a_round() -> None:
    (shown,) = {
        pattern
        for expr in expressions(OPS / "dashboards/rounds.json")
        for pattern in re.findall(r'stage=~"(.+?)"', expr)
    }
    assert all(re.fullmatch(shown, stage) for stage in (*SFT_STAGES, *ROUND_STAGES))
