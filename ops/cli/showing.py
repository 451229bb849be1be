"""What the commands of all local servers print, and the choice of those that `stop` means.

Starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from cogr.errors import UserError
from indexers.cli import console
from ops.servers.instances import Started, stop
from ops.servers.state import ServerState


def payload(state: ServerState) -> dict[str, Any]:
    """A server for --json."""
    shown = state.model_dump(
        exclude={"kind", "birth", "owner_pid", "owner_birth"}, exclude_none=True
    )
    return {"running": state.running, "local": True, "url": None, **shown}


def show(out: Console, servers: Sequence[ServerState]) -> None:
    """Servers for people."""
    for server in servers:
        ended = "died" if server.stopped is None else "stopped"
        state = ("running" if server.url else "starting") if server.running else ended
        out.print(f"{server.name}: {state}{f', {server.url}' if server.url else ''}")
        lines = {
            "version": server.version,
            "process": server.pid,
            "folder": server.folder,
            "log": server.log,
            "CA file": server.ca_file,
            "credentials": server.credentials_file,
        }
        for label, value in lines.items():
            if value is not None:
                out.print(f"  {label:12} {value}", soft_wrap=True)


def show_started(started: Started, next_command: str, *, as_json: bool) -> None:
    """A server that now runs, and what to type next.

    Args:
        next_command: where the server asks for credentials, reading them comes before it.
    """
    state = started.state
    if started.already:
        console.note(f"{state.name} runs already.")
    found = {**payload(state), "already_running": started.already}
    console.emit(as_json, found, lambda out: show(out, [state]))
    credentials = f"set -a; . {state.credentials_file}; set +a; " if state.credentials_file else ""
    console.next_command(f"{credentials}{next_command}")


def stop_them(
    servers: Sequence[ServerState],
    name: str | None,
    command: str,
    *,
    every: bool,
    remove: bool,
    as_json: bool,
) -> None:
    """Stop the server that is meant, and say so.

    Raises UserError when it is not clear which one.
    """
    if len(servers) > 1 and not every:
        names = ", ".join(server.name for server in servers)
        raise UserError(
            f"Several servers were started here ({names}); name one with --name, or use --all."
        )
    if name is not None and not servers:
        raise UserError(f"No server {name} was started here; see cogr-ops {command} status.")
    stopped = [server.name for server in servers if stop(server, remove=remove)]
    removed = [server.name for server in servers] if remove else []

    def human(out: Console) -> None:
        out.print(f"Stopped: {', '.join(stopped) or 'nothing ran'}.")
        if removed:
            out.print(f"Removed: {', '.join(removed)}.")

    console.emit(as_json, {"stopped": stopped, "removed": removed}, human)
