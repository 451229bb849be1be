"""`cogr-ops doctor`: what it says is compared with what is there."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import defaultdict
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from ops.cli import main
from ops.cli.doctor import EXTRAS, Finding, core_is_broken, examine

ROOT = Path(__file__).parents[3]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and no setting from outside."""
    for name in ("COGR_CONFIG", "COGR_OPENSEARCH_URL", "COGR_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctor(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cogr-ops", "doctor", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_every_extra_is_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"dev"}


def test_each_extra_is_looked_for_by_all_that_it_declares() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    imported = defaultdict(set)
    for module, distributions in packages_distributions().items():
        for name in distributions:
            imported[name.lower().replace("_", "-")].add(module)

    def needs(extra: str) -> set[str]:
        names = {re.split(r"[\[<>=]", requirement)[0].lower() for requirement in declared[extra]}
        more = {
            inner
            for line in declared[extra]
            for found in re.findall(r"^cogr\[(.+)\]", line)
            for inner in found.split(",")
        }
        return names - {"cogr"} | {name for inner in more for name in needs(inner)}

    absent = {
        (extra, name)
        for extra, modules in EXTRAS.items()
        for name in needs(extra)
        # Namespaces have many distributions; what is not installed here has no modules to compare.
        if name in imported and not imported[name] & set(modules)
    }
    assert absent == set()
    assert {"cachetools", "granian"} <= set(EXTRAS["serve"])


def test_what_is_not_ok_says_how_to_get_it_and_what_is_ok_does_not(elsewhere: Path) -> None:
    findings = examine()
    assert all(bool(finding.fix) == (finding.state != "ok") for finding in findings)
    assert not core_is_broken(findings)
    named = by_name(findings)
    assert set(named) >= {
        "python",
        "cogr",
        "store",
        "java",
        "maven",
        "opensearch",
        "valkey",
        "processors",
        "memory",
        "gpu",
    }
    assert (named["configuration"].state, named["store"].state) == ("note", "ok")


def test_json_says_the_same_and_nothing_else(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(monkeypatch, "--json") == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["ok"] is True
    assert {finding["name"] for finding in told["findings"]} >= {"cogr", "java", "opensearch"}
    assert err == ""


def test_a_broken_configuration_and_a_cluster_that_is_away_are_findings_not_failures(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "cogr.toml").write_text("[dataset]\nloader = 'beir'\nloadr = 'beir'\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    assert doctor(monkeypatch) == 0
    assert "dataset.loadr is unknown" in capsys.readouterr().out
    (elsewhere / "cogr.toml").write_text(
        "[dataset]\nloader = 'beir'\n[opensearch]\nurl = 'http://127.0.0.1:9'\n"
    )
    named = by_name(examine())
    assert named["configuration"].state == "ok"
    assert named["opensearch"].state == "missing"
    assert "127.0.0.1:9" in named["opensearch"].detail
    assert named["processors"].state == "note"


def test_a_missing_tool_is_missing(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(elsewhere))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    named = by_name(examine())
    assert named["maven"].state == "missing"
    assert named["gpu"].detail == "none"


def test_a_broken_core_is_exit_1(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # None makes an import fail, as if the module were not installed.
    monkeypatch.setitem(sys.modules, "pyroaring", None)
    assert doctor(monkeypatch) == 1
    assert by_name(examine())["cogr"].state == "missing"


def test_another_distribution_with_a_package_of_our_name_is_told(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "namesakes" not in by_name(examine())
    charmed = elsewhere / "ops-3.0.dist-info"
    charmed.mkdir()
    (charmed / "METADATA").write_text("Metadata-Version: 2.1\nName: ops\nVersion: 3.0\n")
    (charmed / "top_level.txt").write_text("ops\n")
    monkeypatch.syspath_prepend(elsewhere)
    found = by_name(examine())["namesakes"]
    assert (found.state, found.detail) == ("note", "ops brings a package ops too")
    assert not core_is_broken(examine())
