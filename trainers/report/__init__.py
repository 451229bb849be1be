"""The report of a training run: one HTML file for people that needs no network. Everything is read
from the run's files: finished rounds, step logs, snapshots.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cogr import __version__
from cogr.errors import TrainingError, require
from cogr.records import SIDES, SPLITS, Side, Split
from cogr.store import Store
from indexers.generators.statistical.generator import latest_facts, told_f1
from indexers.tables import Table, short
from indexers.telemetry import logs
from indexers.telemetry.terminal import duration
from indexers.workspace import Workspace
from trainers.training.contest import (
    choose,
    contenders,
    known_baselines,
    rounds_table,
    serving_of,
)
from trainers.training.grpo import text_of
from trainers.training.rounds import Run, round_name

_SAMPLED = 8
"""How many completions of each side are shown."""


def check_extra() -> None:
    """Raise MissingExtraError where figures and pages can't be made."""
    require("The report", "report", "matplotlib", "jinja2")


class StageLog(NamedTuple):
    """The steps of one training stage, as its log has them."""

    round: int
    side: Side
    steps: Sequence[Mapping[str, Any]]


class Facts:
    """Everything that a report says of one run. Each fact is read when it is first asked for.

    Attributes:
        rounds: the finished ones; SFT is the first.
        splits: those that were measured, the one of the headlines first: test, else dev, else
            train.
        choice: the pair chosen on dev, whoever wrote it; None where nothing is judged.
        serves: name of the pair that serves.

    Raises:
        TrainingError: SFT is not finished.
    """

    def __init__(self, workspace: Workspace, run: Run) -> None:
        self.run, self._state = run, run.state()
        if not self._state.finished or self._state.base is None:
            raise TrainingError(
                f"The run {run.name} has nothing to report yet: run cogr-train run."
            )
        self.frozen = run.frozen()
        self.rounds = self._state.finished
        measured = self.rounds[0].figures
        self.splits: list[Split] = [one for one in reversed(SPLITS) if one in measured]
        known = contenders(self._state, known_baselines(run))
        self.choice, self.serves = choose(known), serving_of(workspace, known)

    @property
    def under_way(self) -> str:
        """The round that is not finished, and its next stage; "" where there is none."""
        now = self._state.unfinished
        return f"{round_name(now.number)} is under way, next is {now.next_stage}" if now else ""

    @property
    def names(self) -> list[str]:
        """What the rounds are called, in their order."""
        return [round_name(one.number) for one in self.rounds]

    @property
    def next(self) -> str:
        """What to do next, as a command."""
        run = f" --run {self.run.name}" if self.run.name != "main" else ""
        best = self.choice and self.choice.chosen.name
        if best and best != self.serves:
            return logs.advised(f"Next, to let {best} serve: cogr-train publish{run}")
        rounds = self._state.rounds_done + 1
        return logs.advised(f"Next: cogr-train run --rounds {rounds}{run}")

    @cached_property
    def logs(self) -> list[StageLog]:
        """Of all training stages, in their order."""
        stages = ((one.number, stage.name) for one in self._state.rounds for stage in one.stages)
        return [
            self._log(number, side)
            for number, name in stages
            for side in SIDES
            if name == f"train-{side}"
        ]

    def _log(self, number: int, side: Side) -> StageLog:
        store, path = self.run.store, f"{self.run.path}/logs/r{number:03d}-{side}.jsonl"
        steps: list[Any] = []
        for line in store.read(path).splitlines() if store.exists(path) else ():
            # The last line of a stage that was killed may be torn.
            with suppress(ValueError):
                steps.append(json.loads(line))
        return StageLog(number, side, [step for step in steps if isinstance(step, dict)])

    @property
    def sampled(self) -> Mapping[Side, Path]:
        """The completions that each side's last GRPO stage kept."""
        files = sorted(self.run.folder("logs").glob("r*.parquet"))
        return {side: file for file in files for side in SIDES if file.stem.endswith(side)}


# The page


def write_report(workspace: Workspace, run: Run, file: Path) -> None:
    """Write a run's report, replacing the file atomically. Raises MissingExtraError without the
    extra `report`, TrainingError where the run has no finished round, StorageError.
    """
    check_extra()
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("trainers.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(clean=lambda text: short(str(text)), svg=Markup)
    page = environment.get_template("page.html")
    text = page.render(version=__version__, **_values(Facts(workspace, run)))
    Store(file.resolve().parent).write(file.name, text.encode("utf-8", "replace"))


def _values(facts: Facts) -> dict[str, Any]:
    from trainers.report.figures import draw

    stages = [(round_name(one.number), stage) for one in facts.rounds for stage in one.stages]
    times = [
        {"round": name, "stage": of.name, "time": duration(of.seconds), "wrote": of.output}
        for name, of in stages
    ]
    return {
        "facts": facts,
        "compared": _compared(facts),
        "completions": _completions(facts),
        "stages": Table("", times),
        "settings": Table.of("", dict(sorted(facts.frozen["settings"].items()))),
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        **draw(facts),
    }


def _compared(facts: Facts) -> dict[Split, Table]:
    """A table for each split, baselines before rounds; the first one has the notes."""
    table = rounds_table(facts.run, facts.choice, facts.serves)
    by_split = dict[Split, Table]()
    for split in facts.splits:
        rows, groups = list[dict[str, Any]](), set[str]()
        for row in (one for one in table.rows if one["split"] == split):
            group = "rounds" if row["round"] in facts.names else "baselines"
            shown = {"pair": row["round"], **row}
            kept = {name: value for name, value in shown.items() if name not in ("round", "split")}
            rows.append({" ": "" if group in groups else group, **kept})
            groups.add(group)
        by_split[split] = Table("", rows)
    told = told_f1(latest_facts(facts.run.store, facts.frozen["dataset_hash"]))
    notes = [*table.notes[:-1], *([f"statistical: {told}."] if told else []), facts.next]
    by_split[facts.splits[0]] = replace(by_split[facts.splits[0]], notes=notes)
    return by_split


def _completions(facts: Facts) -> list[Table]:
    """Completions of the last step of each side's last GRPO stage, the best reward first."""
    from pyarrow import parquet

    tables = []
    for side, file in facts.sampled.items():
        completions = sorted(
            parquet.read_table(file).to_pylist(), key=lambda one: -one["retrieval"]
        )
        picked = (
            np.linspace(0, len(completions) - 1, min(len(completions), _SAMPLED))
            .round()
            .astype(int)
        )
        rows = [
            {"reward": one["retrieval"], side: one["entity"], "wrote": text_of(one["completion"])}
            for one in (completions[at] for at in picked)
        ]
        name, step = round_name(int(file.stem[1:4])), completions[0]["step"]
        tables.append(Table(f"{name}, step {step}, {side} side", rows))
    return tables
