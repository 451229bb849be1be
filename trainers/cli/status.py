"""What `cogr-train` prints for people: a run's rounds, the baselines, the chosen pair and the
one that serves; what `run --dry-run` found; the table of `ablate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from indexers.tables import Table, pick
from trainers.training.contest import Choice, choose, contenders, known_rivals, round_name
from trainers.training.memory import GIB
from trainers.training.run_folder import Run

if TYPE_CHECKING:
    from trainers.training.driver import RunStatus
    from trainers.training.estimate import Estimate


def known_choice(run: Run) -> Choice | None:
    """The pair chosen on dev among those that are already measured."""
    return choose(contenders(run.state(), known_rivals(run)))


def estimated(found: Estimate) -> Table:
    """What `cogr-train run --dry-run` found."""
    size = "of unknown size" if found.parameters is None else f"{found.parameters / 1e9:.3g} B"
    gpus = ", ".join(f"{gpu / GIB:.0f} GiB" for gpu in found.machine.gpus) or "none"
    notes = [f"GPUs: {gpus}; memory {found.machine.main / GIB:.0f} GiB."]
    if (needed := found.needed) is not None:
        parts = (needed.peak, needed.states, needed.activations, needed.engine)
        peak, weights, passes, engine = (f"{part / GIB:.1f}" for part in parts)
        notes.append(
            f"A process needs about {peak} GiB: {weights} for weights, gradients and moments, "
            f"{passes} for a pass or {engine} for vLLM, the rest for room."
        )
    names = {"stage": "stage", "steps": "steps", "tokens": "tokens written at most"}
    rows = pick(found.stages, {**names, "hours": "hours"})
    if rows:
        notes.append(f"SFT and {found.rounds} rounds: about {found.hours:.1f} hours.")
    notes += [f"Refused: {reason}" for reason in found.refused]
    model = f"Model: {found.model}, {size} parameters."
    return Table(model, rows, notes) if rows else Table("", (), [model, *notes])


def next_stage(run: Run) -> str:
    """What the next command does first."""
    unfinished = run.state().unfinished
    return (
        f"round {unfinished.number}, {unfinished.next_stage}"
        if unfinished
        else f"round {len(run.state().rounds)}"
    )


def rounds(run: Run, choice: Choice | None = None, found: RunStatus | None = None) -> Table:
    """The run's rounds, beside bm25 and `statistical` if they are measured, with the chosen pair
    and the one that serves.
    """
    marks = {"best on dev": choice and choice.chosen.name, "serves": found and found.serves}
    beside, rows = known_rivals(run), list[dict[str, str]]()
    for name, figures in (beside.rows() if beside else {}).items():
        rows += _by_split(name, figures, "", [mark for mark, of in marks.items() if of == name])
    for row in run.rows():
        name, seconds, verdict = round_name(row["round"]), f"{row['seconds']:.0f}", row["verdict"]
        said = f"{verdict}: {row['reason']}" if verdict == "rejected" else verdict
        known = [said, *(mark for mark, of in marks.items() if of == name)]
        if row["figures"]:
            rows += _by_split(name, row["figures"], seconds, known)
        else:
            rows.append({"round": name, "seconds": seconds, "": "under way"})
    notes = [f"Best on dev: {choice.chosen.name}, {choice.reason()}."] if choice else []
    notes += [f"Serves now: {found.serves or 'nothing'}."] if found else []
    return Table(f"run {run.name}", rows, [*notes, f"next: {next_stage(run)}"])


def _by_split(
    name: str, figures: Mapping[str, Any], seconds: str, marks: Sequence[str]
) -> Iterator[dict[str, str]]:
    """A row for each split."""
    for split, found in figures.items():
        row = {"round": name, "split": split}
        row |= {measure: f"{found[measure]:.4f}" for measure in ("p", "r", "f1")}
        keywords = found.get("keywords_per_item")
        row["keywords an item"] = "" if keywords is None else f"{keywords:.1f}"
        yield row | {"seconds": seconds, "": ", ".join(marks)}


def ablation(lines: Sequence[Mapping[str, Any]], split: str, rounds: int) -> Table:
    """The paper's ablation table: mean ± standard deviation over seeds."""
    after = f"{rounds} round{'s' * (rounds > 1)} after SFT"
    names = {"p": "P", "r": "R", "f1": "F1", "f1_over_full": "F1 over full"}
    rows = []
    for line in lines:
        said = "; ".join(f"seed {seed} failed: {why}" for seed, why in line["failed"].items())
        spreads = {name: _spread(line[key]) for key, name in names.items()}
        rows.append({"variant": line["title"], **spreads, "seeds": str(line["seeds"]), "": said})
    return Table(f"{split} queries, {after}; mean ± standard deviation over seeds", rows)


def _spread(found: Mapping[str, float | None] | None) -> str:
    if found is None:
        return ""
    spread = "" if found["sd"] is None else f" ± {found['sd']:.4f}"
    return f"{found['mean']:.4f}{spread}"
