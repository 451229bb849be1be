"""What a report says of a run, read from the run's files: finished rounds, step logs, snapshots,
and what became of the keywords between them (paper, section 5.4).

Only the pairs in the middle of a round (new queries, old items) are measured when the report is
written, and only while the data are still those of the run.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, cast

from cogr.differences import differences
from cogr.errors import ServiceError, TrainingError
from cogr.records import SIDES, SPLITS, Dataset, Say, Side, Split
from cogr.snapshots import Snapshot, open_snapshot
from indexers.backends.memory import MemoryBackend
from indexers.workspace import Workspace
from trainers.evaluation import evaluate
from trainers.training.contest import (
    Choice,
    Rivals,
    choose,
    contenders,
    known_rivals,
    rivals,
)
from trainers.training.rounds import Round, Run, StageRecord, Verdict, with_dev

EXAMPLES: Mapping[Side, int] = {"item": 3, "query": 2}
"""How many entities of each side are shown as examples."""

Figures = Mapping[str, float]
Snapshots = Mapping[Side, Snapshot]
"""The snapshots of one round."""


@dataclass(frozen=True)
class Pair:
    """A pair of snapshots and its figures by split; "1 queries" for the pair in the middle of round
    1, which has no verdict.
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
    """The keywords of one round's pair.

    Attributes:
        size: side -> mean number of keywords of an entity.
        shared: distinct keywords that both sides have.
        lengths: words in a keyword -> number of such distinct keywords of both sides.
    """

    size: Mapping[Side, float]
    distinct: Mapping[Side, int]
    shared: int
    lengths: Mapping[int, int]


@dataclass(frozen=True)
class Bubble:
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


@dataclass(frozen=True)
class Changed:
    """One entity before and after: keywords, in the order in which the set has them."""

    side: Side
    id: str
    text: str
    gained: Sequence[str]
    lost: Sequence[str]
    kept: Sequence[str]


class Facts:
    """Everything that a report says of one run. Each fact is read, or measured, when it is first
    asked for.

    Attributes:
        rounds: the finished ones; SFT is the first.
        base: the last round that is built upon.

    Raises:
        TrainingError: SFT is not finished.
        SnapshotError: a snapshot is gone or broken; raised by the fact that needs it, too.
    """

    def __init__(self, workspace: Workspace, run: Run, say: Say = lambda _: None) -> None:
        self._run, self._state, self._say = run, run.state(), say
        if not self._state.finished or self._state.base is None:
            raise TrainingError(
                f"The run {run.name} has nothing to report yet: run cogr-train run."
            )
        self.run, self.frozen = run.name, run.frozen()
        self.rounds, self.base = self._state.finished, self._state.base
        self._workspace = with_dev(workspace)
        self._dataset = self._workspace.dataset
        self._same_data = self._dataset.dataset_hash == self.frozen["dataset_hash"]
        self._snapshot = cache(partial(open_snapshot, workspace.store))

    @property
    def under_way(self) -> str:
        """The round that is not finished, and its next stage; "" where there is none."""
        now = self._state.unfinished
        return f"{round_name(now.number)} is under way, next is {now.next_stage}" if now else ""

    @cached_property
    def whole(self) -> list[Pair]:
        """The pairs that rounds ended with."""
        return [Pair(round_name(r.number), r.number, _figures(r), r.verdict) for r in self.rounds]

    @cached_property
    def pairs(self) -> list[Pair]:
        """With those in the middle of a round, where the data are still the run's: its new queries
        on the items of the round before, which is what the query side alone brought.
        """
        found, workspace = list(self.whole), self._workspace
        backend, weights = MemoryBackend(workspace.store), workspace.settings.keywords.weights
        for round_ in self.rounds[1:] if self._same_data else ():
            earlier = self.rounds[: round_.number]
            base = next(one for one in reversed(earlier) if one.verdict == "accepted")
            items = self._opened(base)["item"]
            backend.push(items)
            asked = (backend, self._dataset, items, self._opened(round_)["query"])
            figures: dict[str, Figures] = {
                split: evaluate(*asked, split, weights=weights).as_dict()
                for split in SPLITS
                if split in _figures(round_)
            }
            found.append(Pair(f"{round_.number} queries", round_.number, figures))
        return sorted(found, key=lambda pair: (pair.round, pair.verdict is not None))

    @property
    def splits(self) -> list[Split]:
        """The splits that were measured, the one of the headlines first: test, else dev, else
        train.
        """
        return [split for split in reversed(SPLITS) if split in self.whole[0].figures]

    @property
    def split(self) -> Split:
        """The split that headlines are about."""
        return self.splits[0]

    @cached_property
    def rivals(self) -> Rivals | None:
        """What the rounds are compared with; None where that was not measured and the data are no
        longer the run's.
        """
        if not self._same_data:
            return known_rivals(self._run)
        return rivals(self._workspace, self._run, self._say)

    @cached_property
    def choice(self) -> Choice | None:
        """The pair chosen on dev, whoever wrote it; None where nothing is judged."""
        return choose(contenders(self._state, self.rivals))

    @cached_property
    def serves(self) -> str:
        """The name of the pair that serves; "" for one of another run, none, or no answer."""
        try:
            serving = self._workspace.backend.serving()
        except ServiceError:
            return ""
        pair = (serving.get("item"), serving.get("query"))
        known = contenders(self._state, self.rivals)
        return next((one.name for one in known if (one.items, one.queries) == pair), "")

    @cached_property
    def logs(self) -> list[StageLog]:
        """Of all training stages, in their order."""
        return [
            StageLog(round_.number, cast("Side", stage.name[6:]), self._lines(round_.number, stage))
            for round_ in self._state.rounds
            for stage in round_.stages
            if stage.name.startswith("train-")
        ]

    def _lines(self, number: int, stage: StageRecord) -> list[Mapping[str, Any]]:
        """A log beside the model that the stage wrote, which may lie in the run that this one is a
        branch of.
        """
        owner, store = stage.output.partition("/models/")[0], self._run.store
        path = f"{owner}/logs/r{number:03d}-{stage.name[6:]}.jsonl"
        steps: list[Any] = []
        for line in store.read(path).splitlines() if store.exists(path) else ():
            # The last line of a stage that was killed may be torn.
            with contextlib.suppress(ValueError):
                steps.append(json.loads(line))
        return [step for step in steps if isinstance(step, dict)]

    @cached_property
    def vocabularies(self) -> list[Vocabulary]:
        """Round by round."""
        return [vocabulary(self._opened(round_)) for round_ in self.rounds]

    @cached_property
    def overall(self) -> Mapping[Side, Sequence[Changed]]:
        """Side -> what changed from SFT to `base`; empty while that is SFT."""
        if not self.base.number:
            return {}
        before, after = self._opened(self.rounds[0]), self._opened(self.base)
        return {side: changes(before[side], after[side]) for side in SIDES}

    @cached_property
    def moved(self) -> Sequence[Bubble]:
        """Keywords added and dropped from SFT to `base`; none while that is SFT, and where the data
        are no longer the run's.
        """
        if not (self._same_data and self.base.number):
            return ()
        return moved(self._opened(self.rounds[0]), self._opened(self.base), self._dataset)

    @property
    def examples(self) -> list[Changed]:
        """Entities to look at, of those that changed since SFT."""
        return examples(self.overall["item"], self.overall["query"]) if self.overall else []

    def _opened(self, round_: Round) -> Snapshots:
        """Both snapshots of a round, each verified and opened once."""
        return {"item": self._snapshot(round_.items), "query": self._snapshot(round_.queries)}


def round_name(number: int) -> str:
    """SFT, round 1, ..."""
    return f"round {number}" if number else "SFT"


def _figures(round_: Round) -> Mapping[str, Figures]:
    stage = round_.stage("evaluate")
    assert stage is not None
    return stage.notes


# Keywords


def vocabulary(pair: Snapshots) -> Vocabulary:
    """The keywords of a pair."""
    counts = {
        side: Counter(word for row in pair[side].rows() for word in row.keywords) for side in SIDES
    }
    entities = {side: max(1, pair[side].manifest.entities) for side in SIDES}
    return Vocabulary(
        size={side: found.total() / entities[side] for side, found in counts.items()},
        distinct={side: len(found) for side, found in counts.items()},
        shared=len(counts["item"].keys() & counts["query"].keys()),
        lengths=Counter(len(word.split()) for word in counts["item"].keys() | counts["query"]),
    )


def moved(before: Snapshots, after: Snapshots, dataset: Dataset) -> list[Bubble]:
    """What one pair has and the other has not, and how well each keyword matches by itself; the
    keywords of most entities first.

    Memory: the owners of every keyword of both pairs.
    """
    first, last = _owners(before), _owners(after)
    bubbles = [
        bubble
        for added, new, old in ((True, last, first), (False, first, last))
        for word in new.keys() - old.keys()
        if (bubble := _bubble(word, new[word], dataset, added=added)) is not None
    ]
    return sorted(bubbles, key=lambda one: (-one.entities, one.keyword))


def _owners(pair: Snapshots) -> Mapping[str, Mapping[Side, set[str]]]:
    found: dict[str, dict[Side, set[str]]] = defaultdict(lambda: {"query": set(), "item": set()})
    for side in SIDES:
        for row in pair[side].rows():
            for word in row.keywords:
                found[word][side].add(row.id)
    return found


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


def changes(before: Snapshot, after: Snapshot) -> list[Changed]:
    """The entities with other keywords, in id order. One that only the later snapshot has gained
    everything; one that only the earlier one has does not count.

    Raises SnapshotError where one is of items and the other of queries.
    """
    return [
        Changed(after.side, one.id, one.after.text, one.gained, one.lost, one.kept)
        for one in differences(before, after)
        if one.after is not None and (one.gained or one.lost)
    ]


def examples(items: Sequence[Changed], queries: Sequence[Changed]) -> list[Changed]:
    """Five entities to look at, three items and two queries, evenly from those that changed: not
    chosen by their result.
    """
    both = ((items, EXAMPLES["item"]), (queries, EXAMPLES["query"]))
    return [one for found, count in both for one in evenly(found, count)]


def evenly(found: Sequence[Changed], count: int) -> list[Changed]:
    """So many of a sequence, in its order, from the middles of equally long stretches."""
    if len(found) <= count:
        return list(found)
    return [found[(2 * at + 1) * len(found) // (2 * count)] for at in range(count)]
