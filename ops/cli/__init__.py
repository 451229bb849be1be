"""`cogr-ops`: the command line of what runs beside indexing and training.

Each group of commands has its own module.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from cogr.errors import CheckFailedError
from indexers.cli import console
from indexers.cli.console import ConfigOption, JsonOption
from ops.cli.serve import backlog, serve, worker
from ops.cli.servers import opensearch_app, redis_app, wait
from ops.cli.shadow import shadow

if TYPE_CHECKING:
    from ops.cli.doctor import Finding

app = console.program(
    "cogr-ops",
    "Workers, the expander, replays of logs, local servers, a check of the installation.",
)
app.add_typer(opensearch_app, name="opensearch")
app.add_typer(redis_app, name="redis")
app.command()(worker)
app.command()(serve)
app.command()(backlog)
app.command()(shadow)
app.command()(wait)


@app.command()
def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check the installation: what is there, what is missing, how to get it.

    Exit status 1 if the package itself is broken.
    """
    from ops.cli.doctor import core_is_broken, examine

    findings = examine(config)
    broken = core_is_broken(findings)
    console.emit(
        as_json,
        {"ok": not broken, "findings": list(map(asdict, findings))},
        lambda out: _print_findings(out, findings),
    )
    if broken:
        raise CheckFailedError("The package itself is broken here; see the first lines.")


def _print_findings(out: Console, findings: list[Finding]) -> None:
    for finding in findings:
        out.print(f"{finding.state:8} {finding.name:14} {finding.detail}", soft_wrap=True)
        if finding.fix:
            out.print(f"{'':8} {'':14} -> {finding.fix}", soft_wrap=True)


def main() -> None:
    """Entry point of `cogr-ops`."""
    console.run(app)
