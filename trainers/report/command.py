"""`cogr-train report`: options and output only; what it writes is `page`'s business."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from indexers import console
from indexers.options import ConfigOption, JsonOption, SetOption, VerboseOption, set_verbosity
from trainers.training.commands import RunOption


def report(
    config: ConfigOption = None,
    set_: SetOption = None,
    run: RunOption = "main",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File to write; report.html in the run's folder by default.")
    ] = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write an HTML report of a run: one file, no network. Needs no torch."""
    from indexers.workspace import Workspace
    from trainers.report.page import check_extra, write_report
    from trainers.training.runs import open_run

    set_verbosity(verbose)
    check_extra()
    workspace = Workspace.open(config, set_)
    opened = open_run(workspace, run)
    file = out or opened.folder() / "report.html"
    size = write_report(workspace, opened, file)
    payload = {"run": opened.name, "report": file, "bytes": size, "rounds": len(opened.state().finished)}
    console.emit(
        json_, payload, lambda print_to: print_to.print(f"{file} ({size / 1000:,.0f} kB); open it in a browser")
    )
