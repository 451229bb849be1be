"""The project's own promises: imports, function sizes, no private words."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("cogr", "indexers", "trainers", "ops")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
HEAVY = (
    "torch",
    "transformers",
    "vllm",
    "trl",
    "lightgbm",
    "sklearn",
    "scipy",
    "opensearchpy",
    "bm25s",
    "ir_measures",
    "celery",
    "kombu",
    "redis",
)


@pytest.mark.parametrize("module", ["cogr", "cogr.keywords", "cogr.mirror", "indexers.cli", "trainers.cli", "ops.cli"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout.strip() == "[]"


def functions(path: Path) -> list[tuple[str, int]]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(f"{path.name}:{n.name}", (n.end_lineno or 0) - n.lineno + 1) for n in nodes if isinstance(n, kinds)]


def test_functions_are_small() -> None:
    sizes = [pair for path in SOURCES for pair in functions(path)]
    assert statistics.quantiles([size for _, size in sizes], n=10)[-1] <= 35
    assert [name for name, size in sizes if size > 80] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_and_hides_no_error(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert not tree.body or ast.get_docstring(tree)
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.type is None] == []
