"""`cogr-ops`: the command line of what runs beside indexing and training. Each group of commands has its own module."""

from __future__ import annotations

import typer

from indexers import console
from ops.servers.cli import app as opensearch_app

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Local servers and the state of the installation.")
app.add_typer(opensearch_app, name="opensearch")


@app.callback()
def _commands() -> None:
    """Keeps the group form while there is one command."""


def main() -> None:
    """Entry point of `cogr-ops`."""
    console.run(app)


if __name__ == "__main__":
    main()
