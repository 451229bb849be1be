"""`cogr-ops wait` says for what it waits, and does not wait where only another configuration would
help.

Services that come late are in tests/charts/test_processes.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.cli import main
from tests.commands import Ended, run_here
from tests.ops.broken_servers import broken


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    file = tmp_path / "cogr.toml"
    file.write_text('[dataset]\nloader = "jsonl"\npath = "."\n')
    return file


def wait(
    monkeypatch: pytest.MonkeyPatch,
    capture: pytest.CaptureFixture[str],
    file: Path,
    *sets: str,
    timeout: int,
) -> Ended:
    given = [part for one in sets for part in ("--set", one)]
    return run_here(
        main, monkeypatch, capture, "cogr-ops", "wait", "--timeout", timeout, "-c", file, *given
    )


@pytest.mark.parametrize("fault", ["absent", "error", "web page"])
@pytest.mark.parametrize(
    ("name", "setting"), [("OpenSearch", "opensearch.url=http"), ("Redis", "redis.url=redis")]
)
def test_it_says_for_what_it_waits(
    name: str,
    setting: str,
    fault: str,
    configured: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with broken(fault) as port:
        ended = wait(monkeypatch, capsys, configured, f"{setting}://127.0.0.1:{port}", timeout=0)
    assert ended.status == 3
    assert f"Waiting for {name}: " in ended.err
    assert f"127.0.0.1:{port}" in ended.err
    assert f"{name} did not answer in time" in ended.sentence


def test_half_of_the_credentials_is_an_error_at_once(
    configured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ("opensearch.url=https://opensearch.data.svc:9200", "opensearch.username=cogr")
    ended = wait(monkeypatch, capsys, configured, *sets, timeout=600)
    assert ended.status == 2
    assert "opensearch.username and opensearch.password go together" in ended.sentence
    assert "Waiting" not in ended.err


def test_nothing_to_wait_for_is_no_error(
    configured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wait(monkeypatch, capsys, configured, timeout=0).status == 0
