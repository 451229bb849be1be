"""The commands of the training loop: options and output only. `trainers.cli` puts them beside the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from indexers import console
from indexers.options import ConfigOption, JsonOption, SetOption, VerboseOption, set_verbosity

if TYPE_CHECKING:
    from trainers.training.driver import Driver
    from trainers.training.runs import Run
    from trainers.training.state import Round

RunOption = Annotated[str, typer.Option("--run", help="Name of the run.")]
BranchOption = Annotated[
    str | None, typer.Option("--branch", help="Go on under this new name, with the settings as they are now.")
]
PublishOption = Annotated[
    bool | None,
    typer.Option(
        "--publish/--no-publish",
        help="Publish the round's pair when it is built upon; an interrupted round keeps what it was asked for.",
        show_default=False,
    ),
]


def init(
    config: ConfigOption = None,
    set_: SetOption = None,
    run: RunOption = "main",
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Begin a run: freeze the data's hash and the settings into its folder. Needs no torch."""
    from indexers.workspace import Workspace
    from trainers.training.checks import check_settings
    from trainers.training.runs import create

    set_verbosity(verbose)
    workspace = Workspace.open(config, set_)
    check_settings(workspace)
    begun = create(workspace, run)
    payload = {"run": begun.name, "folder": begun.folder(), "dataset_hash": workspace.dataset.dataset_hash}
    console.emit(json_, payload, lambda out: out.print(f"Run {begun.name} in {begun.folder()}"))
    console.next_command(_command("sft", config, begun.name))


def sft(
    config: ConfigOption = None,
    set_: SetOption = None,
    run: RunOption = "main",
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Fine-tune both sides on the targets of algorithm 1, index both, evaluate: round 0."""
    driver = _driver(config, set_, run, verbose)
    done = driver.sft()
    console.emit(json_, as_dict(driver.run, done), lambda out: _show(out, driver.run))
    console.next_command(_command("round", config, run))


def round_(
    config: ConfigOption = None,
    set_: SetOption = None,
    run: RunOption = "main",
    branch: BranchOption = None,
    publish: PublishOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Train the query side, then the item side, each against the other's frozen snapshot; index, evaluate.

    Does the next round, or the rest of one that was interrupted.
    """
    driver = _driver(config, set_, run, verbose, branch)
    done = driver.round(publish)
    console.emit(json_, as_dict(driver.run, done), lambda out: _show(out, driver.run))
    console.next_command(_command("round", config, driver.run.name))


def run_rounds(
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds after SFT that the run shall have.")] = 5,
    config: ConfigOption = None,
    set_: SetOption = None,
    run: RunOption = "main",
    branch: BranchOption = None,
    publish: PublishOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """SFT where it is not done, then rounds until the run has so many. Run again after any death: it goes on."""
    driver = _driver(config, set_, run, verbose, branch)
    done = driver.sft()
    while (state := driver.run.state()).rounds_done < rounds or state.unpublished:
        done = driver.round(publish)
    console.emit(json_, {"run": driver.run.name, "rounds": rows(driver.run)}, lambda out: _show(out, driver.run))
    console.next_command(f"cogr-train evaluate --item {done.items} --query {done.queries}")


def status(
    config: ConfigOption = None,
    set_: SetOption = None,
    run: RunOption = "main",
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """What a run has done, with figures, and what is next."""
    from indexers.workspace import Workspace
    from trainers.training.runs import open_run

    set_verbosity(verbose)
    opened = open_run(Workspace.open(config, set_), run)
    console.emit(
        json_, {"run": opened.name, "rounds": rows(opened), "next": _next(opened)}, lambda out: _show(out, opened)
    )
    console.next_command(_command("round" if opened.state().finished else "sft", config, run))


def _driver(config: Path | None, set_: list[str] | None, name: str, verbose: bool, new: str | None = None) -> Driver:
    from indexers.workspace import Workspace
    from trainers.training.checks import check_settings
    from trainers.training.driver import Driver
    from trainers.training.launching import Launcher
    from trainers.training.runs import branch, open_run

    set_verbosity(verbose)
    workspace = Workspace.open(config, set_)
    check_settings(workspace)
    run = branch(workspace, name, new) if new else open_run(workspace, name)
    launcher = Launcher(config, tuple(set_ or ()))
    return Driver(workspace, run, launcher, console.note)


def rows(run: Run) -> list[dict[str, Any]]:
    """Every round as one row of figures."""
    return [as_dict(run, done) for done in run.state().rounds]


def as_dict(run: Run, done: Round) -> dict[str, Any]:
    """One round for --json."""
    evaluation = done.stage("evaluate")
    accepted = done.stage("accept-items")
    return {
        "run": run.name,
        "round": done.number,
        "verdict": done.verdict,
        "reason": done.reason,
        "publishing": done.publishing,
        "seconds": round(sum(stage.seconds for stage in done.stages), 2),
        "stages": {stage.name: stage.output for stage in done.stages},
        "figures": dict(evaluation.notes) if evaluation else None,
        "items": dict(accepted.notes) if accepted else None,
    }


def _next(run: Run) -> str:
    unfinished = run.state().unfinished
    return f"round {unfinished.number}, {unfinished.next_stage}" if unfinished else f"round {len(run.state().rounds)}"


def _show(out: Console, run: Run) -> None:
    """The run's rounds as a table."""
    table = Table(
        "round",
        "split",
        "p",
        "r",
        "f1",
        "keywords an item",
        "seconds",
        "",
        title=f"run {run.name}",
        title_justify="left",
    )
    for row in rows(run):
        name = "sft" if row["round"] == 0 else str(row["round"])
        figures = row["figures"] or {}
        for split, found in figures.items():
            cells = [f"{found[measure]:.4f}" for measure in ("p", "r", "f1")]
            verdict = f"{row['verdict']}: {row['reason']}" if row["verdict"] == "rejected" else row["verdict"]
            table.add_row(name, split, *cells, f"{found['keywords_per_item']:.1f}", f"{row['seconds']:.0f}", verdict)
        if not figures:
            table.add_row(name, "", "", "", "", "", f"{row['seconds']:.0f}", "under way")
    out.print(table)
    out.print(f"next: {_next(run)}")


def _command(name: str, config: Path | None, run: str) -> str:
    own = f" -c {config}" if config else ""
    return f"cogr-train {name}{own}" + (f" --run {run}" if run != "main" else "")
