"""`cogr-ops doctor`: what it says is compared with what is there."""

from __future__ import annotations

import tomllib
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

import pytest

from ops.cli.doctor import Finding, examine, missing_packages
from tests.commands import Command

ROOT = Path(__file__).parents[3]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and cache, and no setting from outside."""
    for name in ("COGR_CONFIG", "COGR_OPENSEARCH_URL", "COGR_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COGR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def doctor(elsewhere: Path, cogr_ops: Command) -> Command:
    return partial(cogr_ops, "doctor")


def by_name() -> dict[str, Finding]:
    return {finding.name: finding for finding in examine()}


def without(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    """These distributions are not installed."""

    def version(name: str) -> str:
        if name in absent:
            raise PackageNotFoundError(name)
        return installed_version(name)

    monkeypatch.setattr("importlib.metadata.version", version)


def test_every_extra_is_looked_for_by_all_that_it_requires(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "vllm-cpu"}
    assert extras <= by_name().keys()
    assert missing_packages() == missing_packages("train") == []
    without(monkeypatch, "pyroaring", "lightgbm", "granian")
    named = by_name()
    assert (named["cogr"].state, named["cogr"].detail) == ("missing", "without pyroaring")
    assert named["serve"].detail == "without granian"
    # An extra requires what the extras that it names require.
    assert "lightgbm" in named["compare"].detail
    assert named["compare"].fix == "pip install 'cogr[compare]'"


def test_what_is_not_ok_says_how_to_get_it_and_what_is_ok_does_not(
    elsewhere: Path, doctor: Command
) -> None:
    findings = list(examine())
    assert all(bool(finding.fix) == (finding.state != "ok") for finding in findings)
    named = {finding.name: finding for finding in findings}
    looked = {"cogr", "java", "maven", "opensearch", "valkey", "store"}
    assert set(named) >= looked
    assert named["store"].state == "ok"
    told = doctor("--json")
    assert (told.status, told.err) == (0, "")
    assert {one["name"] for one in told.json["findings"]} == set(named)
    # It looks and leaves nothing.
    assert not list(elsewhere.iterdir())


def test_a_broken_configuration_and_a_cluster_that_is_away_are_findings_not_failures(
    elsewhere: Path, doctor: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "cogr.toml").write_text("[dataset]\nloader = 'beir'\nloadr = 'beir'\n")
    ended = doctor()
    assert ended.status == 0
    assert "dataset.loadr is unknown" in ended.out
    (elsewhere / "cogr.toml").write_text(
        "[dataset]\nloader = 'beir'\n[opensearch]\nurl = 'http://127.0.0.1:9'\n"
    )
    named = by_name()
    assert named["opensearch"].state == "missing"
    assert "127.0.0.1:9" in named["opensearch"].detail


def test_a_missing_tool_is_missing_and_a_broken_core_is_exit_1(
    elsewhere: Path, doctor: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(elsewhere))
    assert by_name()["maven"].state == "missing"
    without(monkeypatch, "pyroaring")
    assert doctor().status == 1
