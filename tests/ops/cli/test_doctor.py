"""`cogr-ops doctor`: what it says is compared with what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.cli.servers import Finding, examine_installation
from tests.commands import Command


@pytest.fixture
def elsewhere(tmp_path: Path, no_other_settings: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and cache, and no setting from outside."""
    monkeypatch.setenv("COGR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_name() -> dict[str, Finding]:
    return {finding.name: finding for finding in examine_installation()}


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
