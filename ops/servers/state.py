"""What is remembered of a started server: one state.json in its folder, replaced atomically.

No process is touched here.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from cogr.errors import StorageError
from ops.servers.process import ProcessId

STATE_FILE = "state.json"

log = logging.getLogger(__name__)


class ServerState(BaseModel):
    """A server that was started here.

    Attributes:
        kind: which server, such as "opensearch".
        name: its name, also the name of its folder.
        url: where it answers; None until it has been seen ready.
        stopped: when it was stopped; None for one that was not.
        pid, birth: its process, see ProcessId.
        owner_pid, owner_birth: the process that it belongs to and must not outlive (a test
            session); None for none.
        ca_file: the certificate authority to verify it with, when it speaks TLS.
        credentials_file: a file with `user` and `password`, one "key=value" a line, when it asks
            for them.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    name: str
    version: str
    pid: int = Field(gt=0)
    birth: str
    started: str
    folder: Path
    data: Path
    log: Path
    url: str | None = Field(None, pattern=r"^[a-z]+://[A-Za-z0-9.]+:[1-9]\d{0,4}(/\d*)?$")
    stopped: str | None = None
    java: str | None = None
    owner_pid: int | None = None
    owner_birth: str | None = None
    ca_file: Path | None = None
    credentials_file: Path | None = None

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.pid, self.birth)

    @property
    def running(self) -> bool:
        """Whether its process is alive (it may still be starting)."""
        return self.stopped is None and self.process.alive()

    @property
    def port(self) -> int | None:
        """The port of its URL."""
        return urlsplit(self.url).port if self.url else None

    @property
    def orphaned(self) -> bool:
        """Whether the process that it belongs to is gone."""
        if self.owner_pid is None or self.owner_birth is None:
            return False
        return not ProcessId(self.owner_pid, self.owner_birth).alive()


def read_state(folder: Path) -> ServerState | None:
    """The state in a server's folder; None when none was written.

    Raises StorageError when it can't be read.
    """
    path = folder / STATE_FILE
    try:
        state = ServerState.model_validate_json(path.read_bytes())
        if (state.name, state.folder) != (folder.name, folder):
            raise ValueError("it is of another server")
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise StorageError(
            f"The server state {path} can't be read; end its process if it runs, and delete "
            f"{folder}."
        ) from error
    return state


def write_state(state: ServerState) -> None:
    """Replace the state in the server's folder."""
    handle, temporary = tempfile.mkstemp(dir=state.folder, prefix=".tmp-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(state.model_dump_json(indent=1))
    Path(temporary).chmod(0o644)
    Path(temporary).replace(state.folder / STATE_FILE)


def drop_state(folder: Path) -> None:
    """Forget the server; its data and logs stay."""
    (folder / STATE_FILE).unlink(missing_ok=True)


def states(servers: Path, kind: str, *, stopped: bool = False) -> list[ServerState]:
    """All servers of one kind that were started, the latest first; some may have died since. A
    broken state is a warning.

    Args:
        stopped: those that were stopped too, after all others.
    """
    folders = sorted((servers / "instances").glob(f"*/{STATE_FILE}"))
    found = [
        state for path in folders if (state := _read_or_warn(path.parent)) and state.kind == kind
    ]
    latest = sorted(found, key=lambda state: state.started, reverse=True)
    return sorted(
        (s for s in latest if stopped or s.stopped is None),
        key=lambda state: state.stopped is not None,
    )


def _read_or_warn(folder: Path) -> ServerState | None:
    try:
        return read_state(folder)
    except StorageError as error:
        log.warning("%s", error)
        return None
