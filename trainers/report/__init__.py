"""The report of a training run: one HTML file for people that needs no network, and its figures as
files (`figures`). Everything is read from the run's files: finished rounds, step logs, snapshots.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cogr.errors import TrainingError
from cogr.records import SIDES, SPLITS, Dataset, Say, Side, Split
from cogr.snapshots import open_snapshot
from indexers.generators.statistical.generator import latest_facts, told_f1
from indexers.tables import Table, require_extra, write_page
from indexers.telemetry import logs
from indexers.telemetry.terminal import duration
from indexers.workspace import Workspace
from trainers.training.contest import (
    Baselines,
    Choice,
    choose,
    contenders,
    known_baselines,
    measured_baselines,
    round_name,
    rounds_table,
    serving_of,
)
from trainers.training.grpo import text_of
from trainers.training.rounds import Round, Run, with_dev

if TYPE_CHECKING:
    from trainers.report.figures import Figure

_SAMPLED = 8
"""How many completions of each side are shown."""
Drawn = Mapping[str, Sequence["Figure"]]
"""Section of the page -> its figures."""
Owners = dict[str, dict[Side, set[str]]]
"""Keyword -> ids of the entities that have it, by side."""


def check_extra() -> None:
    """Raise MissingExtraError where figures and pages can't be made."""
    require_extra("The report", "report", ("matplotlib", "jinja2"))


class StageLog(NamedTuple):
    """The steps of one training stage, as its log has them."""

    round: int
    side: Side
    steps: Sequence[Mapping[str, Any]]


class Bubble(NamedTuple):
    """A keyword that queries with labels and items came to have (`added`), or to have no more.

    Attributes:
        p: of all pairs of a query and an item that have it, the share that is relevant.
        r: of all relevant items of the queries that have it, the share that has it too.
        entities: queries and items that have it.
    """

    keyword: str
    added: bool
    p: float
    r: float
    entities: int


class Facts:
    """Everything that a report says of one run. Each fact is read when it is first asked for.

    Attributes:
        rounds: the finished ones; SFT is the first.
        base: the last round that is built upon.
        splits: those that were measured, the one of the headlines first: test, else dev, else
            train.

    Raises:
        TrainingError: SFT is not finished.
        SnapshotError: a snapshot is gone or broken; raised by the fact that needs it, too.
    """

    def __init__(self, workspace: Workspace, run: Run, say: Say = lambda _: None) -> None:
        self.run, self._state, self._say = run, run.state(), say
        if not self._state.finished or self._state.base is None:
            raise TrainingError(
                f"The run {run.name} has nothing to report yet: run cogr-train run."
            )
        self.frozen = run.frozen()
        self.rounds, self.base = self._state.finished, self._state.base
        measured = self.rounds[0].figures
        self.splits: list[Split] = [one for one in reversed(SPLITS) if one in measured]
        self._workspace = with_dev(workspace)
        self._same_data = self._workspace.dataset.dataset_hash == self.frozen["dataset_hash"]

    @property
    def under_way(self) -> str:
        """The round that is not finished, and its next stage; "" where there is none."""
        now = self._state.unfinished
        return f"{round_name(now.number)} is under way, next is {now.next_stage}" if now else ""

    @cached_property
    def baselines(self) -> Baselines | None:
        """What the rounds are compared with, measured now where it was not; None where the data are
        no longer the run's.
        """
        if not self._same_data:
            return known_baselines(self.run)
        return measured_baselines(self._workspace, self.run, self._say)

    @cached_property
    def choice(self) -> Choice | None:
        """The pair chosen on dev, whoever wrote it; None where nothing is judged."""
        return choose(contenders(self._state, self.baselines))

    @cached_property
    def serves(self) -> str:
        """Name of the pair that serves."""
        return serving_of(self._workspace, contenders(self._state, self.baselines))

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

    @cached_property
    def lengths(self) -> list[Mapping[int, int]]:
        """Round by round: words in a keyword -> number of such distinct keywords of both sides."""
        return [Counter(len(word.split()) for word in self._owners(one)) for one in self.rounds]

    @cached_property
    def moved(self) -> Sequence[Bubble]:
        """Keywords added and dropped from SFT to `base`; none while that is SFT, and where the data
        are no longer the run's.
        """
        if not (self._same_data and self.base.number):
            return ()
        before, after = self._owners(self.rounds[0]), self._owners(self.base)
        return moved(before, after, self._workspace.dataset)

    def _owners(self, round_: Round) -> Owners:
        owners: Owners = defaultdict(lambda: {"query": set(), "item": set()})
        ids: Mapping[Side, str] = {"item": round_.items, "query": round_.queries}
        for side, id_ in ids.items():
            for row in open_snapshot(self.run.store, id_).rows():
                for word in row.keywords:
                    owners[word][side].add(row.id)
        return owners


# Keywords


def moved(first: Owners, last: Owners, dataset: Dataset) -> list[Bubble]:
    """What one pair has and the other has not, and how well each keyword matches by itself (paper,
    section 5.4); the keywords of most entities first.
    """
    bubbles = [
        bubble
        for added, new, old in ((True, last, first), (False, first, last))
        for word in new.keys() - old.keys()
        if (bubble := _bubble(word, new[word], dataset, added=added)) is not None
    ]
    return sorted(bubbles, key=lambda one: (-one.entities, one.keyword))


def _bubble(
    word: str, owners: Mapping[Side, set[str]], dataset: Dataset, *, added: bool
) -> Bubble | None:
    items = owners["item"]
    wanted = [dataset.relevant[id_] for id_ in owners["query"] if dataset.relevant.get(id_)]
    if not wanted or not items:
        return None
    hits = sum(len(items & ids) for ids in wanted)
    p, r = hits / (len(wanted) * len(items)), hits / sum(map(len, wanted))
    return Bubble(word, added, p, r, len(items) + len(owners["query"]))


# The page


def write_report(
    workspace: Workspace,
    run: Run,
    file: Path,
    say: Say = lambda _: None,
    figures: Path | None = None,
) -> list[Path]:
    """Write a run's report, replacing the file atomically; returns the files written, it first.
    A folder `figures` gets every figure as SVG and PNG.

    Raises:
        MissingExtraError: without the extra `report`.
        TrainingError: the run has no finished round.
        SnapshotError: a snapshot of the run is gone or broken.
        StorageError: the file can't be written.
    """
    facts = Facts(workspace, run, say)
    made = drawn(facts)
    write_page(file, "trainers.report", **_values(facts, made))
    several = chain(*made.values()) if figures else ()
    return [file, *(path for one in several if figures for path in one.write(figures))]


def drawn(facts: Facts) -> Drawn:
    """The figures of a report. Raises MissingExtraError without the extra `report`."""
    check_extra()
    from trainers.report.figures import draw

    return draw(facts)


def _values(facts: Facts, figures: Drawn) -> dict[str, Any]:
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
        **figures,
    }


def _compared(facts: Facts) -> dict[Split, Table]:
    """A table for each split, baselines before rounds; the first one has the notes."""
    table = rounds_table(facts.run, facts.choice, facts.serves, facts.baselines)
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
