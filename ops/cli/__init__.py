"""`cogr-ops`: the command line of what runs beside indexing and training.

Each group of commands has its own module.
"""

from __future__ import annotations

from indexers.cli import console
from ops.cli.serve import serve, worker
from ops.cli.servers import doctor, opensearch_app, redis_app
from ops.cli.shadow import shadow

app = console.program(
    "cogr-ops",
    "Workers, the expander, replays of logs, local servers, a check of the installation.",
)
app.add_typer(opensearch_app, name="opensearch")
app.add_typer(redis_app, name="redis")
for command in (worker, serve, shadow, doctor):
    app.command()(command)


def main() -> None:
    console.run(app)
