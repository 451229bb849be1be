"""SIGKILL of the node in mid-push, and of the pushing process at every step: the same
push goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cogr.errors import CogrError
from cogr.settings.serving import OpenSearchSettings
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.indexes import IndexState, index_name, read_index
from ops.servers import OpenSearchSpec, stop
from tests.indexers.backends.backend_worlds import frozen, random_queries, random_world
from tests.indexers.backends.fault_proxy import Answer, Request, proxy_to
from tests.owned_servers import start_owned

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.fault]


class Mortal:
    """A node of this test's own, which may be killed and started again on the same port
    and data.
    """

    def __init__(self) -> None:
        self._wanted = OpenSearchSpec(name=f"tests-{os.getpid()}-mortal", port=0)
        self.state = start_owned(self._wanted)

    def kill(self) -> None:
        """SIGKILL; when it returns, the port is free."""
        process = psutil.Process(self.state.pid)
        process.kill()
        process.wait(60)

    def restart(self) -> None:
        port = int((self.state.url or "").rsplit(":", 1)[1])
        self.state = start_owned(OpenSearchSpec(name=self._wanted.name, port=port))


@pytest.fixture
def mortal() -> Iterator[Mortal]:
    try:
        node = Mortal()
    except CogrError as error:
        pytest.skip(f"NO OPENSEARCH: {error}")
    yield node
    stop(node.state.kind, node.state.name, remove=True)


PUSH = """
import sys
from cogr.settings import OpenSearchSettings
from cogr.snapshots import open_snapshot
from cogr.store import Store
from indexers.backends.opensearch import OpenSearchBackend, push
push.CHUNK_DOCUMENTS = 10
store = Store(sys.argv[2])
settings = OpenSearchSettings.model_validate_json(sys.argv[1])
OpenSearchBackend(settings, store).push(open_snapshot(store, sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("method", "part", "reached_the_node", "leaves"),
    [
        ("POST", "_bulk", True, "half-written"),
        *(
            pytest.param(*step, marks=pytest.mark.drill)
            for step in (
                ("PUT", "item-r000", False, "nothing"),
                ("PUT", "item-r000", True, "half-written"),
                ("POST", "_forcemerge", False, "half-written"),
                ("PUT", "_block/write", True, "frozen"),
                ("PUT", "_mapping", True, "complete"),
            )
        ),
    ],
)
def test_a_push_killed_at_any_step(
    opensearch: OpenSearchSettings,
    tmp_path: Path,
    method: str,
    part: str,
    reached_the_node: bool,
    leaves: str,
) -> None:
    """Killed when a request arrives, before or after the node got it; the second push finds every
    state that there can be.
    """
    store = Store(tmp_path)
    rows = random_world(50)
    snapshot = frozen(store, "item", rows)
    prefix = f"test-{uuid.uuid4().hex[:8]}"
    settings = opensearch.model_copy(update={"prefix": prefix})
    with proxy_to(settings.url or "") as proxy:
        through = settings.model_copy(update={"url": proxy.url}).model_dump_json()
        process = subprocess.Popen(
            [sys.executable, "-c", PUSH, through, str(tmp_path), snapshot.id]
        )

        def kill(request: Request, forward: Callable[[Request], Answer]) -> Answer | None:
            if not request.is_for(method, part):
                return None
            if reached_the_node:
                forward(request)
            process.kill()
            return 503, b"{}"

        proxy.rewrite = kill
        assert process.wait(60) == -signal.SIGKILL
    backend = OpenSearchBackend(settings, store)
    try:
        assert _describe(read_index(backend.cluster, index_name(prefix, snapshot.id))) == leaves
        backend.push(snapshot)
        assert backend.verify(snapshot, random_queries(rows, 5, 9)).documents == len(rows)
    finally:
        backend.cluster.call("DELETE", f"/{prefix}-*", doing="cleaning up")
        backend.close()


def _describe(state: IndexState | None) -> str:
    if state is None:
        return "nothing"
    if state.complete:
        return "complete"
    return "frozen" if state.write_blocked else "half-written"
