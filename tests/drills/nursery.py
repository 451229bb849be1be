"""Commands that start in milliseconds: a process that has imported everything forks them off.

A drill that kills a thousand processes would else spend its time on imports. What is forked is a
process like any other: it runs the command's own `main`, has its own locks and connections, and
dies of signals. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

IMPORTED = (
    "celery.app.amqp",
    "celery.apps.worker",
    "celery.concurrency.thread",
    "celery.worker.autoscale",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "cogr.datasets.loaders",
    "indexers.backends.memory",
    "indexers.backends.opensearch",
    "indexers.cli",
    "indexers.fleet.coordinator",
    "indexers.fleet.worker",
    "indexers.release.gate",
    "indexers.generators.scripted",
    "indexers.rebuild.run",
    "indexers.cli.reports",
    "indexers.rebuild.update",
    "kombu.transport.redis",
    "opensearchpy",
    "ops.cli",
    "ops.cli.serve",
    "pyarrow.compute",
    "pyarrow.parquet",
    "rich.progress",
    "tests.altered",
    "tests.drills.reader",
)

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""


class Nursery:
    """Starts commands, says how they ended. Ends with everything that it has started."""

    def __enter__(self) -> Self:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.drills.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._talking = threading.Lock()
        self._children: list[Child] = []
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def start(self, module: str, arguments: Sequence[str], log: Path) -> Child:
        """Run `python -m module arguments`; its standard output goes to `log`.out, the rest to
        `log`.
        """
        child = Child(
            self, int(self.ask(start=module, arguments=list(arguments), log=str(log))), log
        )
        self._children.append(child)
        return child

    def ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._talking:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


@dataclass
class Child:
    """A process that was forked off."""

    nursery: Nursery
    pid: int
    log: Path
    status: int | None = None

    def poll(self) -> int | None:
        """Its exit status, minus the signal that ended it, or None while it runs."""
        if self.status is None:
            self.status = self.nursery.ask(poll=self.pid)
        return self.status

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when it has ended.

        Its id is not used again before `poll` has seen the end.
        """
        if self.poll() is not None:
            return False
        os.kill(self.pid, number)
        return True

    def kill(self) -> bool:
        """SIGKILL it; whether that is what ended it."""
        if self.send(signal.SIGKILL):
            self.status = self.nursery.ask(wait=self.pid)
        return self.status == -signal.SIGKILL

    @property
    def said(self) -> str:
        """Its standard output."""
        return Path(f"{self.log}.out").read_text("utf-8")


def _serve() -> Callable[[], None] | None:
    """Answer questions until the other end is closed. In a child: what it has to do."""
    for line in sys.stdin:
        question = json.loads(line)
        if module := question.get("start"):
            pid = os.fork()
            if pid == 0:
                _become(module, question["arguments"], question["log"])
                main: Callable[[], None] = importlib.import_module(module).main
                return main
            answer: int | None = pid
        elif (pid := question.get("poll")) is not None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])
        print(json.dumps(answer), flush=True)
    return None


def _become(module: str, arguments: list[str], log: str) -> None:
    """Take on the command line and the files of a process of its own, which ends when the nursery
    does.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    sys.argv = [module, *arguments]
    with (
        Path(log).open("a", encoding="utf-8") as errors,
        Path(f"{log}.out").open("w", encoding="utf-8") as out,
    ):
        os.dup2(out.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a process with threads must not be forked"
    run = _serve()
    if run is not None:
        with contextlib.suppress(BrokenPipeError):
            run()
