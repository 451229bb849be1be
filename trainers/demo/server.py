"""An OpenSearch for the time of a demo: the one that is set, the local one that runs already, or a
new one, stopped at the end.

It calls `cogr-ops` as a command, since trainers don't import ops. It knows nothing of shops or
keywords.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cogr.errors import ServiceError, UserError
from indexers.cli.console import INTERRUPTED


@dataclass(frozen=True)
class Server:
    """Where OpenSearch is. `ours` says that it was started for this block and ends with it."""

    url: str
    ours: bool


@contextmanager
def search_server(url: str | None) -> Iterator[Server]:
    """An OpenSearch to use inside the block.

    Args:
        url: one that is set already; None to start one (or to use the local one that runs).

    Raises:
        UserError, ServiceError: none can be started; the reason is on standard error already.
    """
    if url is not None:
        yield Server(url, ours=False)
        return
    started = _cogr_ops("start")
    server = Server(started["url"], ours=not started["already_running"])
    try:
        yield server
    finally:
        if server.ours:
            _cogr_ops("stop", "--name", started["name"])


def _cogr_ops(*arguments: str) -> dict[str, str]:
    """Run `cogr-ops opensearch ... --json`; what it says on the way goes to our standard error."""
    command = [sys.executable, "-m", "ops.cli", "opensearch", *arguments, "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if ended.returncode:
        sentence = (
            f"cogr-ops opensearch {arguments[0]} ended with status {ended.returncode}, for the "
            "reason above; "
            "mend that, or set COGR_OPENSEARCH_URL to a server of yours."
        )
        raise (
            ServiceError(sentence)
            if ended.returncode == ServiceError.exit_status
            else UserError(sentence)
        )
    answer: dict[str, str] = json.loads(ended.stdout)
    return answer
