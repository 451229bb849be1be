"""Which new item sets of a round are accepted: those that still raise F1 when they are taken one
after another.

Every item's marginal reward (paper, section 2.3) is measured against the same reference. When all
items move at once, the gains overlap and are not realised in full. Here sets are taken one after
another, the most promising first, with the counts updated as it goes. The paper takes all of them:
`training.rules = "paper"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cogr.rewards import Reference, World
from cogr.snapshots import Provenance, Snapshot
from cogr.snapshots.writing import write_snapshot
from trainers.training.building import draw_sets
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


def accept_items(inputs: Inputs) -> Wrote:
    """The round's item snapshot: accepted new sets, and the old sets of all other items."""
    old = inputs.snapshot(inputs.before.items)
    if inputs.settings.variant == "frozen-items":
        return Wrote(old.id, counts_of(old))
    new = inputs.snapshot(inputs.round.output("index-item"))
    items, queries = inputs.mirror(old.id), inputs.mirror(inputs.round.practice)
    train = inputs.world(items, inputs.mirror(inputs.round.queries), practice=False)
    practice = inputs.world(items, queries, practice=True) if inputs.invented.queries else None
    candidates = _candidates(inputs, old, new)
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
    kept = old.by_id
    rows = (
        replace(row, keywords=tuple(taken.get(row.id, kept[row.id].keywords))) for row in new.rows()
    )
    provenance = _provenance(old, new, notes)
    written = write_snapshot(inputs.workspace.store, "item", rows, provenance, new.manifest.fields)
    return Wrote(written.id, {**notes, **counts_of(written)})


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
