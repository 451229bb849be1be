"""A run: its rounds, their stages and the output of each; its folder `runs/NAME` in the store; and
the verdict on a round, which decides whether later rounds build upon it.

Round 0 is SFT (paper, algorithm 1), the others are those of algorithm 2. A finished round has a
verdict: its dev F1 is compared with that of the last accepted round. The paper has none:
it reports five rounds.

The folder holds `run.json` (what the run was begun with), `state.json`, which each stage replaces
atomically, `models/`, `sft/`, `logs/`, and `trainer/` with the checkpoints inside the stage under
way. Snapshots lie in the store with all others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cogr.datasets.builder import DEV_SHARE, by_hash
from cogr.errors import TrainingError
from cogr.keywords import NORMALISER
from cogr.records import Dataset, Query, Split
from cogr.settings import Settings, leaves
from cogr.settings.training import RulesName
from cogr.store import Store
from indexers.workspace import Workspace

StageName = Literal[
    "targets", "train-item", "train-query", "index-item", "index-query", "accept-items", "evaluate"
]

RoundVerdict = Literal["accepted", "rejected"]

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
"""Every later round (paper, algorithm 2). Publishing comes after it: nothing builds upon that."""

_FORMAT = 1


def round_name(number: int) -> str:
    """What a round is called for people: sft for 0, then round 1."""
    return f"round {number}" if number else "sft"


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
    """One round: its stages so far and, once it is finished, whether it is built upon."""

    number: int
    stages: tuple[StageRecord, ...] = ()
    verdict: RoundVerdict | None = None
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
        return {stage.name: stage.output for stage in self.stages}[name]

    def model(self, side: str) -> str:
        """The model folder that the round trained for a side."""
        return self.output("train-query" if side == "query" else "train-item")

    @property
    def queries(self) -> str:
        """Id of the query snapshot that the round ended with."""
        return self.output("index-query")

    @property
    def items(self) -> str:
        """Its item snapshot, with accepted sets only after SFT."""
        return self.output("accept-items" if self.number else "index-item")

    @property
    def figures(self) -> Mapping[str, Mapping[str, Any]]:
        """Split -> figures of the pair that it ended with; {} before."""
        evaluation = self.stage("evaluate")
        return {} if evaluation is None else evaluation.notes

    def as_dict(self, run: str) -> dict[str, Any]:
        """For --json, with the run's name; figures without those of single queries."""
        accepted = self.stage("accept-items")
        figures = {
            split: {name: value for name, value in own.items() if name != "f1s"}
            for split, own in self.figures.items()
        }
        return {
            "run": run,
            "round": self.number,
            "verdict": self.verdict,
            "reason": self.reason,
            "seconds": round(sum(stage.seconds for stage in self.stages), 2),
            "stages": {stage.name: stage.output for stage in self.stages},
            "figures": figures or None,
            "items": accepted and dict(accepted.notes),
        }


class State(_Record):
    """All rounds of a run, in order; the last may be unfinished."""

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
        return max(0, len(self.finished) - 1)

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
        self, stage: StageRecord, verdict: RoundVerdict | None = None, reason: str = ""
    ) -> State:
        """The state with one more finished stage in the round under way."""
        *before, last = self.rounds
        more = {"stages": (*last.stages, stage), "verdict": verdict, "reason": reason}
        return self.model_copy(update={"rounds": (*before, last.model_copy(update=more))})


class _Saved(_Record):
    """What `state.json` holds. The digest is of the run's name and the state."""

    digest: str
    state: State


# The verdict


def dev_f1(figures: Mapping[str, Any]) -> float | None:
    """F1 on the dev queries, of figures by split; None where there are no dev queries."""
    dev = figures.get("dev")
    return None if dev is None else float(dev["f1"])


def verdict(
    rules: RulesName, tolerance: float, base: Round | None, done: StageRecord
) -> tuple[RoundVerdict, str]:
    """Whether a round is accepted or rejected, and the reason.

    Without dev queries, or by the paper's rules, every round is accepted.
    """
    now, before = dev_f1(done.notes), dev_f1(base.figures) if base else None
    if rules == "paper" or now is None or before is None:
        return "accepted", "no dev split to judge by" if rules == "own" and now is None else ""
    if now >= before - tolerance:
        return "accepted", f"dev F1 {before:.4f} -> {now:.4f}"
    return (
        "rejected",
        f"dev F1 {before:.4f} -> {now:.4f}, which loses more than the tolerance of {tolerance:g}",
    )


MIN_SET_APART = 10
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
    return (
        workspace if len(ids) < MIN_SET_APART else workspace.with_dataset(set_apart(dataset, ids))
    )


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
    if workspace.settings.training.rules == "paper":
        return 'Nothing is judged: training.rules is "paper", so every round is built upon.'
    if not (dev := len(dataset.queries.get("dev", ()))):
        return (
            f"Nothing is judged: the data have no dev queries, and {DEV_SHARE:g} of the training "
            f"queries is below {MIN_SET_APART}; every round is built upon."
        )
    how = "training queries, chosen by the hash of their ids and never trained on"
    return f"Judged by {dev} {how if is_set_apart(dataset) else 'dev queries of the data'}."


# The folder

DEFAULT_RUN = "main"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")

_FREE = frozenset(
    {
        "dataset.path",
        "training.processes",
        "training.save_steps",
        "training.accelerate",
        "training.rollouts.by",
    }
)
"""Settings that don't change what is learned: where data lie, how a step is computed."""


def frozen_settings(settings: Settings) -> dict[str, Any]:
    """The settings that a run may not change: dotted key -> value, of the tables that decide what
    is learned.
    """
    whole = dict.fromkeys(("dataset", "keywords", "prompts", "training"), True)
    generator = {"generator": {"sampling", "statistical"}}
    values = settings.model_dump(mode="json", include={**whole, **generator})
    named = ((".".join(path), value) for path, value in leaves(values))
    return {key: value for key, value in named if key not in _FREE and value != {}}


@dataclass(frozen=True)
class Run:
    """One run in a store on the local disk. Make one with `create`, open it with `open_run`."""

    store: Store
    name: str

    def folder(self, *parts: str) -> Path:
        """A folder of the run on the local disk, made when it is not there."""
        folder = self.store.local("/".join((self.path, *parts)))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def path(self) -> str:
        """Its folder, relative to the store."""
        return f"runs/{self.name}"

    @property
    def exists(self) -> bool:
        return self.store.exists(f"{self.path}/run.json")

    def state(self) -> State:
        """The state of the run. Raises TrainingError when its file is broken or another run's."""
        path = f"{self.path}/state.json"
        if not self.store.exists(path):
            return State()
        try:
            saved = _Saved.model_validate_json(self.store.read(path))
            if saved.digest != self._digest(saved.state):
                raise ValueError("its digest is that of another state")
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"The state of run {self.name} ({self.store.full(path)}) is broken; restore it, or "
                "remove it to begin the run again."
            ) from error
        return saved.state

    def rows(self) -> list[dict[str, Any]]:
        """Every round as one row of figures, for --json."""
        return [done.as_dict(self.name) for done in self.state().rounds]

    def save(self, state: State) -> None:
        """Replace the state file atomically. Raises StorageError."""
        saved = _Saved(digest=self._digest(state), state=state)
        self.store.write(f"{self.path}/state.json", saved.model_dump_json(indent=1).encode())

    def _digest(self, state: State) -> str:
        return hashlib.sha256(f"{self.name}\0{state.model_dump_json()}".encode()).hexdigest()[:16]

    def frozen(self) -> dict[str, Any]:
        """The content of `run.json`. Raises StorageError when it is broken."""
        remedy = (
            "restore it, or, if data and settings are the same, remove it and run cogr-train run "
            f"--run {self.name}: its rounds stay"
        )
        frozen: dict[str, Any] = self.store.read_json(f"{self.path}/run.json", remedy)
        return frozen

    def check(self, workspace: Workspace) -> None:
        """Refuse to go on with other data, other settings or another version.

        Raises TrainingError.
        """
        before, now = self.frozen(), begun_with(workspace)
        changed = changes(before.pop("settings"), now.pop("settings")) + changes(before, now)
        if changed:
            raise TrainingError(
                f"The run {self.name} was begun with other settings: {'; '.join(changed[:5])}; "
                "restore them, or begin another run with --run NAME."
            )


def begun_with(workspace: Workspace) -> dict[str, Any]:
    """What a run is begun with and may not change."""
    dataset = with_dev(workspace).dataset
    return {
        "format": _FORMAT,
        "normaliser": NORMALISER,
        "dataset": dataset.name,
        "dataset_hash": dataset.dataset_hash,
        "settings": frozen_settings(workspace.settings),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase for each setting that differs."""
    return [
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]


def open_run(workspace: Workspace, name: str) -> Run:
    """Open a run without checking it. Raises TrainingError where there is none."""
    run = _named(workspace.store, name)
    if not run.exists:
        known = ", ".join(workspace.store.list("runs")) or "none"
        raise TrainingError(
            f"There is no run {name} in {workspace.store.url} (it has {known}): begin one with "
            "cogr-train run."
        )
    return run


def create(workspace: Workspace, name: str = DEFAULT_RUN) -> Run:
    """Begin a run: freeze data hash and settings into its folder. A run that is there is returned.
    Raises TrainingError where that has other data or settings, and StorageError.
    """
    run = _named(workspace.store, name)
    if run.exists:
        run.check(workspace)
        return run
    run.folder()
    run.store.write_json(f"{run.path}/run.json", begun_with(workspace))
    return run


def _named(store: Store, name: str) -> Run:
    if not _NAME.fullmatch(name):
        raise TrainingError(f"{name!r} is not a run name; use lower-case letters, digits, - and _.")
    return Run(store, name)
