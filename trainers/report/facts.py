"""What a report says of a run, read from the run's files: finished rounds, step logs, snapshots,
and
what a side's keywords gained and lost between two of them.

Only the pairs in the middle of a round (new queries, old items) are measured when the report is
written, and only while the data are still those of the run.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from cogr.differences import differences
from cogr.errors import TrainingError
from cogr.evaluation import rows_of_queries, set_figures
from cogr.matching.mirror import Mirror
from cogr.metrics import reliability
from cogr.progress import Say
from cogr.records import SIDES, SPLITS, Side, Split
from cogr.snapshots import Snapshot, open_snapshot
from indexers.backends.memory import MemoryBackend
from indexers.workspace import Workspace
from trainers.evaluation import evaluate
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
    """The steps of one training stage, as its log has them."""

    round: int
    side: Side
    steps: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Vocabulary:
    """The keywords of one side after one round.

    Attributes:
        words: words in a keyword -> number of such keywords, repeats over entities counted.
        shared: distinct keywords that the other side of the round has too.
    """

    round: int
    side: Side
    entities: int
    keywords: int
    distinct: int
    shared: int
    words: Mapping[int, int]


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
        overall: SFT against `base`, by side; None while that is SFT.
        rivals: what the rounds are compared with; None where that was not measured and the data are
            no longer the run's.
        choice: the best pair on dev, whoever wrote it; None where nothing is judged.
        reliability: split -> points of the reliability diagram of `statistical`
            (`cogr.metrics.reliability`), where its pair is there and says how sure it is.
    """

    run: str
    frozen: Mapping[str, Any]
    rounds: Sequence[Round]
    under_way: str
    pairs: Sequence[Pair]
    logs: Sequence[StageLog]
    vocabularies: Sequence[Vocabulary]
    movements: Sequence[Movement]
    base: Round
    overall: Mapping[Side, Changes] | None
    examples: Sequence[Changed]
    rivals: Rivals | None
    choice: Choice | None
    reliability: Mapping[Split, Sequence[Sequence[float]]]

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


def gather(workspace: Workspace, run: Run, say: Say = lambda _: None) -> Facts:
    """Read a run. Raises TrainingError before SFT is finished, SnapshotError when a snapshot is
    gone or broken.

    Args:
        say: called with a line about what is measured now.
    """
    state = run.state()
    if not state.finished or state.base is None:
        raise TrainingError(f"The run {run.name} has nothing to report yet: run cogr-train sft.")
    workspace = with_dev(workspace)
    frozen, opened = run.frozen(), _Opened(workspace)
    same = workspace.dataset.dataset_hash == frozen["dataset_hash"]
    beside = rivals(workspace, run, say) if same else known_rivals(run)
    whole = [Pair(round_name(r.number), r.number, _figures(r), r.verdict) for r in state.finished]
    movements = list(_movements(opened, state))
    first, last = state.finished[0], state.base
    overall = _overall(opened, first, last)
    return Facts(
        run=run.name,
        frozen=frozen,
        rounds=state.finished,
        under_way=_under_way(state),
        pairs=sorted(
            [*_middles(workspace, opened, frozen, state), *whole],
            key=lambda p: (p.round, p.verdict is not None),
        ),
        logs=list(_logs(run, state)),
        vocabularies=[one for round_ in state.finished for one in _vocabularies(opened, round_)],
        movements=movements,
        base=last,
        overall=overall,
        examples=examples(overall["item"], overall["query"]) if overall else [],
        rivals=beside,
        choice=choose(contenders(state, beside)),
        reliability=_reliability(workspace, beside.statistical if same and beside else None),
    )


def _reliability(
    workspace: Workspace, pair: Contender | None
) -> Mapping[Split, Sequence[Sequence[float]]]:
    if pair is None:
        return {}
    snapshots = (open_snapshot(workspace.store, id_) for id_ in (pair.items, pair.queries))
    items, queries = snapshots
    mirror = Mirror.build(items)
    found: dict[Split, Sequence[Sequence[float]]] = {}
    for split in cast("list[Split]", list(pair.figures)):
        asked = workspace.dataset.queries[split]
        rows = rows_of_queries(asked, queries)
        sure = [row.confidence for row in rows.values() if row.confidence is not None]
        if len(sure) == len(rows):
            sets = {
                id_: set(map(mirror.id_of, mirror.retrieved(row.weighted)))
                for id_, row in rows.items()
            }
            f1 = set_figures(workspace.dataset, asked, sets).values["f1"]
            found[split] = reliability(np.array(sure), f1)
    return found


class _Opened:
    """Snapshots by id, each verified and opened once."""

    def __init__(self, workspace: Workspace) -> None:
        self._store = workspace.store
        self._known: dict[str, Snapshot] = {}

    def __call__(self, round_: Round, side: Side) -> Snapshot:
        id_ = round_.items if side == "item" else round_.queries
        if id_ not in self._known:
            self._known[id_] = open_snapshot(self._store, id_)
        return self._known[id_]


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
    workspace: Workspace, opened: _Opened, frozen: Mapping[str, Any], state: State
) -> Iterator[Pair]:
    """The new queries of each round on the items of the round before: what the query side alone
    brought.
    """
    if workspace.dataset.dataset_hash != frozen["dataset_hash"]:
        return
    backend = MemoryBackend(workspace.store)
    for round_ in state.finished[1:]:
        items, queries = opened(built_on(state, round_), "item"), opened(round_, "query")
        backend.push(items)
        found: dict[str, Figures] = {}
        for split in SPLITS:
            if split in _figures(round_):
                found[split] = evaluate(
                    backend,
                    workspace.dataset,
                    items,
                    queries,
                    split,
                    weights=workspace.settings.keywords.weights,
                ).as_dict()
        yield Pair(f"{round_.number} queries", round_.number, found)


def _logs(run: Run, state: State) -> Iterator[StageLog]:
    for round_ in state.rounds:
        for stage in round_.stages:
            for side in SIDES:
                if stage.name == f"train-{side}":
                    yield StageLog(round_.number, side, _steps(run, round_, stage, side))


def _steps(run: Run, round_: Round, stage: StageRecord, side: Side) -> list[Mapping[str, Any]]:
    """The log beside the model that the stage wrote, which may lie in the run that this one is a
    branch of.
    """
    owner = stage.output.partition("/models/")[0]
    path = f"{owner}/logs/r{round_.number:03d}-{side}.jsonl"
    if not run.store.exists(path):
        return []
    steps: list[Mapping[str, Any]] = []
    for line in run.store.read(path).decode(errors="replace").splitlines():
        with contextlib.suppress(
            ValueError
        ):  # The last line of a stage that was killed may be torn.
            step = json.loads(line)
            steps += [step] if isinstance(step, dict) else []
    return steps


def _vocabularies(opened: _Opened, round_: Round) -> Iterator[Vocabulary]:
    counts = {
        side: Counter(w for row in opened(round_, side).rows() for w in row.keywords)
        for side in SIDES
    }
    shared = len(counts["item"].keys() & counts["query"].keys())
    for side in SIDES:
        words: Counter[int] = Counter()
        for keyword, times in counts[side].items():
            words[len(keyword.split())] += times
        entities = opened(round_, side).manifest.entities
        yield Vocabulary(
            round_.number, side, entities, words.total(), len(counts[side]), shared, words
        )


def _movements(opened: _Opened, state: State) -> Iterator[Movement]:
    for round_ in state.finished[1:]:
        before = built_on(state, round_)
        for side in SIDES:
            yield Movement(round_.number, side, changes(opened(before, side), opened(round_, side)))


def _overall(opened: _Opened, first: Round, last: Round) -> Mapping[Side, Changes] | None:
    if first.number == last.number:
        return None
    return {side: changes(opened(first, side), opened(last, side)) for side in SIDES}


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
    both: tuple[tuple[Side, Changes], ...] = (("item", items), ("query", queries))
    return [one for side, found in both for one in evenly(found.changed, EXAMPLES[side])]


def evenly(found: Sequence[Changed], count: int) -> list[Changed]:
    """So many of a sequence, in its order, from the middles of equally long stretches."""
    if len(found) <= count:
        return list(found)
    return [found[(2 * at + 1) * len(found) // (2 * count)] for at in range(count)]
