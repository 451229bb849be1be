"""cogr-train: what measures and improves generators. Options and output only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cogr.records import Split
from indexers.cli import console
from indexers.cli.options import (
    BackendName,
    Call,
    JsonOption,
    SetOption,
    VerboseOption,
    add_version,
    common_options,
    set_verbosity,
)
from trainers.cli import labels
from trainers.cli import training as commands
from trainers.cli.compare import compare

app = typer.Typer(
    name="cogr-train",
    help=(
        "Train keyword generators in rounds, measure them, and see the whole path on a sample shop."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_version(app, "cogr-train")

app.command()(commands.check)
app.command()(commands.init)
app.command()(commands.sft)
app.command("round")(commands.round_)
app.command("run")(commands.run_rounds)
app.command()(commands.publish)
app.command()(commands.status)
app.command()(commands.report)
app.command()(commands.ablate)
app.command()(compare)
app.add_typer(labels.app)


@app.command()
@common_options()
def evaluate(
    call: Call,
    split: Annotated[Split, typer.Option("--split", help="Queries to measure on.")] = "test",
    item: Annotated[
        str | None, typer.Option("--item", help="Item snapshot; what serves by default.")
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="Query snapshot; what serves by default.")
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines",
            help="Beside it: BM25, and the exact cut of `statistical`.",
        ),
    ] = False,
) -> None:
    """Precision, recall, F1 and rank metrics of any snapshot pair on one split, the same on every
    backend. Needs no torch.

    P, R and F1 are of the whole retrieved set (of BM25, the number of best items that serves the
    training queries best), rank metrics of the whole ranking; nDCG takes grades where the labels
    have any. Splits are those of training: where the data have no dev queries, a part of the
    training queries is dev (training.gate.dev_share). An item snapshot that the backend does not
    have yet is pushed beside what serves; it serves nothing.
    """
    from cogr.snapshots import open_snapshot
    from trainers.evaluation import baseline_rows, ensure_pushed
    from trainers.evaluation import evaluate as run_evaluation
    from trainers.training.contest import knows_dev
    from trainers.training.rounds import with_dev

    workspace = with_dev(call.workspace)
    items = (
        open_snapshot(workspace.store, workspace.known(item)) if item else workspace.serving("item")
    )
    queries = (
        open_snapshot(workspace.store, workspace.known(query))
        if query
        else workspace.serving("query")
    )
    if ensure_pushed(workspace.backend, items):
        console.note(f"pushed {items.id} to {workspace.backend.name} beside what serves")
    if split == "dev" and knows_dev(workspace, items, queries):
        console.note(
            "This pair has learned from the labels of these dev queries: it does better by them "
            "than by new ones."
        )
    weights = workspace.settings.keywords.weights
    found = run_evaluation(
        workspace.backend, workspace.dataset, items, queries, split, weights=weights
    )
    payload = found.as_dict()
    if baselines:
        payload["baselines"] = baseline_rows(workspace, split, items, queries)
    call.emit(payload, lambda out: _show(out, payload))


def _show(out: Console, payload: dict[str, Any]) -> None:
    """The pair's figures, baselines below them, and what each figure is of."""
    baselines = payload.get("baselines", [])
    names = ("p", "r", "f1", "mrr@10", "ndcg@10", "p@10", "r@100")
    table = Table(
        "",
        *names,
        title=f"{payload['split']}: {payload['queries']} queries, {payload['backend']}",
        title_justify="left",
    )
    for row in ({"name": "keywords", **payload}, *baselines):
        table.add_row(
            row["name"],
            *(f"{row[name]:.4f}" if row.get(name) is not None else "" for name in names),
        )
    out.print(table)
    sets = "".join(f"; {row['name']}: of {row['sets']}" for row in baselines)
    out.print(f"p, r, f1: of the whole retrieved set{sets}")
    out.print(
        "mrr, ndcg, p@10, r@100: of the whole ranking, also BM25's; ndcg gains are "
        f"{_GAINS[payload['ndcg_gains']]}"
    )
    out.print(
        f"{payload['item_snapshot']} with {payload['keywords_per_item']:.1f} keywords an item,"
    )
    out.print(
        f"{payload['query_snapshot']} with {payload['keywords_per_query']:.1f} keywords a query"
    )


_GAINS = {
    "grades": "the grades of the labels",
    "binary": "1 for relevant items (the labels have one grade)",
}


@app.command()
def demo(
    backend: Annotated[
        BackendName, typer.Option("--backend", help="Where it is indexed.")
    ] = "memory",
    out: Annotated[
        Path, typer.Option("--out", help="Folder for everything that it writes.")
    ] = Path(".demo"),
    set_: SetOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Index a sample shop by generated keywords, train a tiny model pair on it, measure and search
    what serves.
    """
    from trainers.demo import run_demo

    set_verbosity(verbose)
    run_demo(backend, out, json_, set_ or ())


def main() -> None:
    """Entry point of cogr-train."""
    console.run(app)


if __name__ == "__main__":
    main()
