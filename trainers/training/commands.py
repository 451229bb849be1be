"""The commands of the training loop: options and output only. `trainers.cli` puts them beside the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from indexers import console
from indexers.options import Call, common_options

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


@common_options(backend=False)
def init(call: Call, run: RunOption = "main") -> None:
    """Begin a run: freeze the data's hash and the settings into its folder. Needs no torch."""
    from trainers.training.checks import check_settings
    from trainers.training.runs import create

    check_settings(call.workspace)
    begun = create(call.workspace, run)
    payload = {"run": begun.name, "folder": begun.folder(), "dataset_hash": call.workspace.dataset.dataset_hash}
    call.emit(payload, lambda out: out.print(f"Run {begun.name} in {begun.folder()}"))
    console.next_command(_command("sft", call, begun.name))


@common_options(backend=False)
def sft(call: Call, run: RunOption = "main") -> None:
    """Fine-tune both sides on the targets of algorithm 1, index both, evaluate: round 0."""
    driver = _driver(call, run)
    done = driver.sft()
    call.emit(as_dict(driver.run, done), lambda out: _show(out, driver.run))
    console.next_command(_command("round", call, run))


@common_options()
def round_(call: Call, run: RunOption = "main", branch: BranchOption = None, publish: PublishOption = None) -> None:
    """Train the query side, then the item side, each against the other's frozen snapshot; index, evaluate.

    Does the next round, or the rest of one that was interrupted.
    """
    driver = _driver(call, run, branch)
    done = driver.round(publish)
    call.emit(as_dict(driver.run, done), lambda out: _show(out, driver.run))
    console.next_command(_command("round", call, driver.run.name))


@common_options()
def run_rounds(
    call: Call,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds after SFT that the run shall have.")] = 5,
    run: RunOption = "main",
    branch: BranchOption = None,
    publish: PublishOption = None,
) -> None:
    """SFT where it is not done, then rounds until the run has so many. Run again after any death: it goes on."""
    driver = _driver(call, run, branch)
    done = driver.sft()
    while (state := driver.run.state()).rounds_done < rounds or state.unpublished:
        done = driver.round(publish)
    call.emit({"run": driver.run.name, "rounds": rows(driver.run)}, lambda out: _show(out, driver.run))
    console.next_command(f"cogr-train evaluate{_config(call)} --item {done.items} --query {done.queries}")


@common_options(backend=False)
def status(call: Call, run: RunOption = "main") -> None:
    """What a run has done, with figures, and what is next."""
    from trainers.training.runs import open_run

    opened = open_run(call.workspace, run)
    payload = {"run": opened.name, "rounds": rows(opened), "next": _next(opened)}
    call.emit(payload, lambda out: _show(out, opened))
    console.next_command(_command("round" if opened.state().finished else "sft", call, run))


def _driver(call: Call, name: str, new: str | None = None) -> Driver:
    from trainers.training.checks import check_settings
    from trainers.training.driver import Driver
    from trainers.training.launching import Launcher
    from trainers.training.runs import branch, open_run

    check_settings(call.workspace)
    run = branch(call.workspace, name, new) if new else open_run(call.workspace, name)
    return Driver(call.workspace, run, Launcher(call.config, tuple(call.overrides)), console.note)


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


def _command(name: str, call: Call, run: str) -> str:
    return f"cogr-train {name}{_config(call)}" + (f" --run {run}" if run != "main" else "")


def _config(call: Call) -> str:
    return f" -c {call.config}" if call.config else ""
