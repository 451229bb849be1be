"""Processes that run `cogr-index` commands at the same moment, many times over, without starting
anew for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.commands import Ended

_WORKER = """
import contextlib, io, json, sys, time, traceback
from indexers import cli
import indexers.release.inventory, indexers.release.order
import indexers.backends.memory, indexers.backends.opensearch

print("ready", flush=True)
for line in sys.stdin:
    at, arguments = json.loads(line)
    sys.argv = ["cogr-index", *arguments]
    out, err = io.StringIO(), io.StringIO()
    while time.time() < at:
        pass
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        except BaseException:
            status = 70
            traceback.print_exc()
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""
_HEAD_START = 0.005
"""Seconds between the order and the moment at which all of them begin."""


class Racers:
    """Some processes with one working folder, each waiting for its next command."""

    def __init__(self, count: int, folder: Path) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", _WORKER]
        self.processes = [
            subprocess.Popen(command, cwd=folder, text=True, **pipes) for _ in range(count)
        ]  # type: ignore[call-overload]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def run(self, *commands: list[str], apart: float = 0.0) -> list[Ended]:
        """Run one command in each process, each `apart` seconds after the one before; how they
        ended, in their order.
        """
        begin = time.time() + _HEAD_START
        used = list(zip(self.processes, commands, strict=False))
        for number, (process, arguments) in enumerate(used):
            assert process.stdin is not None
            process.stdin.write(json.dumps([begin + number * apart, arguments]) + "\n")
            process.stdin.flush()
        return [Ended(*json.loads(process.stdout.readline())) for process, _ in used]

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


@contextmanager
def racers(count: int, folder: Path) -> Iterator[Racers]:
    """Processes for the time of the block."""
    made = Racers(count, folder)
    try:
        yield made
    finally:
        made.close()
