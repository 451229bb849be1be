"""What `cogr-train` prints for people: a run's rounds, the baselines, the chosen pair and the
one that serves; what `run --dry-run` found; the table of `ablate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from trainers.training.contest import Choice, choose, contenders, known_rivals, round_name
from trainers.training.memory import GIB
from trainers.training.run_folder import Run

if TYPE_CHECKING:
    from trainers.training.driver import RunStatus
    from trainers.training.estimate import Estimate


def known_choice(run: Run) -> Choice | None:
    """The pair chosen on dev among those that are already measured."""
    beside = known_rivals(run)
    return choose(contenders(run.state(), beside))


def show_estimate(out: Console, found: Estimate) -> None:
    """What `cogr-train run --dry-run` found, for people."""
    size = "of unknown size" if found.parameters is None else f"{found.parameters / 1e9:.3g} B"
    gpus = ", ".join(f"{gpu / GIB:.0f} GiB" for gpu in found.machine.gpus) or "none"
    out.print(f"Model: {found.model}, {size} parameters.")
    out.print(f"GPUs: {gpus}; memory {found.machine.main / GIB:.0f} GiB.")
    if (needed := found.needed) is not None:
        parts = (needed.peak, needed.states, needed.activations, needed.engine)
        peak, weights, passes, engine = (f"{part / GIB:.1f}" for part in parts)
        out.print(
            f"A process needs about {peak} GiB: {weights} for weights, gradients and moments, "
            f"{passes} for a pass or {engine} for vLLM, the rest for room."
        )
    if found.stages:
        table = Table("stage", "steps", "tokens written at most", "hours")
        for one in found.stages:
            table.add_row(one.stage, f"{one.steps:,}", f"{one.tokens:,}", f"{one.hours:.2f}")
        out.print(table)
        out.print(f"SFT and {found.rounds} rounds: about {found.hours:.1f} hours.")
    for reason in found.refused:
        out.print(f"Refused: {reason}")


def next_stage(run: Run) -> str:
    """What the next command does first."""
    unfinished = run.state().unfinished
    return (
        f"round {unfinished.number}, {unfinished.next_stage}"
        if unfinished
        else f"round {len(run.state().rounds)}"
    )


def show(
    out: Console, run: Run, choice: Choice | None = None, found: RunStatus | None = None
) -> None:
    """The run's rounds as a table, beside bm25 and `statistical` if they are measured, with the
    chosen pair and the one that serves.
    """
    columns = ("round", "split", "p", "r", "f1", "keywords an item", "seconds", "")
    table = Table(*columns, title=f"run {run.name}", title_justify="left")
    beside = known_rivals(run)
    for name, figures in (beside.rows() if beside else {}).items():
        _add(table, name, figures, "", _marks(name, choice, found))
    for row in run.rows():
        name, seconds = round_name(row["round"]), f"{row['seconds']:.0f}"
        verdict = (
            f"{row['verdict']}: {row['reason']}" if row["verdict"] == "rejected" else row["verdict"]
        )
        if row["figures"]:
            _add(table, name, row["figures"], seconds, [verdict, *_marks(name, choice, found)])
        else:
            table.add_row(name, "", "", "", "", "", seconds, "under way")
    out.print(table)
    if choice is not None:
        out.print(f"Best on dev: {choice.chosen.name}, {choice.reason()}.")
    if found is not None:
        out.print(f"Serves now: {found.serves or 'nothing'}.")
    out.print(f"next: {next_stage(run)}")


def _marks(name: str, choice: Choice | None, found: RunStatus | None) -> list[str]:
    best = choice is not None and choice.chosen.name == name
    serves = found is not None and found.serves == name
    return [mark for mark, has in (("best on dev", best), ("serves", serves)) if has]


def _add(
    table: Table, name: str, figures: Mapping[str, Any], seconds: str, marks: Sequence[str]
) -> None:
    """A row for each split."""
    for split, found in figures.items():
        cells = [f"{found[measure]:.4f}" for measure in ("p", "r", "f1")]
        keywords = found.get("keywords_per_item")
        table.add_row(
            name,
            split,
            *cells,
            "" if keywords is None else f"{keywords:.1f}",
            seconds,
            ", ".join(marks),
        )


def show_ablation(
    out: Console, lines: Sequence[Mapping[str, Any]], split: str, rounds: int
) -> None:
    """The paper's ablation table, for people: mean ± standard deviation over seeds."""
    after = f"{rounds} round{'s' * (rounds > 1)} after SFT"
    title = f"{split} queries, {after}; mean ± standard deviation over seeds"
    table = Table(
        "variant", "P", "R", "F1", "F1 over full", "seeds", "", title=title, title_justify="left"
    )
    for line in lines:
        cells = [_spread(line[key]) for key in ("p", "r", "f1", "f1_over_full")]
        said = line["left_out"] or "; ".join(
            f"seed {seed} failed: {why}" for seed, why in line["failed"].items()
        )
        table.add_row(line["title"], *cells, str(line["seeds"]), said)
    out.print(table)


def _spread(found: Mapping[str, float | None] | None) -> str:
    if found is None:
        return ""
    spread = "" if found["sd"] is None else f" ± {found['sd']:.4f}"
    return f"{found['mean']:.4f}{spread}"
