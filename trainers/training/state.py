"""What a run has done: rounds, their stages, what each wrote. Pure records; `runs` keeps them on
disk.

Round 0 is SFT. A round is finished when its last stage is; it then has a verdict, and only an
accepted round is built upon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

StageName = Literal[
    "targets", "train-item", "train-query", "index-item", "index-query", "accept-items", "evaluate"
]

Verdict = Literal["accepted", "rejected"]

Publishing = Literal["asked", "done", "refused"]
"""What became of the wish to publish a round; "asked" until its pair serves or a gate says no."""

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
        output: what it wrote: a model folder (relative to the store), or a snapshot id; "" where
            neither.
        notes: figures and counts, for people and reports.
    """

    name: StageName
    output: str
    seconds: float
    notes: Mapping[str, Any] = {}


class Round(_Record):
    """One round: its stages so far and, once it is finished, whether it is built upon.

    Attributes:
        reason: of the verdict.
        publishing: None where nobody asked to publish it.
    """

    number: int
    stages: tuple[StageRecord, ...] = ()
    verdict: Verdict | None = None
    reason: str = ""
    publishing: Publishing | None = None

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
        """The query snapshot that its item side is trained against: with invented queries, where
        there are any.
        """
        stage = self.stage("index-query")
        return str(stage.notes.get("practice", stage.output)) if stage else self.queries

    @property
    def items(self) -> str:
        """Its item snapshot: with accepted sets only, where there is such a stage."""
        return self.output("accept-items" if self.number else "index-item")


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
    def unpublished(self) -> bool:
        """Whether the last round is finished and still to be published."""
        return (
            self.unfinished is None and bool(self.rounds) and self.rounds[-1].publishing == "asked"
        )

    def begun(self) -> State:
        """With a round under way: the unfinished one, or a new one."""
        if self.unfinished is not None:
            return self
        return self.model_copy(update={"rounds": (*self.rounds, Round(number=len(self.rounds)))})

    def with_stage(
        self, stage: StageRecord, verdict: Verdict | None = None, reason: str = ""
    ) -> State:
        """With one more stage of the round under way finished."""
        return self._with_last(
            stages=(*self.rounds[-1].stages, stage), verdict=verdict, reason=reason
        )

    def with_publishing(self, publishing: Publishing | None) -> State:
        """With another word on the publishing of the last round."""
        return self._with_last(publishing=publishing)

    def _with_last(self, **changed: Any) -> State:
        *before, last = self.rounds
        return self.model_copy(update={"rounds": (*before, last.model_copy(update=changed))})

    def back_to(self, number: int, stage: StageName) -> State:
        """Before a stage of a round: it and all that came after it is to be done again, publishing
        too where it was asked for.
        """
        kept = self.rounds[number]
        at = [record.name for record in kept.stages].index(stage)
        again = Round(
            number=number, stages=kept.stages[:at], publishing="asked" if kept.publishing else None
        )
        return self.model_copy(update={"rounds": (*self.rounds[:number], again)})
