"""Servers that a run of tests starts, and that the next run removes where it was killed: a file in
the server's folder names the process that it must not outlive.
"""

from __future__ import annotations

import os
from pathlib import Path

from ops.servers import ServerSpec, ServerState, created_at, known, server_folder, start, stop

BRIEF = "-XX:TieredStopAtLevel=1"
"""Options of Java for nodes that live for minutes."""


def start_owned(wanted: ServerSpec, owner: int | None = None) -> ServerState:
    """A running server that belongs to a process, this one by default."""
    reap_orphans(wanted.kind)
    file = _owner_file(wanted.kind, wanted.server_name)
    file.parent.mkdir(parents=True, exist_ok=True)
    pid = owner or os.getpid()
    file.write_text(f"{pid} {created_at(pid)}")
    return start(wanted)


def owner_of(state: ServerState) -> tuple[int, float] | None:
    """The process that a server must not outlive: its id, and when it was created."""
    file = _owner_file(state.kind, state.name)
    if not file.exists():
        return None
    pid, created = file.read_text().split()
    return int(pid), float(created)


def reap_orphans(kind: str) -> None:
    """Stop and remove the servers of a kind whose process is gone."""
    for state in known(kind):
        owner = owner_of(state)
        if owner is not None and created_at(owner[0]) != owner[1]:
            stop(state.kind, state.name, remove=True)


def _owner_file(kind: str, name: str) -> Path:
    return server_folder(kind, name) / "owner"
