"""cogr-train: what measures and improves generators. Options and output only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from cogr.records import Split
from indexers.cli import console
from indexers.cli.console import (
    BackendName,
    Call,
    JsonOption,
    SetOption,
    VerboseOption,
    common_options,
)
from indexers.tables import Table, pick
from indexers.telemetry import logs
from trainers.cli import labels
from trainers.cli import training as commands

app = console.program(
    "cogr-train",
    "Train keyword generators in rounds, measure them, and try all of it on a sample shop.",
)

app.command("run")(commands.run_rounds)
app.command("round")(commands.next_round)
app.command()(commands.publish)
app.command()(commands.status)
app.command()(commands.report)
app.command()(commands.ablate)
app.command()(commands.compare)
app.add_typer(labels.app)


@app.command()
@common_options()
def evaluate(
    call: Call,
    split: Annotated[Split, Option(help="Queries to measure on.")] = "test",
    item: Annotated[str | None, Option(help="Item snapshot; what serves by default.")] = None,
    query: Annotated[str | None, Option(help="Query snapshot; what serves by default.")] = None,
    baselines: Annotated[
        bool, Option(help="Also measure BM25, and the exact cut of `statistical`.")
    ] = False,
    new_items: Annotated[
        float | None,
        Option(
            metavar="SHARE",
            min=0.0,
            max=0.9,
            help="Instead, measure how this share of items is found if it comes after training.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compute precision, recall, F1 and rank metrics of any snapshot pair on one split, on any
    backend. Needs no torch.

    The first row is of the keywords alone, the second of what serves: first the set by keywords and
    literal matches, then more by text. P, R and F1 are of the whole set (for BM25: of its first k
    items, with the k that is best on the training queries), rank metrics of the whole ranking; nDCG
    uses grades if the labels have any. Splits are those of training: if the data have no dev
    queries, a fifth of the training queries is dev. An item snapshot that the backend lacks is
    pushed, but not published.
    """
    from cogr.errors import SettingsError
    from trainers.project import Project

    if new_items is not None:
        if item or query or baselines:
            raise SettingsError("--new-items goes without --item, --query and --baselines.")
        _evaluate_new(call, new_items, split)
        return
    project = Project(call.workspace, call.config, call.overrides, console.note)
    found = project.evaluate(split, item=item, query=query, baselines=baselines)
    call.emit(found.as_dict(), found.table.show)


def _evaluate_new(call: Call, share: float, split: Split) -> None:
    from trainers.evaluation import checked_new, fit_in, judge_in, of_statistical

    workspace = call.workspace
    new = checked_new(workspace.dataset, share)
    rows = list(
        of_statistical(workspace.dataset, new, split, fit_in(workspace), judge_in(workspace))
    )
    asked = f"{rows[0]['queries']} queries, {rows[0]['with_new']} of them want a new item"
    title = f"{split}: {asked}; {share:g} of the items came after training"
    table = Table(title, pick(rows, _NEW), ["se: one standard error of the measure before it."])
    call.emit({"split": split, "share": share, "rows": rows}, table.show)


_NEW = {
    "name": "",
    "r_new": "recall, new",
    "r_new_se": "se",
    "p_new": "precision, new",
    "r_old": "recall, old",
    "f1": "f1",
    "f1_se": "se of f1",
}


@app.command()
def demo(
    backend: Annotated[BackendName, Option(help="Where it is indexed.")] = "memory",
    out: Annotated[Path, Option(help="Folder for everything that it writes.")] = Path(".demo"),
    set_: SetOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Index a sample shop by generated keywords, train a tiny model pair on it, measure and search
    what serves.
    """
    from trainers.demo.demo import run_demo

    logs.set_verbosity(verbose)
    ended = run_demo(backend, out, set_ or ())
    console.emit(json_, ended.payload, ended.show)
    config = ended.config
    console.note(f"\nThe figures are in {ended.summary}, the configuration is {config}.")
    console.note(f"The report of the training is {ended.report}: open it in a browser.")
    console.next_command(f'cogr-index search -c {config} "metal bookshelf"')
    console.next_command(f"cogr-train run --rounds 3 -c {config}")
    console.next_command(f"cogr-train evaluate -c {config} --split test --baselines")


def main() -> None:
    """Entry point of cogr-train."""
    console.run(app)
