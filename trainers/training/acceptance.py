"""Which new item sets of a round are taken: only those that still pay when their turn comes.

Every item's marginal reward is measured against the same reference, so when all items move at once
the gains overlap and are not realised in full. Here sets are taken one after another, the most
promising first, with the counts updated as it goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cogr.rewards import Reference, World

_PASSES = 3
_NOISE = 1e-9
Candidates = Mapping[str, Sequence[Sequence[str]]]


@dataclass(frozen=True)
class Acceptance:
    """Figures are sums of F over the training queries, weighted as the queries are.

    Attributes:
        accepted: item id -> the set that it takes.
        before: the objective with all old sets.
        promised: sum of the marginal gains of the model's own sets, each measured alone.
        at_once: change of the objective if every one of them were taken.
        realised: change of the objective with the accepted sets; never below 0.
    """

    accepted: Mapping[str, Sequence[str]]
    before: float
    promised: float
    at_once: float
    realised: float


def accept(train: World, candidates: Candidates, practice: World | None = None) -> Acceptance:
    """Choose among new item sets, given worlds whose item mirror holds the old ones.

    At its turn an item takes the candidate that pays best in practice among those that don't lower
    training F1, and none that lowers either. A set that changes nothing is taken: it is written in
    the vocabulary that the query side has moved to. Passes go on until one takes nothing, three at
    most: another item's move may have made room. Training F1 never falls, since every single step
        does not lower it.

    Args:
        train: items as they are, the frozen queries, the training labels.
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
    """The counts as sets are taken, of training and of practice."""

    def __init__(self, train: World, practice: World | None) -> None:
        self.train = Reference(train)
        self._all = [self.train] if practice is None else [self.train, Reference(practice)]

    def take(
        self, id_: str, sets: Sequence[Sequence[str]], held: Sequence[str] | None
    ) -> Sequence[str] | None:
        """Move an item to the best of its sets; None when it stays.

        What it took before must be bettered, not equalled.
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
