"""Whole commands in the test's own process and how they ended; programs of other people."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The last line that it wrote to standard error."""
        return self.err.splitlines()[-1]

    def check_refused(self, *says: str, status: int = 2) -> None:
        """One sentence, which says all of this, and nothing else."""
        assert (self.status, self.out) == (status, ""), (self.out, self.err)
        assert self.err.strip().count("\n") == 0, self.err
        assert all(one in self.err for one in says), (self.err, says)


Command = Callable[..., Ended]
MODULES = {"cogr-index": "indexers.cli", "cogr-train": "trainers.cli", "cogr-ops": "ops.cli"}
"""Of our programs."""
UNDER_CI = os.environ.get("CI", "").lower() in ("1", "true")
"""Where no test is skipped for something that it needs."""


def done(command: Command, *arguments: object) -> Any:
    """What a command that ends well says as JSON."""
    ended = command(*arguments, "--json")
    assert ended.status == 0, ended.err
    return ended.json


def rebuilt_pair(command: Command, *flags: object) -> tuple[str, str]:
    """Both sides rebuilt by a command; the ids of the item and the query snapshot."""
    items, queries = (
        done(command, "rebuild", "--side", side, *flags)["snapshot"] for side in ("item", "query")
    )
    return items, queries


def sets(*settings: str) -> list[str]:
    """The flags of a command that set each `key=value`."""
    return [flag for setting in settings for flag in ("--set", setting)]


def run_here(
    main: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    capture: pytest.CaptureFixture[str],
    *argv: object,
) -> Ended:
    """Run a program's `main` with this command line; what was written before is dropped."""
    monkeypatch.setattr(sys, "argv", [*map(str, argv)])
    capture.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    written = capture.readouterr()
    return Ended(int(ended.value.code or 0), written.out, written.err)


def run_program(
    monkeypatch: pytest.MonkeyPatch,
    capture: pytest.CaptureFixture[str],
    name: str,
    *arguments: object,
) -> Ended:
    """Run one of our programs with these arguments."""
    main = importlib.import_module(MODULES[name]).main
    return run_here(main, monkeypatch, capture, name, *arguments)


def ran(*command: str | Path, **options: Any) -> str:
    """Run a program, which must end well. Returns what it wrote to standard output.

    Args:
        options: those of `subprocess.run`.
    """
    line = [*map(str, command)]
    ended = subprocess.run(line, capture_output=True, text=True, check=False, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def program(name: str, package: str = "") -> str:
    """The path of a program. Without it the test is skipped, and fails under CI.

    Args:
        package: the Debian package that has it. Such a program is one that nobody needs to use the
            toolkit, so that CI skips the test too.
    """
    if (found := shutil.which(name)) is None:
        if not package and UNDER_CI:
            pytest.fail(f"No {name} for these tests")
        pytest.skip(f"NO {name.upper()}" + (f": apt-get install {package}" if package else ""))
    return found
