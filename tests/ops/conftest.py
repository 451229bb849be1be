"""`cogr-ops` with a cache folder of the test's own, and no server left in it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cogr.errors import StorageError
from cogr.settings.serving import OpenSearchSettings
from ops.servers import read_state
from tests.commands import Command, Ended
from tests.ops.clients.client_worlds import ClientWorld, client_world


@pytest.fixture(scope="session")
def world(
    tmp_path_factory: pytest.TempPathFactory, opensearch: OpenSearchSettings
) -> Iterator[ClientWorld]:
    """What the clients' tests search."""
    with client_world(tmp_path_factory.mktemp("client"), opensearch) as made:
        yield made


@pytest.fixture
def cache() -> Iterator[Path]:
    """A cache folder of this test's own that every user can enter; what still runs in it at the end
    is stopped.
    """
    with tempfile.TemporaryDirectory(prefix="cogr-tests-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        for path in Path(folder).glob("servers/*/*/*/state.json"):
            with suppress(StorageError):
                if (server := read_state(path.parent)) is not None:
                    server.end()


@pytest.fixture
def alone(
    cache: Path, no_other_settings: None, monkeypatch: pytest.MonkeyPatch, cogr_ops: Command
) -> Command:
    """Runs `cogr-ops` in this process, in an environment with this cache and the keywords, and no
    other variable of ours.
    """

    monkeypatch.setenv("COGR_CACHE_DIR", str(cache))

    def run(*arguments: str, **variables: str) -> Ended:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return cogr_ops(*arguments)

    return run
