"""The state of a run: rounds, their stages and the output of each; and the round gate, which
decides whether later rounds build upon a round.

Round 0 is SFT (paper, algorithm 1), the others are those of algorithm 2. A finished round has a
verdict: its dev F1 is compared with that of the last accepted round. The paper has no gate:
it reports five rounds. `run_folder` keeps the records on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cogr.datasets.splits import DEV_SHARE, by_hash
from cogr.records import Dataset, Query, Split
from cogr.settings.training import Rules
from indexers.workspace import Workspace

StageName = Literal[
    "targets", "train-item", "train-query", "index-item", "index-query", "accept-items", "evaluate"
]

Verdict = Literal["accepted", "rejected"]

SFT_STAGES: tuple[StageName, ...] = (
    "targets",
    "train-item",
    "train-query",
    "index-item",
    "index-query",
    "evaluate",
)
"""Round 0 (paper, algorithm 1)."""

ROUND_STAGES: tuple[StageName, ...] = (
    "train-query",
    "index-query",
    "train-item",
    "index-item",
    "accept-items",
    "evaluate",
)
"""Every later round (paper, algorithm 2).

Publishing comes after it: it changes nothing that is built upon.
"""

FORMAT = 1


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StageRecord(_Record):
    """One finished stage.

    Attributes:
        output: a model folder (relative to the store), or a snapshot id; "" for neither.
        notes: figures and counts, for people and reports.
    """

    name: StageName
    output: str
    seconds: float
    notes: Mapping[str, Any] = {}


class Round(_Record):
    """One round: its stages so far and, once it is finished, whether it is built upon.

    Attributes:
        reason: the reason of the verdict.
    """

    number: int
    stages: tuple[StageRecord, ...] = ()
    verdict: Verdict | None = None
    reason: str = ""

    @property
    def plan(self) -> Sequence[StageName]:
        return ROUND_STAGES if self.number else SFT_STAGES

    @property
    def finished(self) -> bool:
        return len(self.stages) == len(self.plan)

    @property
    def next_stage(self) -> StageName | None:
        return None if self.finished else self.plan[len(self.stages)]

    def stage(self, name: StageName) -> StageRecord | None:
        return next((stage for stage in self.stages if stage.name == name), None)

    def output(self, name: StageName) -> str:
        """What a finished stage wrote. Raises KeyError when it is not finished."""
        stage = self.stage(name)
        if stage is None:
            raise KeyError(f"round {self.number} has not finished {name}")
        return stage.output

    def model(self, side: str) -> str:
        """The model folder that the round trained for a side."""
        return self.output("train-query" if side == "query" else "train-item")

    @property
    def queries(self) -> str:
        """Its query snapshot."""
        return self.output("index-query")

    @property
    def practice(self) -> str:
        """The query snapshot that its item side is trained against, with invented queries where
        there are any.
        """
        stage = self.stage("index-query")
        return str(stage.notes.get("practice", stage.output)) if stage else self.queries

    @property
    def items(self) -> str:
        """Its item snapshot: with accepted sets only, where there is such a stage."""
        return self.output("accept-items" if self.number else "index-item")

    def as_dict(self, run: str) -> dict[str, Any]:
        """For --json, with the run's name."""
        evaluation, accepted = self.stage("evaluate"), self.stage("accept-items")
        return {
            "run": run,
            "round": self.number,
            "verdict": self.verdict,
            "reason": self.reason,
            "seconds": round(sum(stage.seconds for stage in self.stages), 2),
            "stages": {stage.name: stage.output for stage in self.stages},
            "figures": dict(evaluation.notes) if evaluation else None,
            "items": dict(accepted.notes) if accepted else None,
        }


class State(_Record):
    """All rounds of a run, in order; the last may be unfinished."""

    format: int = FORMAT
    rounds: tuple[Round, ...] = ()

    @property
    def unfinished(self) -> Round | None:
        """The round that is under way."""
        return self.rounds[-1] if self.rounds and not self.rounds[-1].finished else None

    @property
    def finished(self) -> tuple[Round, ...]:
        return tuple(round_ for round_ in self.rounds if round_.finished)

    @property
    def base(self) -> Round | None:
        """The last finished round that is built upon."""
        return next(
            (round_ for round_ in reversed(self.finished) if round_.verdict == "accepted"), None
        )

    @property
    def rounds_done(self) -> int:
        """Finished rounds after SFT, rejected ones included."""
        return sum(round_.number > 0 for round_ in self.finished)

    @property
    def next(self) -> str:
        """What the next command does first."""
        current = self.unfinished
        if current is None:
            return f"round {len(self.rounds)}"
        return f"round {current.number}, {current.next_stage}"

    def begun(self) -> State:
        """The state with a round under way: the unfinished one, or a new one."""
        if self.unfinished is not None:
            return self
        return self.model_copy(update={"rounds": (*self.rounds, Round(number=len(self.rounds)))})

    def with_stage(
        self, stage: StageRecord, verdict: Verdict | None = None, reason: str = ""
    ) -> State:
        """The state with one more finished stage in the round under way."""
        *before, last = self.rounds
        more = {"stages": (*last.stages, stage), "verdict": verdict, "reason": reason}
        return self.model_copy(update={"rounds": (*before, last.model_copy(update=more))})

    def back_to(self, number: int, stage: StageName) -> State:
        """The state before a stage of a round: that stage and all later ones are to be done
        again.
        """
        kept = self.rounds[number]
        at = [record.name for record in kept.stages].index(stage)
        again = Round(number=number, stages=kept.stages[:at])
        return self.model_copy(update={"rounds": (*self.rounds[:number], again)})


# The round gate


def dev_f1(figures: Mapping[str, Any]) -> float | None:
    """F1 on the dev queries, of figures by split; None where there are no dev queries."""
    found = figures.get("dev")
    return None if found is None else float(found["f1"])


def verdict(
    rules: Rules, tolerance: float, base: Round | None, done: StageRecord
) -> tuple[Verdict, str]:
    """Whether a round is accepted or rejected, and the reason.

    Without dev queries, or by the paper's rules, every round is accepted.
    """
    evaluation = base.stage("evaluate") if base else None
    now, before = dev_f1(done.notes), dev_f1(evaluation.notes) if evaluation else None
    if rules == "paper" or now is None or before is None:
        return "accepted", "no dev split to judge by" if rules == "own" and now is None else ""
    if now >= before - tolerance:
        return "accepted", f"dev F1 {before:.4f} -> {now:.4f}"
    return (
        "rejected",
        f"dev F1 {before:.4f} -> {now:.4f}, which loses more than the tolerance of {tolerance:g}",
    )


LEAST = 10
"""Fewest dev queries: with fewer, none are set apart and rounds are not judged."""

SET_APART = "training queries set apart as dev"
"""Under this word a data set notes how many."""


def with_dev(workspace: Workspace) -> Workspace:
    """The workspace as training sees it: with a dev split wherever rounds are judged and the data
    can spare one.
    """
    dataset = workspace.dataset
    if workspace.settings.training.rules == "paper" or dataset.queries.get("dev"):
        return workspace
    ids = by_hash((query.id for query in dataset.queries.get("train", ())), DEV_SHARE)
    return workspace if len(ids) < LEAST else workspace.with_dataset(set_apart(dataset, ids))


def set_apart(dataset: Dataset, ids: frozenset[str]) -> Dataset:
    """A data set with these training queries as its dev split, a note about it, and
    another hash.
    """
    train = dataset.queries["train"]
    split: dict[Split, Sequence[Query]] = {
        "train": tuple(query for query in train if query.id not in ids),
        "dev": tuple(query for query in train if query.id in ids),
    }
    named = hashlib.sha256(json.dumps([dataset.dataset_hash, sorted(ids)]).encode()).hexdigest()
    notes = {**dataset.notes, SET_APART: len(ids)}
    return replace(dataset, queries={**dataset.queries, **split}, dataset_hash=named, notes=notes)


def is_set_apart(dataset: Dataset) -> bool:
    """Whether its dev split was taken from the training queries by `set_apart`."""
    return SET_APART in dataset.notes


def judged_by(workspace: Workspace) -> str:
    """One sentence on the queries by which rounds are judged, and how they were chosen."""
    dataset = workspace.dataset
    dev, train = (len(dataset.queries.get(split, ())) for split in ("dev", "train"))
    if workspace.settings.training.rules == "paper":
        return 'Nothing is judged: training.rules is "paper", so every round is built upon.'
    if is_set_apart(dataset):
        return (
            f"Judged by {dev} of the {dev + train} training queries, chosen by the hash of their "
            "ids and never trained on."
        )
    if dev:
        return f"Judged by the {dev} dev queries of the data."
    return (
        f"Nothing is judged: the data have no dev queries, and {DEV_SHARE:g} of {train} training "
        f"queries is below {LEAST}; every round is built upon."
    )
