"""Commands that start in milliseconds: they are forked off a process that has imported everything
(multiprocessing's forkserver).

A drill that kills a thousand processes would otherwise spend its time on imports. What is forked is
a process like any other: it runs the command's own `main`, has its own locks and connections, and
dies of signals. Linux only.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

IMPORTED = (
    "celery.apps.worker",
    "celery.concurrency.thread",
    "celery.worker.autoscale",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "indexers.backends.opensearch",
    "indexers.cli.snapshots",
    "indexers.fleet.worker",
    "indexers.generators.extractive",
    "indexers.rebuild.update",
    "kombu.transport.redis",
    "ops.cli",
    "tests.altered",
)

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""


class Nursery:
    """Starts commands; what runs when it closes is killed."""

    def __init__(self) -> None:
        os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*IMPORTED])
        self._children: list[BaseProcess] = []

    def close(self) -> None:
        """Kill what runs."""
        for child in self._children:
            killed(child)

    def start(self, module: str, arguments: Sequence[str], log: Path) -> BaseProcess:
        """Run `python -m module arguments`; its standard output goes to `log`.out, the rest to
        `log`.
        """
        made = self._context.Process(target=_run, args=(module, [*arguments], str(log)))
        made.start()
        self._children.append(made)
        return made


def killed(child: BaseProcess) -> bool:
    """SIGKILL a process; whether that is what ended it."""
    child.kill()
    child.join()
    return child.exitcode == -signal.SIGKILL


def _run(module: str, arguments: list[str], log: str) -> None:
    """Take on the command line and the files of a process of its own, which ends when its parent
    does, and be that command.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [module, *arguments]
    with Path(log).open("a", encoding="utf-8") as errors, Path(f"{log}.out").open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    importlib.import_module(module).main()
