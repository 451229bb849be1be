"""The sample shop and the demo: `cogr-train demo` sends 400 self-written items through the whole
path, training included.

`run_demo` is the command, `CATALOGUE` the folder of the bundled shop (loader `jsonl`), `catalogue`
the script that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

CATALOGUE = Path(__file__).parent / "data"
"""The bundled catalogue: what `trainers.demo.shop.make_catalogue(0)` makes."""


def run_demo(
    backend: Literal["memory", "opensearch"],
    out: Path,
    json_mode: bool = False,
    more: Sequence[str] = (),
) -> None:
    """Run the demo and print what it found. See `trainers.demo.run.Demo` for the steps.

    Args:
        backend: where the shop is indexed; for opensearch without a URL a server is started and
            stopped again.
        out: folder for configuration, data, snapshots, the training run, summary.json and
            report.html.
        json_mode: one JSON object on standard output instead of tables.
        more: `key=value` settings over the sample's own, such as fewer training steps.

    Raises:
        UserError: the folder belongs to something else or can't be written; a package is missing; a
            setting is none.
        CheckFailedError: a training stage has collapsed.
        ServiceError: OpenSearch can't be reached or started.
    """
    from trainers.demo.run import run

    run(backend, out, json_mode, more)
