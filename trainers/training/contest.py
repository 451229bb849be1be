"""Which pair is to serve: those of a run's rounds and the one of `statistical`, compared on the dev
queries. Pure.

How `statistical` comes to its figures is `rivals`; what is done about the winner is `publishing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.training.state import Round, State

STATISTICAL = "statistical"


@dataclass(frozen=True)
class Contender:
    """A pair of snapshots.

    Attributes:
        name: statistical, sft, round 1, ...
        figures: split -> figures, as `trainers.evaluation.Evaluation.as_dict` has them.
    """

    name: str
    items: str
    queries: str
    figures: Mapping[str, Mapping[str, Any]]

    @property
    def dev_f1(self) -> float | None:
        """F1 on the dev queries; None where there are none."""
        found = self.figures.get("dev")
        return None if found is None else float(found["f1"])


@dataclass(frozen=True)
class Choice:
    """The pair that is to serve, and the one with the highest figure, which may be another."""

    chosen: Contender
    highest: Contender

    def reason(self) -> str:
        """Why, for people."""
        figures = self.chosen.figures["dev"]
        said = f"F1 {figures['f1']:.3f} on {figures['queries']} dev queries"
        if self.chosen is self.highest:
            return said
        best = self.highest.figures["dev"]
        return (
            f"{said}; {self.highest.name} has {best['f1']:.3f}, which is not more than its "
            "standard error of "
            f"{best['f1_se']:.3f} above, and the simpler pair is taken"
        )


def round_name(number: int) -> str:
    """sft, round 1, ..."""
    return f"round {number}" if number else "sft"


def of_round(done: Round) -> Contender:
    """The pair of a finished round."""
    evaluation = done.stage("evaluate")
    figures = {} if evaluation is None else evaluation.notes
    return Contender(round_name(done.number), done.items, done.queries, figures)


def contenders(state: State, statistical: Contender | None) -> list[Contender]:
    """The simplest first: without a language model, then fine-tuned, then round by round; rounds
    that are built upon alone.
    """
    rounds = [of_round(done) for done in state.finished if done.verdict == "accepted"]
    return [*([] if statistical is None else [statistical]), *rounds]


def choose(found: Sequence[Contender]) -> Choice | None:
    """The simplest pair whose dev F1 is within one standard error of the highest; None where
    nothing is judged.

    The one-standard-error rule (Breiman et al., Classification and Regression Trees, 1984, section
    3.4.3): with few queries the highest of several figures is often the luckiest one.
    """
    judged = [(one, one.dev_f1) for one in found]
    known = [(one, f1) for one, f1 in judged if f1 is not None]
    if not known:
        return None
    highest, most = max(known, key=lambda pair: pair[1])
    least = most - float(highest.figures["dev"].get("f1_se", 0.0))
    return Choice(next(one for one, f1 in known if f1 >= least), highest)
