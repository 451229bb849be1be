"""A Valkey and an OpenSearch of the drill's own, which may be killed and come back on the same port
with the same data.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from cogr.errors import CogrError
from cogr.settings import OpenSearchSettings
from cogr.settings.fleet import RedisSettings
from indexers.fleet.broker import make_app
from ops.servers import instances, opensearch, valkey
from ops.servers.instances import ServerState

BALLAST = "ballast"


class Broker:
    """A Valkey."""

    def __init__(self, memory: str = "256mb") -> None:
        name = f"tests-{os.getpid()}-drill-valkey"
        self._wanted = valkey.ValkeySpec(name=name, port=0, memory=memory, owner=os.getpid())
        instances.reap_orphans(self._wanted.kind)
        self.state = instances.start(self._wanted).state
        port = urlsplit(str(self.state.url)).port
        self._wanted = valkey.ValkeySpec(name=name, port=port, memory=memory, owner=os.getpid())

    @property
    def redis(self) -> RedisSettings:
        return valkey.connection(self.state)

    def die(self) -> bool:
        """SIGKILL it and start it again."""
        _kill(self.state)
        self.state = _started(lambda: instances.start(self._wanted).state)
        return True

    def call(self, *words: str) -> Any:
        """One command of its own language, such as FLUSHALL."""
        with make_app(self.redis).connection_for_write() as connection:
            return connection.default_channel.client.execute_command(*words)

    def fill(self) -> None:
        """Write until its memory is full."""
        from redis.exceptions import OutOfMemoryError

        for size in (20_000, 500, 1):
            with contextlib.suppress(OutOfMemoryError):
                while True:
                    self.call("RPUSH", BALLAST, "x" * size)

    def stop(self) -> None:
        instances.stop(self.state, remove=True)


class Node:
    """An OpenSearch. Its return takes seconds, so it comes back while the drill goes on."""

    def __init__(self) -> None:
        name = f"tests-{os.getpid()}-drill-node"
        self._wanted = opensearch.OpenSearchSpec(name=name, port=0, brief=True, owner=os.getpid())
        instances.reap_orphans(self._wanted.kind)
        self.state = instances.start(self._wanted).state
        port = urlsplit(str(self.state.url)).port
        self._wanted = opensearch.OpenSearchSpec(
            name=name, port=port, brief=True, owner=os.getpid()
        )
        self._returning: threading.Thread | None = None

    @property
    def settings(self) -> OpenSearchSettings:
        return opensearch.connection(self.state)

    def die(self) -> bool:
        """SIGKILL it; False when it is on its way back from the last time."""
        if self._returning is not None and self._returning.is_alive():
            return False
        _kill(self.state)
        self._returning = threading.Thread(target=self._return)
        self._returning.start()
        return True

    def _return(self) -> None:
        self.state = _started(lambda: instances.start(self._wanted).state)

    def back(self) -> None:
        """Wait until it is there."""
        if self._returning is not None:
            self._returning.join()

    def stop(self) -> None:
        self.back()
        instances.stop(self.state, remove=True)


def _started(start: Callable[[], ServerState]) -> ServerState:
    """Start it on its old port, which its clients may hold on to for a moment."""
    deadline = time.monotonic() + 300
    while True:
        try:
            return start()
        except CogrError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _kill(state: ServerState) -> None:
    os.kill(state.pid, signal.SIGKILL)
    while state.running:
        time.sleep(0.01)
