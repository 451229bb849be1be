"""What a report says of a run, read from the run's files: finished rounds, step logs, snapshots,
and what a side's keywords gained and lost between two of them.

Only the pairs in the middle of a round (new queries, old items) are measured when the report is
written, and only while the data are still those of the run.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, cast

import numpy as np

from cogr.differences import differences
from cogr.errors import TrainingError
from cogr.evaluation import retrieved_ids, rows_of_queries, set_figures
from cogr.matching.mirror import Mirror
from cogr.metrics import reliability
from cogr.records import SIDES, SPLITS, Say, Side, Split
from cogr.snapshots import Snapshot, open_snapshot
from cogr.store import Store
from indexers.backends.memory import MemoryBackend
from indexers.workspace import Workspace
from trainers.evaluation import evaluate
from trainers.report.keywords import (
    Lengths,
    Moved,
    Snapshots,
    Vocabulary,
    lengths,
    moved,
    vocabularies,
)
from trainers.training.contest import (
    Choice,
    Contender,
    Rivals,
    choose,
    contenders,
    known_rivals,
    rivals,
)
from trainers.training.rounds import Round, StageRecord, State, Verdict, with_dev
from trainers.training.run_folder import Run
from trainers.training.run_folder import changes as setting_changes

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Pair:
    """A pair of snapshots and its figures.

    Attributes:
        name: SFT, round 1, ...; "1 queries" for the pair in the middle of round 1.
        figures: split -> measure -> value.
        verdict: None in the middle of a round.
    """

    name: str
    round: int
    figures: Mapping[str, Figures]
    verdict: Verdict | None = None


@dataclass(frozen=True)
class StageLog:
    """The steps of one training stage, as its log has them.

    Attributes:
        measured: figures inside the stage: "step", and F1 by split (`training.evaluate_steps`).
    """

    round: int
    side: Side
    steps: Sequence[Mapping[str, Any]]
    measured: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Movement:
    """Keywords gained and lost by one side in one round, against the round that it was built on."""

    round: int
    side: Side
    changes: Changes


@dataclass(frozen=True)
class Facts:
    """Everything that a report says of one run.

    Attributes:
        rounds: the finished ones; SFT is the first.
        pairs: the finished rounds' pairs, and those in the middle of a round where the data allow
            it.
        base: the last round that is built upon.
        lengths: of the distinct keywords of both sides, round by round.
        overall: SFT against `base`, by side; None while that is SFT.
        moved: keywords added and dropped from SFT to `base`; None while that is SFT, and where the
            data are no longer the run's.
        rivals: what the rounds are compared with; None where that was not measured and the data are
            no longer the run's.
        choice: the best pair on dev, whoever wrote it; None where nothing is judged.
        reliability: split -> points of the reliability diagram of `statistical`
            (`cogr.metrics.reliability`), where its pair is there and says how sure it is.
        beside: the pair of another run, entity by entity; None without one.
    """

    run: str
    frozen: Mapping[str, Any]
    rounds: Sequence[Round]
    under_way: str
    pairs: Sequence[Pair]
    logs: Sequence[StageLog]
    vocabularies: Sequence[Vocabulary]
    lengths: Sequence[Lengths]
    movements: Sequence[Movement]
    moved: Moved | None
    base: Round
    overall: Mapping[Side, Changes] | None
    examples: Sequence[Changed]
    rivals: Rivals | None
    choice: Choice | None
    reliability: Mapping[Split, Sequence[Sequence[float]]]
    beside: Beside | None = None

    @property
    def whole(self) -> list[Pair]:
        """The pairs that rounds ended with."""
        return [pair for pair in self.pairs if pair.verdict is not None]

    @property
    def splits(self) -> list[Split]:
        """The splits that were measured, the one of the headlines first."""
        return [split for split in reversed(SPLITS) if split in self.whole[0].figures]

    @property
    def split(self) -> Split:
        """The split that headlines are about: test, else dev, else train."""
        return self.splits[0]


def gather(
    workspace: Workspace, run: Run, say: Say = lambda _: None, other: Run | None = None
) -> Facts:
    """Read a run. Raises TrainingError before SFT is finished, SnapshotError when a snapshot is
    gone or broken.

    Args:
        say: called with a line about what is measured now.
        other: a run whose keywords are shown beside this one's.
    """
    state = run.state()
    if not state.finished or state.base is None:
        raise TrainingError(f"The run {run.name} has nothing to report yet: run cogr-train sft.")
    workspace = with_dev(workspace)
    frozen, opened = run.frozen(), _pairs(workspace.store)
    same = workspace.dataset.dataset_hash == frozen["dataset_hash"]
    beside = rivals(workspace, run, say) if same else known_rivals(run)
    whole = [Pair(round_name(r.number), r.number, _figures(r), r.verdict) for r in state.finished]
    first, last = state.finished[0], state.base
    overall = _both(opened(first), opened(last)) if last.number else None
    return Facts(
        run=run.name,
        frozen=frozen,
        rounds=state.finished,
        under_way=_under_way(state),
        pairs=sorted(
            [*(_middles(workspace, opened, state) if same else ()), *whole],
            key=lambda p: (p.round, p.verdict is not None),
        ),
        logs=list(_logs(run, state)),
        vocabularies=[
            one for round_ in state.finished for one in vocabularies(round_.number, opened(round_))
        ],
        lengths=[lengths(round_.number, opened(round_)) for round_ in state.finished],
        movements=[
            Movement(round_.number, side, found)
            for round_ in state.finished[1:]
            for side, found in _both(opened(built_on(state, round_)), opened(round_)).items()
        ],
        moved=moved(opened(first), opened(last), workspace.dataset) if same and overall else None,
        base=last,
        overall=overall,
        examples=examples(overall["item"], overall["query"]) if overall else [],
        rivals=beside,
        choice=choose(contenders(state, beside)),
        reliability=_reliability(workspace, beside.statistical if same and beside else None),
        beside=None if other is None else _beside(opened, run, last, other),
    )


def _reliability(
    workspace: Workspace, pair: Contender | None
) -> Mapping[Split, Sequence[Sequence[float]]]:
    if pair is None:
        return {}
    items, queries = (open_snapshot(workspace.store, id_) for id_ in (pair.items, pair.queries))
    mirror = Mirror.build(items)
    found: dict[Split, Sequence[Sequence[float]]] = {}
    for split in cast("list[Split]", list(pair.figures)):
        asked = workspace.dataset.queries[split]
        rows = rows_of_queries(asked, queries)
        sure = [row.confidence for row in rows.values() if row.confidence is not None]
        if len(sure) == len(rows):
            sets = retrieved_ids(mirror, {id_: list(row.weighted) for id_, row in rows.items()})
            f1 = set_figures(workspace.dataset, asked, sets).values["f1"]
            found[split] = reliability(np.array(sure), f1)
    return found


def _pairs(store: Store) -> Callable[[Round], Snapshots]:
    """Gives both snapshots of a round, each verified and opened once."""
    opened = cache(partial(open_snapshot, store))
    return lambda round_: {"item": opened(round_.items), "query": opened(round_.queries)}


def round_name(number: int) -> str:
    """SFT, round 1, ..."""
    return f"round {number}" if number else "SFT"


def _under_way(state: State) -> str:
    now = state.unfinished
    return f"{round_name(now.number)} is under way, next is {now.next_stage}" if now else ""


def _figures(round_: Round) -> Mapping[str, Figures]:
    stage = round_.stage("evaluate")
    assert stage is not None
    return stage.notes


def built_on(state: State, round_: Round) -> Round:
    """The round that a later one was built on: the last accepted one before it."""
    return next(
        r for r in reversed(state.finished) if r.number < round_.number and r.verdict == "accepted"
    )


def _middles(
    workspace: Workspace, opened: Callable[[Round], Snapshots], state: State
) -> Iterator[Pair]:
    """The new queries of each round on the items of the round before: what the query side alone
    brought.
    """
    backend, weights = MemoryBackend(workspace.store), workspace.settings.keywords.weights
    for round_ in state.finished[1:]:
        items, queries = opened(built_on(state, round_))["item"], opened(round_)["query"]
        backend.push(items)
        asked = (backend, workspace.dataset, items, queries)
        found: dict[str, Figures] = {
            split: evaluate(*asked, split, weights=weights).as_dict()
            for split in SPLITS
            if split in _figures(round_)
        }
        yield Pair(f"{round_.number} queries", round_.number, found)


def _logs(run: Run, state: State) -> Iterator[StageLog]:
    sides = {f"train-{side}": side for side in SIDES}
    for round_ in state.rounds:
        for stage in round_.stages:
            if (side := sides.get(stage.name)) is not None:
                found = (_lines(run, round_, stage, f"{side}{end}") for end in ("", ".f1"))
                yield StageLog(round_.number, side, *found)


def _lines(run: Run, round_: Round, stage: StageRecord, name: str) -> list[Mapping[str, Any]]:
    """A log beside the model that the stage wrote, which may lie in the run that this one is a
    branch of.
    """
    owner = stage.output.partition("/models/")[0]
    path = f"{owner}/logs/r{round_.number:03d}-{name}.jsonl"
    if not run.store.exists(path):
        return []
    steps: list[Any] = []
    for line in run.store.read(path).decode(errors="replace").splitlines():
        # The last line of a stage that was killed may be torn.
        with contextlib.suppress(ValueError):
            steps.append(json.loads(line))
    return [step for step in steps if isinstance(step, dict)]


def _both(before: Snapshots, after: Snapshots) -> dict[Side, Changes]:
    return {side: changes(before[side], after[side]) for side in SIDES}


@dataclass(frozen=True)
class Beside:
    """The last pairs of two runs that are built upon, beside one another.

    Attributes:
        names: of the two runs.
        settings: what the other one was trained with otherwise, one phrase each.
        rows: entities whose keywords differ, evenly from all of them; `lost` are those of the
            first run alone, `gained` those of the other.
    """

    names: tuple[str, str]
    settings: Sequence[str]
    rows: Sequence[Changed]


BESIDE = 4
"""How many entities of each side are shown beside one another."""


def _beside(opened: Callable[[Round], Snapshots], run: Run, last: Round, other: Run) -> Beside:
    """Raises TrainingError where the other run has no pair, or is of other data."""
    theirs = other.state().base
    if theirs is None:
        raise TrainingError(f"The run {other.name} has nothing to show yet: run cogr-train sft.")
    mine, yours = run.frozen(), other.frozen()
    if mine["dataset"] != yours["dataset"]:
        raise TrainingError(
            f"The runs {run.name} and {other.name} are of two data sets, {mine['dataset']} and "
            f"{yours['dataset']}; name a run of the same."
        )
    both = _both(opened(last), opened(theirs)).values()
    found = [one for changed in both for one in evenly(changed.changed, BESIDE)]
    settings = setting_changes(mine["settings"], yours["settings"])
    return Beside((run.name, other.name), settings, found)


EXAMPLES: Mapping[Side, int] = {"item": 3, "query": 2}
"""How many entities of each side are shown as examples."""


@dataclass(frozen=True)
class Changed:
    """One entity before and after.

    Attributes:
        gained, lost, kept: keywords, in the order in which the set has them.
    """

    side: Side
    id: str
    text: str
    gained: Sequence[str]
    lost: Sequence[str]
    kept: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


@dataclass(frozen=True)
class Changes:
    """A whole side before and after.

    Attributes:
        gained, lost: keyword -> number of entities that gained or lost it.
        changed: entities with other keywords, in id order.
        entities: how many the later snapshot has.
    """

    gained: Counter[str]
    lost: Counter[str]
    changed: Sequence[Changed]
    entities: int


def changes(before: Snapshot, after: Snapshot) -> Changes:
    """Compare two snapshots of one side. An entity that only the later one has gained everything;
    one that only the earlier one has does not count.

    Memory: the changed entities.

    Raises:
        SnapshotError: one snapshot is of items and the other of queries.
    """
    changed = [
        Changed(after.side, one.id, one.after.text, one.gained, one.lost, one.kept)
        for one in differences(before, after)
        if one.after is not None and (one.gained or one.lost)
    ]
    return Changes(
        Counter(word for one in changed for word in one.gained),
        Counter(word for one in changed for word in one.lost),
        changed,
        after.manifest.entities,
    )


def examples(items: Changes, queries: Changes) -> list[Changed]:
    """Five entities to look at, three items and two queries, evenly from those that changed: not
    chosen by their result.
    """
    both = ((items, EXAMPLES["item"]), (queries, EXAMPLES["query"]))
    return [one for found, count in both for one in evenly(found.changed, count)]


def evenly(found: Sequence[Changed], count: int) -> list[Changed]:
    """So many of a sequence, in its order, from the middles of equally long stretches."""
    if len(found) <= count:
        return list(found)
    return [found[(2 * at + 1) * len(found) // (2 * count)] for at in range(count)]
