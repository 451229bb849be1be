"""The commands of a training run, its report, and `cogr-train compare`: options and output only.
`trainers.cli` puts them beside the others.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from indexers.cli import console
from indexers.cli.console import Call, common_options

if TYPE_CHECKING:
    from trainers.project import Project

RunOption = Annotated[str, Option(help="Name of the run.")]
BranchOption = Annotated[
    str | None, Option(help="Continue under this new name, with the current settings.")
]
PublishOption = Annotated[
    bool | None,
    Option(
        help="Publish the pair chosen on dev; an interrupted round keeps its choice.",
        show_default=False,
    ),
]


@common_options(backend=False)
def init(call: Call, run: RunOption = "main") -> None:
    """Begin a run: store the data's hash and the settings in its folder. Needs no torch."""
    from trainers.training.rounds import judged_by, with_dev
    from trainers.training.run_folder import create
    from trainers.training.trainer_config import check_settings

    check_settings(call.workspace)
    workspace = with_dev(call.workspace)
    begun, judged = create(workspace, run), judged_by(workspace)
    payload = {"run": begun.name, "folder": begun.folder(), "judged_by": judged}
    payload["dataset_hash"] = workspace.dataset.dataset_hash
    call.emit(payload, lambda out: out.print(f"Run {begun.name} in {begun.folder()}. {judged}"))
    _next("sft", call, begun.name)


@common_options(backend=False)
def sft(call: Call, run: RunOption = "main") -> None:
    """Round 0: fine-tune both sides on the targets of the paper's algorithm 1, index both,
    evaluate.
    """
    from trainers.cli.status import rounds

    driver = _project(call).driver(run, begin=True)
    done = driver.sft()
    payload = done.as_dict(driver.run.name)
    call.emit(payload, lambda out: rounds(driver.run, driver.choice()).show(out))
    _next("round", call, run)


@common_options()
def round_(
    call: Call, run: RunOption = "main", branch: BranchOption = None, publish: PublishOption = None
) -> None:
    """Train the query side, then the item side, each against the other's frozen snapshot; index,
    evaluate.

    Runs the next round, or completes an interrupted one.
    """
    from trainers.cli.status import rounds

    driver = _project(call).driver(run, branch)
    done, name = driver.round(publish), driver.run.name
    found = driver.status()
    call.emit(done.as_dict(name) | found.as_dict(), rounds(driver.run, found.choice, found).show)
    if found.other is not None:
        _next("publish", call, name)
    _next("round", call, name)


@common_options()
def run_rounds(
    call: Call,
    rounds: Annotated[int, Option(min=1, help="Number of rounds after SFT.")] = 5,
    run: RunOption = "main",
    branch: BranchOption = None,
    publish: PublishOption = None,
    dry_run: console.DryRunOption = False,
) -> None:
    """Run SFT if it is not done, then rounds up to the given number.

    Begins the run if there is none. After an interruption run it again: it continues. --dry-run
    prints memory, steps, tokens and hours to expect, and ends with 1 if training would refuse.
    """
    from trainers.cli import status as shown

    if dry_run:
        _estimate(call, rounds)
        return
    trained = _project(call).train(rounds, run=run, branch=branch, publish=publish)
    opened, found = trained.driver.run, trained.status
    call.emit(trained.as_dict(), shown.rounds(opened, found.choice, found).show)
    if found.other is not None:
        _next("publish", call, opened.name)
    best = trained.snapshots
    _next(f"evaluate --item {best['item']} --query {best['query']}", call)


@common_options()
def publish(
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
    found = {"serves": serves.name, "item": serves.items, "query": serves.queries}
    call.show("Serving now", {"run": run, **found})
    _next("evaluate", call)


@common_options(backend=False)
def status(call: Call, run: RunOption = "main") -> None:
    """Show what a run has done, with figures, and what comes next."""
    from trainers.cli.status import known_choice, next_stage, rounds
    from trainers.training.run_folder import open_run

    opened = open_run(call.workspace, run)
    found = known_choice(opened)
    payload = {"run": opened.name, "rounds": opened.rows(), "next": next_stage(opened)}
    best = {"best_on_dev": found and found.chosen.name}
    call.emit(payload | best, rounds(opened, found).show)
    _next("round" if opened.state().finished else "sft", call, run)


@common_options(backend=False)
def ablate(
    call: Call,
    variants: Annotated[
        str, Option(help="all, or names separated by commas; see docs/training.md.")
    ] = "all",
    seeds: Annotated[int, Option(min=1, help="Runs of each variant.")] = 3,
    rounds: Annotated[int, Option(min=1, help="Rounds after SFT.")] = 5,
) -> None:
    """Train the paper's variants of a configuration, and print its ablation table.

    After an interruption run it again: finished variants are kept. Exit status 1 if a variant
    failed; the table has the others.
    """
    from cogr.errors import CheckFailedError
    from trainers.ablation import VARIANTS, Ablation, split_of, table
    from trainers.cli.status import ablation
    from trainers.rivals import chosen
    from trainers.training.stage import Launcher

    names = chosen(variants, VARIANTS, "variant")
    rows = []
    accelerate = call.workspace.settings.training.accelerate
    launcher = Launcher(call.config, tuple(call.overrides), accelerate=accelerate)
    for row in Ablation(launcher, rounds, console.note).rows(names, seeds):
        rows.append(row)
        console.note(f"{row.variant}, seed {row.seed} is done: {len(rows)} of {len(names) * seeds}")
    split, lines = split_of(call.workspace.dataset), table(rows)
    payload = {"split": split, "rounds": rounds, "table": lines}
    payload["rows"] = list(map(asdict, rows))
    call.emit(payload, ablation(lines, split, rounds).show)
    if failed := sum(bool(row.failed) for row in rows):
        raise CheckFailedError(
            f"{failed} of {len(rows)} runs failed, see above; fix that and run the same command "
            "again: the others are not trained again."
        )


@common_options(backend=False)
def report(
    call: Call,
    run: RunOption = "main",
    out: Annotated[
        Path | None,
        Option("-o", "--out", help="File to write; report.html in the run's folder by default."),
    ] = None,
    figures: Annotated[
        Path | None, Option(help="Also write every figure to this folder, as SVG and PNG.")
    ] = None,
) -> None:
    """Write an HTML report of a run: one file, no network. Needs no torch."""
    from trainers.report.page import check_extra, write_report
    from trainers.training.run_folder import open_run

    check_extra()
    opened = open_run(call.workspace, run)
    file = out or opened.folder() / "report.html"
    written = write_report(call.workspace, opened, file, console.note, figures)
    payload = {"run": opened.name, "report": file, "bytes": file.stat().st_size}
    payload |= {"rounds": len(opened.state().finished), "figures": written[1:]}
    call.show("Report, to open in a browser", payload, hide="" if figures else "figures")


def _estimate(call: Call, rounds: int) -> None:
    from cogr.errors import CheckFailedError
    from trainers.cli.status import estimated
    from trainers.training.estimate import estimate

    found = estimate(call.workspace, rounds)
    call.emit(found.as_dict(), estimated(found).show)
    if found.refused:
        raise CheckFailedError("This configuration can't be trained here, see above.")


def _project(call: Call) -> Project:
    from trainers.project import Project

    return Project(call.workspace, call.config, call.overrides, console.note)


def _next(command: str, call: Call, run: str = "main") -> None:
    """Print the next command, with the configuration and the run of this one."""
    name, _, more = command.partition(" ")
    said = [name, f"-c {call.config}" * bool(call.config), more, f"--run {run}" * (run != "main")]
    console.next_command(" ".join(["cogr-train", *filter(None, said)]))


@common_options(backend=False)
def compare(
    call: Call,
    methods: Annotated[str, Option(help="all, or names separated by commas.")] = "all",
    seeds: Annotated[int, Option(min=1, help="Fits of each method.")] = 3,
    metric: Annotated[str, Option(help="Metric of the significance tests and the advice.")] = "f1",
    resume: Annotated[
        bool,
        Option("--resume", help="Keep the rows in --out that have the same data and settings."),
    ] = False,
    out: Annotated[Path, Option(help="Folder for tables, page, rows and TREC runs.")] = Path(
        "compare"
    ),
    trials: Annotated[int, Option(min=1, help="Most hyperparameters that a method tries.")] = 8,
    steps: Annotated[int | None, Option(min=1, help="Training steps of a fit.")] = None,
) -> None:
    """Compare all methods on this data set: trained, tuned on dev, measured on test, with
    significance and cost, and which one to use.

    Hyperparameters, cutoffs and thresholds are chosen the same way for all, within one budget. A
    method that can't run here has a row that says what it needs. Ctrl-C
    keeps the finished rows; --resume continues from them.
    """
    from trainers.project import Project
    from trainers.rivals.results import show

    project = Project(call.workspace, call.config, call.overrides, console.note)
    found = project.compare(
        methods,
        seeds=seeds,
        metric=metric,
        resume=resume,
        out=out,
        trials=trials,
        steps=steps,
    )
    results = found.results
    call.emit(results.as_dict(), lambda print_to: show(print_to, results))
    console.note(f"Tables, page and runs are in {out}.")
    results.check()
