"""A Valkey and an OpenSearch of the drill's own, which may be killed and come back on the same port
with the same data.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from typing import Any

from cogr.errors import CogrError
from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import OpenSearchSettings
from indexers.fleet.broker import make_app
from ops.servers import OpenSearchSpec, ServerSpec, ValkeySpec, start, stop
from tests.owned_servers import BRIEF, start_owned

NAME = f"tests-{os.getpid()}-drill"


class Mortal:
    """A server that may be killed."""

    def __init__(self, wanted: ServerSpec) -> None:
        self.state = start_owned(wanted)
        self._wanted = replace(wanted, port=self.state.port)

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
