"""The command `cogr-train compare`: options and output only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from indexers.cli import console
from indexers.cli.options import Call, common_options


@common_options(backend=False)
def compare(
    call: Call,
    methods: Annotated[
        str,
        typer.Option("--methods", help="all, or names with commas between them."),
    ] = "all",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Fits of each method.")] = 3,
    metric: Annotated[
        str, typer.Option("--metric", help="What significance and the advice go by.")
    ] = "f1",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep the rows that --out has of these data and settings."),
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of tables, page, rows and TREC runs.")
    ] = Path("compare"),
) -> None:
    """Every method side by side on this data set: trained, tuned on dev, measured on test, with
    significance and cost, and which one to use.

    Hyperparameters, cutoffs and thresholds are chosen the same way for all (see `[compare]` of the
    settings for the budget). What can't run here is a row that says what it needs. Ctrl-C keeps
    the finished rows; --resume goes on from them.
    """
    from trainers.rivals.compare import Comparison, named, run
    from trainers.rivals.results import check_metric, show

    check_metric(metric)
    asked = Comparison(named(methods), seeds, resume, out)
    results = run(call.workspace, asked, metric, console.note)
    call.emit(results.as_dict(), lambda print_to: show(print_to, results))
    console.note(f"Tables, page and runs are in {out}.")
    results.check()
