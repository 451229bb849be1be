"""Which new item sets of a round are taken: only those that still pay when their turn comes.

Every item's marginal reward is measured against the same reference, so when all items move at once the gains overlap and
are not realised in full. Here sets are taken one after another, the most promising first, with the counts updated as it goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cogr.rewards import Reference, World

_PASSES = 3


@dataclass(frozen=True)
class Acceptance:
    """Figures are sums of F over the training queries, weighted as the queries are.

    Attributes:
        accepted: ids whose new set is taken.
        before: the objective with all old sets.
        promised: sum of all marginal gains, each measured alone.
        at_once: change of the objective if every new set were taken.
        realised: change of the objective with the accepted sets; never below 0.
    """

    accepted: frozenset[str]
    before: float
    promised: float
    at_once: float
    realised: float


def accept(world: World, new: Mapping[str, Sequence[str]]) -> Acceptance:
    """Choose among new item sets, given a world whose item mirror holds the old ones.

    A set that changes nothing for the training queries is taken: it is written in the vocabulary that the query side
    has moved to. What was refused is tried again until a pass takes nothing, three passes at most: another item's move
    may have made room. The objective never falls, since every single step does not lower it.

    Args:
        world: items as they are, the frozen queries, the training labels.
        new: item id -> its new keywords, within the budget, without its own text.
    """
    before = Reference(world)
    gains = {id_: before.marginal(before.item(id_), words) for id_, words in new.items()}
    waiting = sorted(new, key=lambda id_: (-gains[id_], id_))
    growing = Reference(world)
    accepted: set[str] = set()
    for _ in range(_PASSES):
        taken = [id_ for id_ in waiting if _take(growing, id_, new[id_])]
        accepted.update(taken)
        waiting = [id_ for id_ in waiting if id_ not in accepted]
        if not taken:
            break
    return Acceptance(
        accepted=frozenset(accepted),
        before=before.objective,
        promised=sum(gains.values()),
        at_once=_objective(world, new) - before.objective,
        realised=growing.objective - before.objective,
    )


def _take(reference: Reference, id_: str, words: Sequence[str]) -> bool:
    if reference.marginal(reference.item(id_), words) < 0:
        return False
    reference.update(id_, words)
    return True


def _objective(world: World, new: Mapping[str, Sequence[str]]) -> float:
    everything = Reference(world)
    for id_, words in new.items():
        everything.update(id_, words)
    return everything.objective
