"""`cogr-ops wait` says for what it waits, and does not wait where only another configuration would
help.

Services that come late are in tests/charts/test_processes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import Command, Ended
from tests.ops.broken_servers import broken


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    file = tmp_path / "cogr.toml"
    file.write_text('[dataset]\nloader = "jsonl"\npath = "."\n')
    return file


@pytest.fixture
def wait(configured: Path, cogr_ops: Command) -> Callable[..., Ended]:
    """Run `cogr-ops wait` with settings."""

    def run(*sets: str, timeout: int) -> Ended:
        given = [part for one in sets for part in ("--set", one)]
        return cogr_ops("wait", "--timeout", timeout, "-c", configured, *given)

    return run


@pytest.mark.parametrize("fault", ["absent", "error", "web page"])
@pytest.mark.parametrize(
    ("name", "setting"), [("OpenSearch", "opensearch.url=http"), ("Redis", "redis.url=redis")]
)
def test_it_says_for_what_it_waits(
    name: str, setting: str, fault: str, wait: Callable[..., Ended]
) -> None:
    with broken(fault) as port:
        ended = wait(f"{setting}://127.0.0.1:{port}", timeout=0)
    assert ended.status == 3
    assert f"Waiting for {name}: " in ended.err
    assert f"127.0.0.1:{port}" in ended.err
    assert f"{name} did not answer in time" in ended.sentence


def test_half_of_the_credentials_is_an_error_at_once(wait: Callable[..., Ended]) -> None:
    sets = ("opensearch.url=https://opensearch.data.svc:9200", "opensearch.username=cogr")
    ended = wait(*sets, timeout=600)
    assert ended.status == 2
    assert "opensearch.username and opensearch.password go together" in ended.sentence
    assert "Waiting" not in ended.err


def test_nothing_to_wait_for_is_no_error(wait: Callable[..., Ended]) -> None:
    assert wait(timeout=0).status == 0
