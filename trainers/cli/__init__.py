"""cogr-train: what measures and improves generators. Options and output only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from typer import Argument, Option

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
from indexers.telemetry import logs
from trainers.cli.labels import labels_app

if TYPE_CHECKING:
    from trainers.project import Project, TrainedRun

app = console.program(
    "cogr-train",
    "Train keyword generators in rounds, measure them, and try all of it on a sample shop.",
)

app.add_typer(labels_app)
RunOption = Annotated[str, Option(help="Name of the run.")]


@app.command("run")
@common_options()
def run_rounds(
    call: Call,
    rounds: Annotated[int, Option(min=0, help="Rounds after SFT; 0: SFT alone.")] = 5,
    run: RunOption = "main",
    publish: Annotated[
        bool, Option("--publish", help="Then publish the pair chosen on dev.")
    ] = False,
) -> None:
    """Fine-tune both sides (SFT), then do rounds up to the given number: in each, one side after
    the other is trained against the other's frozen snapshot, indexed and evaluated.

    Begins the run if there is none, and goes on with one that is there, also after an interruption.
    """
    _show(call, _project(call).train(rounds, run=run, publish=publish))


@app.command("round")
@common_options()
def next_round(call: Call, run: RunOption = "main") -> None:
    """Do the next round of a run, or the rest of one that was interrupted; SFT comes first."""
    _show(call, _project(call).train(None, run=run))


def _show(call: Call, trained: TrainedRun) -> None:
    call.emit(trained.as_dict(), trained.table.show)
    if trained.found.is_behind:
        _next("publish", trained.driver.run.name)
    best = trained.snapshots
    _next(f"evaluate --item {best['item']} --query {best['query']}")


@app.command("publish")
@common_options()
def _publish(
    call: Call,
    pair: Annotated[
        str | None,
        Argument(
            help="statistical, distilled, sft or a round's number; chosen on dev by default.",
            show_default=False,
        ),
    ] = None,
    run: RunOption = "main",
    gate: Annotated[
        bool,
        Option(help="Refuse a pair that is worse on dev, or with too many entities set aside."),
    ] = True,
) -> None:
    """Publish a pair of a run: push, verify, and switch by one call."""
    serves = _project(call).driver(run).publish(pair, gate=gate)
    result = {"serves": serves.name, "item": serves.items, "query": serves.queries}
    call.show("Serving now", {"run": run, **result})
    _next("evaluate")


@app.command("status")
@common_options()
def _status(call: Call, run: RunOption = "main") -> None:
    """Show what a run has done, with figures, and what comes next."""
    from trainers.training.contest import choose, contenders, known_baselines, rounds_table
    from trainers.training.rounds import open_run

    opened = open_run(call.workspace, run)
    choice = choose(contenders(opened.state(), known_baselines(opened)))
    payload = {"run": opened.name, "rounds": opened.rows(), "next": opened.state().next}
    best = {"best_on_dev": choice and choice.chosen.name}
    call.emit(payload | best, rounds_table(opened, choice).show)


@app.command("report")
@common_options()
def _report(
    call: Call,
    run: RunOption = "main",
    out: Annotated[
        Path | None,
        Option("-o", "--out", help="File to write; report.html in the run's folder by default."),
    ] = None,
) -> None:
    """Write an HTML report of a run: one file, no network. Needs no torch."""
    from trainers.report import write_report
    from trainers.training.rounds import open_run

    opened = open_run(call.workspace, run)
    file = out or opened.folder() / "report.html"
    write_report(call.workspace, opened, file)
    payload = {"run": opened.name, "report": file, "bytes": file.stat().st_size}
    payload |= {"rounds": len(opened.state().finished)}
    call.show("Report, to open in a browser", payload)


def _project(call: Call) -> Project:
    from trainers.project import Project

    return Project(call.workspace, call.config, call.overrides, console.note)


def _next(command: str, run: str = "main") -> None:
    console.next_command(f"cogr-train {command}" + f" --run {run}" * (run != "main"))


@app.command("evaluate")
@common_options()
def _evaluate(
    call: Call,
    split: Annotated[Split, Option(help="Queries to measure on.")] = "test",
    item: Annotated[str | None, Option(help="Item snapshot; what serves by default.")] = None,
    query: Annotated[str | None, Option(help="Query snapshot; what serves by default.")] = None,
    baselines: Annotated[bool, Option(help="Also measure BM25.")] = False,
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
    result = _project(call).evaluate(split, item=item, query=query, baselines=baselines)
    call.emit(result.as_dict(), result.table.show)


@app.command("demo")
def _demo(
    backend: Annotated[BackendName, Option(help="Where it is indexed.")] = "memory",
    out: Annotated[Path, Option(help="Folder for everything that it writes.")] = Path(".demo"),
    set_: SetOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Index a sample shop by generated keywords, train a tiny model pair on it, measure and search
    what serves.
    """
    from trainers.demo import run_demo

    logs.begin(verbose=verbose)
    result, tables = run_demo(backend, out, set_ or ())

    def show(shown: Console) -> None:
        for table in tables:
            table.show(shown)

    console.emit(json_, result, show)
    config = result["config"]
    console.note(f"\nThe figures are in {result['summary']}, the configuration is {config}.")
    console.note(f"The report of the training is {result['report']}: open it in a browser.")
    console.next_command(f'cogr-index search -c {config} "metal bookshelf"')
    console.next_command(f"cogr-train run --rounds 3 -c {config}")
    console.next_command(f"cogr-train evaluate -c {config} --split test --baselines")


def main() -> None:
    console.run(app)
