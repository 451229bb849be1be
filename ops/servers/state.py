"""What is remembered of a started server: one state.json in its folder, replaced atomically. No process is touched here."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from cogr.errors import StorageError
from ops.servers.process import ProcessId

STATE_FILE = "state.json"


class ServerState(BaseModel):
    """A server that was started here.

    Attributes:
        kind: which server, such as "opensearch".
        name: its name, also the name of its folder.
        url: where it answers; None until it has been seen ready.
        pid, birth: its process, see ProcessId.
        owner_pid, owner_birth: the process that it belongs to and must not outlive (a test session); None for none.
        ca_file: the certificate authority to verify it with, when it speaks TLS.
        credentials_file: a file with `user` and `password`, one "key=value" a line, when it asks for them.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    name: str
    version: str
    pid: int
    birth: str
    started: str
    folder: Path
    data: Path
    log: Path
    url: str | None = None
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
        return self.process.alive()

    @property
    def orphaned(self) -> bool:
        """Whether the process that it belongs to is gone."""
        if self.owner_pid is None or self.owner_birth is None:
            return False
        return not ProcessId(self.owner_pid, self.owner_birth).alive()


def read_state(folder: Path) -> ServerState | None:
    """The state in a server's folder; None when none was written. Raises StorageError when it can't be read."""
    path = folder / STATE_FILE
    try:
        return ServerState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        raise StorageError(
            f"The server state {path} can't be read; end its process if it runs, and delete {folder}."
        ) from error


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


def states(servers: Path, kind: str) -> list[ServerState]:
    """All servers of one kind that were started and not stopped, the latest first; some may have died since."""
    folders = sorted((servers / "instances").glob(f"*/{STATE_FILE}"))
    found = [state for state in (read_state(path.parent) for path in folders) if state is not None]
    return sorted((state for state in found if state.kind == kind), key=lambda state: state.started, reverse=True)
