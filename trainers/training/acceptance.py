"""Which new keyword sets of a round are accepted: of items those that still raise F1 when they are
taken one after another; of edited queries those whose predicted gain exceeds a margin, which is
chosen on dev queries.

Every item's marginal reward (paper, section 2.3) is measured against the same reference. When all
items move at once, the gains overlap and are not realised in full. Here sets are taken one after
another, the most promising first, with the counts updated as it goes. The paper takes all of them:
`training.rules = "paper"`.

Queries don't depend on one another. Where a run edits an existing pair (`training.start`), an edit
must raise F1: the pair of a round is never worse on the dev queries than the pair before it.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cogr.keywords import self_keyword
from cogr.records import Query
from cogr.rewards import Reference, World, query_reward
from cogr.snapshots import Provenance, Row, Snapshot, write_snapshot
from trainers.training.building import build_index, draw_sets, practice_snapshot
from trainers.training.inputs import Inputs, Wrote, counts_of

_PASSES = 3
_NOISE = 1e-9
Candidates = Mapping[str, Sequence[Sequence[str]]]


@dataclass(frozen=True)
class Acceptance:
    """The accepted item sets. Figures are sums of F over the training queries, by the weights of
    the queries.

    Attributes:
        accepted: item id -> the set that it takes.
        before: the objective with all old sets.
        promised: sum of the marginal gains of the model's new sets, each measured alone.
        at_once: change of the objective if every one of them were taken.
        realised: change of the objective with the accepted sets; never below 0.
    """

    accepted: Mapping[str, Sequence[str]]
    before: float
    promised: float
    at_once: float
    realised: float


def accept(train: World, candidates: Candidates, practice: World | None = None) -> Acceptance:
    """Choose among new item sets, given worlds whose item mirror has the old sets.

    At its turn an item takes the candidate with the best practice F1 among those that lower neither
    practice nor training F1. A set that changes neither is taken: it uses the vocabulary that the
    query side has moved to. Passes are repeated until one takes nothing, three at most, because
    another item's change may let a set gain. Training F1 never falls, since no single step lowers
    it.

    Args:
        train: the old item sets, the frozen queries, the training labels.
        candidates: item id -> its new keyword sets, within the budget, without its own text; the
            first is the model's own.
        practice: the same items with more queries, where there are any.
    """
    before = Reference(train)
    own = {id_: sets[0] for id_, sets in candidates.items()}
    gains = {id_: before.marginal(before.item(id_), words) for id_, words in own.items()}
    growing = _Growing(train, practice)
    order = sorted(candidates, key=lambda id_: (-gains[id_], id_))
    taken: dict[str, Sequence[str]] = {}
    for _ in range(_PASSES):
        now = {
            id_: words
            for id_ in order
            if (words := growing.take(id_, candidates[id_], taken.get(id_))) is not None
        }
        taken.update(now)
        if not now:
            break
    return Acceptance(
        accepted=taken,
        before=before.objective,
        promised=sum(gains.values()),
        at_once=_objective(train, own) - before.objective,
        realised=growing.train.objective - before.objective,
    )


class _Growing:
    """The counts of training and of practice, updated as sets are taken."""

    def __init__(self, train: World, practice: World | None) -> None:
        self.train = Reference(train)
        self._all = [self.train] if practice is None else [self.train, Reference(practice)]

    def take(
        self, id_: str, sets: Sequence[Sequence[str]], held: Sequence[str] | None
    ) -> Sequence[str] | None:
        """Give an item the best of its sets. Returns it; None when the item keeps its old one.

        A set that it took before is replaced only by a better one.
        """
        least = 0.0 if held is None else _NOISE
        best: tuple[float, Sequence[str]] | None = None
        for words in sets:
            gains = [counts.marginal(counts.item(id_), words) for counts in self._all]
            if min(gains) >= 0 and gains[-1] >= least and (best is None or gains[-1] > best[0]):
                best = (gains[-1], words)
        if best is None:
            return None
        for counts in self._all:
            counts.update(id_, best[1])
        return best[1]


def _objective(world: World, new: Mapping[str, Sequence[str]]) -> float:
    everything = Reference(world)
    for id_, words in new.items():
        everything.update(id_, words)
    return everything.objective


# Queries

MARGINS = (-1.0, -0.1, -0.05, -0.02, -0.01, 0.0, 0.01, 0.02)
"""Margins that are tried: predicted changes of F1 that an edit must exceed. The ranker wrote the
sets that are edited, so it mostly predicts a loss, but the model may know what the ranker does not.
The dev queries decide how large a predicted loss is still acceptable.
"""
LEAST_ERRORS = 2.0
"""The gain on the dev queries must exceed 0 by so many standard errors. The best of several margins
is often the luckiest: with one error a gain of 0.007 on dev was a loss of 0.002 on test.
"""


@dataclass(frozen=True)
class Margin:
    """The predicted gain that an edit must exceed.

    Attributes:
        least: change of F1; infinite where no edit is taken.
        gain: mean change of F1 of the queries that it was chosen by.
        error: its standard error.
    """

    least: float
    gain: float = 0.0
    error: float = 0.0


def choose_margin(predicted: Sequence[float], true: Sequence[float]) -> Margin:
    """The margin with the largest gain in F1; infinite where no gain is significant. So these
    queries never lose.

    Args:
        predicted: predicted change of F1 by each query's edit.
        true: the true change.
    """
    best = Margin(math.inf)
    for least in MARGINS:
        gains = [t if p > least else 0.0 for p, t in zip(predicted, true, strict=True)]
        mean = statistics.fmean(gains or [0.0])
        error = statistics.pstdev(gains or [0.0]) / math.sqrt(len(gains) or 1)
        if mean > max(best.gain, LEAST_ERRORS * error):
            best = Margin(least, mean, error)
    return best


def index_queries(inputs: Inputs) -> Wrote:
    """The query snapshot of the round. Where the run edits a pair, it has the edits that gain, and
    for other queries the sets of the round that is built upon.
    """
    wrote = build_index(inputs, "query")
    if not inputs.edits or not inputs.round.number:
        return wrote
    dataset, new = inputs.workspace.dataset, inputs.snapshot(wrote.output)
    everything = [query for query in dataset.entities("query") if isinstance(query, Query)]
    edits = _Edits.of(inputs, everything, inputs.snapshot(inputs.before.queries), new)
    judges = _judges(inputs)
    margin = edits.margin(inputs, judges) if judges else Margin(0.0)
    rows = edits.rows(inputs, margin)
    built = write_snapshot(
        inputs.workspace.store, "query", rows, _provenance(edits.old, new, {}), new.manifest.fields
    )
    trained = inputs.snapshot(str(wrote.notes["practice"]))
    practised = _Edits.of(inputs, inputs.practice, inputs.snapshot(inputs.before.practice), trained)
    notes = {
        "edited": len(edits.gains),
        "accepted": sum(gain > margin.least for gain in edits.gains.values()),
        "margin": margin.least if math.isfinite(margin.least) else None,
        "dev_gain": round(margin.gain, 4),
        "dev_error": round(margin.error, 4),
        "generated": new.id,
        "practice": practice_snapshot(inputs, trained, practised.rows(inputs, margin)).id,
    }
    return Wrote(built.id, {**notes, **counts_of(built)})


@dataclass(frozen=True)
class _Edits:
    """A round's edited query sets beside the sets before it.

    Attributes:
        world: the edited queries, with the ranker's probabilities in place of labels.
        gains: id of each edited query -> the change of F1 by these probabilities. A query is edited
            when it retrieves other items.
    """

    old: Snapshot
    new: Snapshot
    world: World
    gains: Mapping[str, float]

    @classmethod
    def of(cls, inputs: Inputs, queries: Sequence[Query], old: Snapshot, new: Snapshot) -> _Edits:
        items, before, after = inputs.mirror(inputs.before.items), old.by_id, new.by_id
        edited = [
            query
            for query in queries
            if items.retrieved((*after[query.id].keywords, self_keyword(query.text)))
            != items.retrieved((*before[query.id].keywords, self_keyword(query.text)))
        ]
        world = World.of(
            items,
            edited,
            {},
            k_max=max(inputs.workspace.settings.keywords.k_max, old.manifest.k_max),
            own_text_ignored=inputs.own_text_ignored,
            probabilities=inputs.probabilities(items, edited, 0.0),
        )
        gains = {query.id: _gain(world, query.id, before, after) for query in edited}
        return cls(old, new, world, gains)

    def margin(self, inputs: Inputs, judges: Sequence[Query]) -> Margin:
        """The margin, chosen by the labels of the dev queries."""
        world = World.of(
            self.world.items, judges, inputs.workspace.dataset.relevant, k_max=self.world.k_max
        )
        rows = self.old.by_id, self.new.by_id
        true = [_gain(world, one.id, *rows) if one.id in self.gains else 0.0 for one in judges]
        return choose_margin([self.gains.get(one.id, 0.0) for one in judges], true)

    def rows(self, inputs: Inputs, margin: Margin) -> list[Row]:
        """Every query's row: the edited one where its predicted gain exceeds the margin."""
        new = self.new.by_id
        return [
            self._edited(inputs, row, new[row.id].keywords)
            if self.gains.get(row.id, -math.inf) > margin.least
            else row
            for row in self.old.rows()
        ]

    def _edited(self, inputs: Inputs, row: Row, keywords: Sequence[str]) -> Row:
        """A row with the new keywords, and with those old keywords that retrieve nothing else: they
        order the retrieved items.
        """
        items, own = self.world.items, row.self_keyword
        found = items.retrieved((*keywords, own))
        ordering = [word for word in row.keywords if items.bitmap(word) <= found]
        words = tuple(dict.fromkeys((*keywords, *ordering)))[: self.world.k_max]
        weights: tuple[float, ...] = ()
        if inputs.workspace.settings.keywords.weights and row.weights:
            (of,) = inputs.ranker.weigh([Query(row.id, row.text)], [words], items)
            weights = tuple(of.get(word, 1.0) for word in (*words, own)) if of else ()
        return replace(row, keywords=words, weights=weights)


def _gain(world: World, id_: str, old: Mapping[str, Row], new: Mapping[str, Row]) -> float:
    before, after = (query_reward(world, id_, rows[id_].keywords) for rows in (old, new))
    return after - before


# Items


def accept_items(inputs: Inputs) -> Wrote:
    """The round's item snapshot: accepted new sets, and the old sets of all other items. A run that
    edits a pair keeps all old sets where the dev queries would lose.
    """
    old, new = (
        inputs.snapshot(inputs.before.items),
        inputs.snapshot(inputs.round.output("index-item")),
    )
    items = inputs.mirror(old.id)
    queries = inputs.round.practice if inputs.edits else inputs.round.queries
    train = inputs.world(items, inputs.mirror(queries), practice=False)
    practice = (
        inputs.world(items, inputs.mirror(inputs.round.practice), practice=True)
        if inputs.invented.queries
        else None
    )
    frozen = inputs.settings.variant == "frozen-items"
    candidates = {} if frozen else _candidates(inputs, old, new)
    chosen = accept(train, candidates, practice)
    everything = inputs.settings.rules == "paper"
    taken = {id_: sets[0] for id_, sets in candidates.items()} if everything else chosen.accepted
    notes = {
        "moved": len(candidates),
        "accepted": len(taken),
        "train_f_before": _mean(chosen.before, train),
        "promised": _mean(chosen.promised, train),
        "all_at_once": _mean(chosen.at_once, train),
        "realised": _mean(chosen.at_once if everything else chosen.realised, train),
    }
    if frozen:
        return Wrote(old.id, {**notes, **counts_of(old)})
    kept = old.by_id
    rows = (
        replace(row, keywords=tuple(taken.get(row.id, kept[row.id].keywords))) for row in new.rows()
    )
    provenance = _provenance(old, new, notes)
    written = write_snapshot(inputs.workspace.store, "item", rows, provenance, new.manifest.fields)
    if inputs.edits:
        written, judged = _not_worse(inputs, old, written)
        notes |= judged
    return Wrote(written.id, {**notes, **counts_of(written)})


def _not_worse(
    inputs: Inputs, old: Snapshot, new: Snapshot
) -> tuple[Snapshot, Mapping[str, float]]:
    """The new item snapshot, or the old one where the dev queries would lose; and notes."""
    if not (judges := _judges(inputs)):
        return new, {}
    before, after = (_f1(inputs, judges, snapshot) for snapshot in (old, new))
    gain = {"dev_gain": round(after - before, 4)}
    return (new, gain) if after >= before else (old, {**gain, "accepted": 0})


def _judges(inputs: Inputs) -> Sequence[Query]:
    """The dev queries, where rounds are judged by them."""
    return inputs.workspace.dataset.queries.get("dev", ()) if inputs.settings.gate.on else ()


def _f1(inputs: Inputs, judges: Sequence[Query], items: Snapshot) -> float:
    """Mean F1 of the dev queries with the round's query snapshot."""
    sets, relevant = inputs.snapshot(inputs.round.queries).by_id, inputs.workspace.dataset.relevant
    world = World.of(inputs.mirror(items.id), judges, relevant, k_max=sys.maxsize)
    return statistics.fmean(query_reward(world, one.id, sets[one.id].keywords) for one in judges)


def _candidates(inputs: Inputs, old: Snapshot, new: Snapshot) -> dict[str, list[Sequence[str]]]:
    """The new sets of each item that differ from its old one: the index build's first, then the
    drawn ones.
    """
    sets: dict[str, list[Sequence[str]]] = {row.id: [row.keywords] for row in new.rows()}
    if inputs.settings.candidates and inputs.settings.rules == "own":
        model, seed = inputs.round.model("item"), inputs.settings.seed + inputs.round.number
        drawn = draw_sets(
            inputs.workspace,
            "item",
            model,
            inputs.settings.index_by,
            inputs.settings.candidates,
            seed,
        )
        for id_, more in drawn.items():
            sets[id_] += more
    kept = old.by_id
    different = {
        id_: [words for words in found if words != kept[id_].keywords]
        for id_, found in sets.items()
    }
    return {id_: found for id_, found in different.items() if found}


def _provenance(old: Snapshot, new: Snapshot, notes: Mapping[str, Any]) -> Provenance:
    manifest = new.manifest
    return Provenance(
        round=manifest.round,
        k_max=manifest.k_max,
        prompt_hash=manifest.prompt_hash,
        generator=manifest.generator,
        dataset_hash=manifest.dataset_hash,
        parent=old.id,
        cut_to_budget=manifest.cut_to_budget,
        set_aside=manifest.set_aside,
        notes={
            "generated": new.id,
            **{key: value for key, value in manifest.notes.items() if key == "lineage"},
            **notes,
        },
    )


def _mean(total: float, world: World) -> float:
    return round(total / sum(world.query_weights.values()), 6)
