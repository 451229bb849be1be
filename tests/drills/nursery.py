"""Commands that start in milliseconds, and servers of the drill's own, which may be killed and come
back on the same port with the same data.

The commands are forked off a process that has imported everything (multiprocessing's forkserver). A
drill that kills a thousand processes would otherwise spend its time on imports. What is forked is a
process like any other: it runs the command's own `main`, has its own locks and connections, and
dies of signals. Linux only.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cogr.errors import CogrError
from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import OpenSearchSettings
from indexers.rebuild.fleet.broker import make_app
from ops.servers import OpenSearchSpec, ServerSpec, ValkeySpec, start, stop
from tests.owned_servers import BRIEF, start_owned

IMPORTED = (
    "celery.apps.worker",
    "celery.concurrency.thread",
    "celery.worker.autoscale",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "indexers.backends.opensearch",
    "indexers.cli.snapshots",
    "indexers.rebuild.fleet.worker",
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


# Servers


NAME = f"tests-{os.getpid()}-drill"


class Mortal:
    """A server that may be killed."""

    def __init__(self, wanted: ServerSpec) -> None:
        self.state = start_owned(wanted)
        self._wanted = replace(wanted, port=urlsplit(self.state.url).port)

    def kill(self) -> None:
        """SIGKILL; its process is gone when this returns."""
        os.kill(self.state.pid, signal.SIGKILL)
        while self.state.running:
            time.sleep(0.01)

    def revive(self) -> None:
        """Start it on its old port, which its clients may hold on to for a moment."""
        deadline = time.monotonic() + 300
        while True:
            try:
                self.state = start(self._wanted)
                return
            except CogrError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def close(self) -> None:
        """Stop and remove it."""
        stop(self.state.kind, self.state.name, remove=True)


class Broker(Mortal):
    """A Valkey."""

    def __init__(self) -> None:
        super().__init__(ValkeySpec(name=NAME, port=0))

    def die(self) -> bool:
        """SIGKILL it and start it again."""
        self.kill()
        self.revive()
        return True

    def call(self, *words: str) -> Any:
        """One command of its own language, such as FLUSHALL."""
        app = make_app(RedisSettings(url=self.state.url))
        with app.connection_for_write() as connection:
            return connection.default_channel.client.execute_command(*words)


class Node(Mortal):
    """An OpenSearch. Its return takes seconds, so it comes back while the drill goes on."""

    def __init__(self) -> None:
        super().__init__(OpenSearchSpec(name=NAME, port=0, options=BRIEF))
        self._returning = threading.Thread(target=self.revive)

    @property
    def settings(self) -> OpenSearchSettings:
        return OpenSearchSettings(url=self.state.url)

    def die(self) -> bool:
        """SIGKILL it; False when it is on its way back from the last time."""
        if self._returning.is_alive():
            return False
        self.kill()
        self._returning = threading.Thread(target=self.revive)
        self._returning.start()
        return True

    def back(self) -> None:
        """Wait until it is there."""
        if self._returning.ident is not None:
            self._returning.join()

    def close(self) -> None:
        """Wait until it is there, stop and remove it."""
        self.back()
        super().close()
