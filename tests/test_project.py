"""The project's own promises: imports, function sizes, no private words."""

from __future__ import annotations

import ast
import re
import statistics
import sys
from typing import Any

import pytest
import yaml

import cogr
from tests.commands import ran
from tests.documents import ROOT

PACKAGES = ("cogr", "indexers", "trainers", "ops")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
HEAVY = (
    *("torch", "transformers", "vllm", "trl", "lightgbm", "sklearn", "scipy", "pandas"),
    *("opensearchpy", "bm25s", "celery", "kombu", "redis"),
)


@pytest.mark.parametrize(
    "module", ["cogr.matching.mirror, cogr.differences", "indexers.cli", "trainers.cli", "ops.cli"]
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert ran(sys.executable, "-c", code, cwd=ROOT).strip() == "[]"


def test_the_expander_needs_no_celery() -> None:
    code = "import sys; sys.modules.update(celery=None, kombu=None); import ops.expander.app"
    ran(sys.executable, "-c", code, cwd=ROOT)


def test_functions_are_small() -> None:
    sizes = [
        (f"{path.name}:{node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert statistics.quantiles([size for _, size in sizes], n=10)[-1] <= 35
    assert [name for name, size in sizes if size > 80] == []


KINDS = {".css", ".Dockerfile", ".html", ".java", ".js", ".sh", ".toml", ".yml"}
FOLDERS = (".github", "benchmarks", "examples", "indexers", "ops", "requirements", "tests")


def test_no_line_has_more_than_a_hundred_columns() -> None:
    """Python's lines are ruff's business, those of Markdown test_docs.py's."""
    nested = [path for name in (*FOLDERS, "trainers") for path in (ROOT / name).rglob("*")]
    brought = {"node_modules", "target"}
    ours = [path for path in nested if path.suffix in KINDS and not brought & set(path.parts)]
    files = [*ours, *ROOT.glob("*.toml"), ROOT / "Makefile", ROOT / "CITATION.cff"]
    assert {path.suffix for path in ours} == KINDS
    assert [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > 100
    ] == []


def test_the_version_is_one() -> None:
    said = {
        "charts/cogr/Chart.yaml": r'appVersion: "?([^"\n]+)',
        "ops/clients/python/pyproject.toml": r'\nversion = "(.+)"',
        "ops/clients/javascript/package.json": r'"version": "(.+)"',
        "ops/clients/java/pom.xml": r"<version>(.+)</version>",
        "CITATION.cff": r'\nversion: "?([^"\n]+)',
    }
    for file, pattern in said.items():
        found = re.search(pattern, (ROOT / file).read_text("utf-8"))
        assert (file, found and found[1]) == (file, cogr.__version__)


def workflows() -> dict[str, dict[str, Any]]:
    folder = ROOT / ".github" / "workflows"
    return {path.name: yaml.safe_load(path.read_text("utf-8")) for path in folder.glob("*.yml")}


def test_workflows_run_what_there_is() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    jobs = [job for flow in workflows().values() for job in flow["jobs"].values()]
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    asked = {target for run in commands for target in _targets(run)}
    assert {"test-lowest", "chart-test", "clients-test", "images", "drill"} <= asked <= targets
    assert ".ci/run" in commands


def _targets(command: str) -> list[str]:
    found = re.search(r"\bmake ((?:[\w-]+ ?)+)$", command)
    return found[1].split() if found else []
