"""`cogr-train report`: its options and its output; `trainers.report.page` writes the files."""

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
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures", help="Write every figure into this folder, too: SVG and PNG for a paper."
        ),
    ] = None,
) -> None:
    """Write an HTML report of a run: one file, no network. Needs no torch."""
    from trainers.report.page import check_extra, write_report
    from trainers.training.runs import open_run

    check_extra()
    opened = open_run(call.workspace, run)
    file = out or opened.folder() / "report.html"
    written = write_report(call.workspace, opened, file, console.note, figures)
    size = file.stat().st_size
    payload = {
        "run": opened.name,
        "report": file,
        "bytes": size,
        "rounds": len(opened.state().finished),
        "figures": written[1:],
    }
    line = f"{file} ({size / 1000:,.0f} kB); open it in a browser"
    if figures is not None:
        line += f"\n{len(written) - 1} files in {figures}"
    call.emit(payload, lambda print_to: print_to.print(line))
