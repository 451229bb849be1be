"""What the commands of all local servers share: stop, status, and the answer of one that the
environment names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import typer
from rich.console import Console

from cogr.errors import CheckFailedError, ServiceError
from indexers.cli import console
from ops.cli.showing import payload, show, stop_them
from ops.servers.configured import Answer
from ops.servers.state import ServerState

Json = typer.Option(False, "--json", help="One JSON object on standard output.")


class Servers(Protocol):
    """Finds the servers of a kind."""

    def __call__(
        self, name: str | None = None, *, stopped: bool = False
    ) -> Sequence[ServerState]: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of server.

    Attributes:
        group: the group of its commands.
        variable: the environment variable that names one that runs elsewhere.
        servers: those that were started here, all or the one of a name; with `stopped`, those that
            were stopped too.
        configured: what the one that the environment names says; None when it names none.
        product: what runs.
    """

    group: str
    variable: str
    servers: Servers
    configured: Callable[[], Answer | None]
    product: str

    def add_to(self, app: typer.Typer) -> None:
        """Add stop and status."""
        _add_stop(app, self)
        _add_status(app, self)

    def use_configured(self, *, as_json: bool) -> bool:
        """Show the server that the environment names, in place of starting one; False when it names
        none.

        Raises:
            ServiceError: it does not answer.
        """
        answer = self.configured()
        if answer is None:
            return False
        if answer.problem is not None:
            raise ServiceError(
                f"{answer.problem} Its URL comes from the environment; unset it to start a "
                "server here."
            )
        console.note(f"The environment names a server ({self.variable}): nothing is started.")
        console.emit(as_json, _payload(answer), lambda out: _show(out, answer))
        return True


def _add_stop(app: typer.Typer, kind: Kind) -> None:
    @app.command()
    def stop(
        name: str = typer.Option(
            None, help="Name of the server.  [default: the only one there is]"
        ),
        every: bool = typer.Option(False, "--all", help="Stop all of them."),
        remove: bool = typer.Option(
            False, "--remove", help="Delete data, logs and configuration too."
        ),
        as_json: bool = Json,
    ) -> None:
        """Stop a server that was started here.

        Its data stays, and the next start goes on with it.
        """
        # The data of one that was stopped can still be removed, when it is named.
        servers = kind.servers(name, stopped=remove and (every or name is not None))
        stop_them(servers, name, kind.group, every=every, remove=remove, as_json=as_json)


def _add_status(app: typer.Typer, kind: Kind) -> None:
    @app.command()
    def status(
        name: str = typer.Option(
            None, help="Name of the server.  [default: all; the latest comes first]"
        ),
        as_json: bool = Json,
    ) -> None:
        """What runs, and where, and what was stopped. Exit status 1 when nothing runs, 3 when what
        the environment names is away.

        `url` in the JSON is the one that commands should use.
        """
        answer = kind.configured() if name is None else None
        servers = kind.servers(name, stopped=True)
        running = [server for server in servers if server.running]
        found: dict[str, Any] = {"running": False, "url": None}
        if answer is not None:
            found = _payload(answer)
        elif running:
            found = payload(running[0])
        found["servers"] = [payload(server) for server in servers]

        def human(out: Console) -> None:
            if answer is not None:
                _show(out, answer)
            show(out, servers)

        console.emit(as_json, found, human)
        _check_running(kind, answer, servers, name)


def _check_running(
    kind: Kind, answer: Answer | None, servers: Sequence[ServerState], name: str | None
) -> None:
    """Raise ServiceError when what the environment names is away, CheckFailedError when none was
    started or none runs.
    """
    if answer is not None:
        if answer.problem is not None:
            raise ServiceError(answer.problem)
    elif not any(server.running for server in servers):
        named = name or (servers[0].name if servers else None)
        again = f" --name {named}" if named else ""
        what = f"{name} does not run" if name else f"No {kind.product} runs"
        raise CheckFailedError(f"{what} here; start one with cogr-ops {kind.group} start{again}.")


def _payload(answer: Answer) -> dict[str, Any]:
    shown = {
        "running": answer.problem is None,
        "local": False,
        "url": answer.url,
        "version": answer.version,
    }
    return shown if answer.problem is None else {**shown, "problem": answer.problem}


def _show(out: Console, answer: Answer) -> None:
    said = answer.problem or f"version {answer.version}"
    out.print(f"{answer.url} (from the environment): {said}", soft_wrap=True)
