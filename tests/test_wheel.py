"""The wheel that is built from this tree installs where nothing of it was, without torch, and runs
outside the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.commands import ran
from tests.documents import ROOT

HEAVIEST = 300_000_000
"""Bytes of a base install. Of 273 MB, Arrow (164) and NumPy (57) are 221."""
COMMANDS = ("cogr-index", "cogr-train", "cogr-ops")


def uv() -> str:
    found = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("uv is not installed")
    return found


def run(*command: str | Path, cwd: Path) -> str:
    """Run outside the checkout, without its variables."""
    kept = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    return ran(*command, cwd=cwd, env=kept)


@pytest.mark.slow
def test_the_wheel_installs_without_torch_and_its_commands_run(tmp_path: Path) -> None:
    run(uv(), "build", "--quiet", "--wheel", "--out-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("cogr-*.whl")
    run(uv(), "venv", "--quiet", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(uv(), "pip", "install", "--quiet", "--python", python, wheel, cwd=tmp_path)

    look = "import importlib.util as u, cogr; print(u.find_spec('torch') is None, cogr.__file__)"
    without_torch, place = run(python, "-c", look, cwd=tmp_path).split()
    assert without_torch == "True"
    assert Path(place).is_relative_to(tmp_path)
    for command in COMMANDS:
        assert "Usage" in run(python.parent / command, "--help", cwd=tmp_path)
    assert "ok       cogr" in run(python.parent / "cogr-ops", "doctor", cwd=tmp_path)
    (packages,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    files = [file for file in packages.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    assert sum(file.stat().st_size for file in files) < HEAVIEST
    assert not [name for name in ("scipy", "pandas") if (packages / name).exists()]


@pytest.mark.drill
def test_the_line_of_the_readme_installs_from_a_clone_and_extras_come_later(tmp_path: Path) -> None:
    line = re.search(r"pip install '\.\[(\w+)\]'", (ROOT / "README.md").read_text("utf-8"))
    assert line is not None
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    clone = tmp_path / "clone"
    shutil.copytree(
        ROOT, clone, ignore=shutil.ignore_patterns(".*", "node_modules", "site", "dist")
    )
    run(python, "-m", "pip", "install", "--quiet", f".[{line[1]}]", cwd=clone)
    run(python, "-c", "import lightgbm", cwd=tmp_path)
    # What errors say for a missing extra: nothing is fetched of cogr itself.
    run(python, "-m", "pip", "install", "--quiet", "cogr[openai]", cwd=tmp_path)
    run(python, "-c", "import openai", cwd=tmp_path)
