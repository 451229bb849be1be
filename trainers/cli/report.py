"""`cogr-train report`: options and output only; what it writes is `page`'s business."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from indexers.cli import console
from indexers.cli.options import Call, common_options
from trainers.cli.training import RunOption


@common_options(backend=False)
def report(
    call: Call,
    run: RunOption = "main",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="File to write; report.html in the run's folder by default."
        ),
    ] = None,
) -> None:
    """Write an HTML report of a run: one file, no network. Needs no torch."""
    from trainers.report.page import check_extra, write_report
    from trainers.training.run_folder import open_run

    check_extra()
    opened = open_run(call.workspace, run)
    file = out or opened.folder() / "report.html"
    size = write_report(call.workspace, opened, file, console.note)
    payload = {
        "run": opened.name,
        "report": file,
        "bytes": size,
        "rounds": len(opened.state().finished),
    }
    call.emit(
        payload,
        lambda print_to: print_to.print(f"{file} ({size / 1000:,.0f} kB); open it in a browser"),
    )
