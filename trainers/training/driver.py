"""The driver of a run: it checks and locks the run, starts the processes of the stages, and resumes
a run that was stopped.

It loads no model and passes nothing to the stages in memory: they read the run folder, and write
the state when they are done. The driver reads the state to know which stage is under way.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cogr.errors import (
    INTERRUPTED,
    CheckFailedError,
    CogrError,
    ServiceError,
    TrainingError,
    UserError,
)
from cogr.records import Say
from indexers.generators.statistical.generator import DISTILLED
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import STAGE_SECONDS
from indexers.workspace import Workspace
from trainers.training.contest import (
    STATISTICAL,
    Choice,
    Contender,
    check_start,
    choose,
    contenders,
    known_baselines,
    measured_baselines,
    of_round,
    publish_pair,
    serving_of,
    to_serve,
)
from trainers.training.rounds import Round, Run, StageName, State, judged_by, round_name, with_dev
from trainers.training.stage import (
    OUT_OF_MEMORY,
    SHARED,
    Launcher,
    StageFailure,
    error_file,
    stage_side,
    stages_of_start,
)

MAX_RETRIES = 4
_BY_STATUS: dict[int, type[CogrError]] = {1: CheckFailedError, 2: TrainingError, 3: ServiceError}


@dataclass(frozen=True)
class RunStatus:
    """What serves, beside the chosen pair of a run (None if no pair was measured on dev).

    Attributes:
        serves: name of the pair that serves, or its snapshots if it is not of this run; "" if no
            pair serves.
    """

    serves: str
    choice: Choice | None

    @property
    def is_behind(self) -> bool:
        """Whether another pair than the chosen one serves, or none."""
        return self.choice is not None and self.choice.chosen.name != self.serves

    def as_dict(self) -> dict[str, Any]:
        best = None if self.choice is None else self.choice.chosen.name
        return {"serves": self.serves or None, "best_on_dev": best}


class Driver:
    """Runs the rounds of one training run, a process for each group of stages."""

    def __init__(self, workspace: Workspace, run: Run, launcher: Launcher, say: Say) -> None:
        self.workspace = with_dev(workspace)
        self.run = run
        self._launcher = launcher
        self._say = say

    def reach(self, rounds: int | None) -> Round:
        """Do SFT where it is not done, then rounds until the run has so many (None: one more than
        it has). Returns the last one. Raises TrainingError where a stage failed, and
        CheckFailedError where a pretrained pair finds no more than text search after SFT
        (`check_start`; not by the paper's rules).
        """
        if rounds is None:
            rounds = self.run.state().rounds_done + 1
        with self._locked("cogr-train run"):
            state, training = self.run.state(), self.workspace.settings.training
            while not state.finished or state.rounds_done < rounds:
                first = bool(state.finished) and len(state.rounds) == 1
                if first and training.model != "tiny" and training.rules == "own":
                    check_start(self.workspace, self.run)
                self._finish(state)
                state = self.run.state()
            return state.finished[-1]

    def choice(self) -> Choice | None:
        """The pair that is to serve: the best of the rounds and of their baselines on dev. None
        without dev queries.

        Baselines are measured at the first call.
        """
        workspace = self.workspace
        if workspace.settings.training.rules == "paper" or not workspace.dataset.queries.get("dev"):
            return None
        beside = measured_baselines(workspace, self.run, self._say)
        return choose(contenders(self.run.state(), beside))

    def status(self) -> RunStatus:
        """What serves now beside the chosen pair. Where the service can't be reached, what serves
        is not known.
        """
        choice = self.choice()
        best = None if choice is None else to_serve(self.workspace, choice.chosen)
        known = [*filter(None, [best]), *contenders(self.run.state(), known_baselines(self.run))]
        return RunStatus(serving_of(self.workspace, known), choice)

    def publish(self, name: str | None, *, gate: bool) -> Contender:
        """Let a pair of the run serve: the named one (statistical, distilled, sft or the number of
        a round), or the one of `choice`. Raises TrainingError where there is no such pair, or no
        dev queries to choose by, and as `publish_pair` does.
        """
        with self._locked("cogr-train publish"):
            pair, known = to_serve(self.workspace, self._named(name)), known_baselines(self.run)
            held_out = known.of(pair.name) if known else None
            publish_pair(self.workspace, pair, self._say, gate=gate, held_out=held_out)
            return pair

    def _named(self, name: str | None) -> Contender:
        state = self.run.state()
        if name is None:
            choice = self.choice() if state.finished else None
            if choice is None:
                raise TrainingError(
                    f"No pair of the run {self.run.name} can be chosen: "
                    f"{judged_by(self.workspace)} Name one: sft, or the number of a round."
                )
            return choice.chosen
        pairs: list[Contender | None] = [of_round(done) for done in state.finished]
        if name in (STATISTICAL, DISTILLED):
            pairs.append(measured_baselines(self.workspace, self.run, self._say).of(name))
        known = {one.name.removeprefix("round "): one for one in pairs if one}
        if (contender := known.get(name.removeprefix("round "))) is None:
            has = ", ".join(known) or "none yet"
            raise TrainingError(f"The run {self.run.name} has no pair {name!r}; it has {has}.")
        return contender

    @contextmanager
    def _locked(self, doing: str) -> Iterator[None]:
        prometheus.serve_metrics(self.workspace.settings.metrics)
        with self.run.store.lock(f"run-{self.run.name}", doing):
            self.run.check(self.workspace)
            self.run.store.sweep()
            yield

    # Processes

    def _finish(self, state: State) -> None:
        state = state.begun()
        if state != self.run.state():
            self.run.save(state)
        retries = 0  # Of a stage that ran out of memory.
        while (current := state.unfinished) is not None:
            before = state
            try:
                failure = self._process(current, retries)
            except KeyboardInterrupt:
                self._say(
                    f"{self._under_way(current)} of {round_name(current.number)} was interrupted: "
                    "the same command repeats it and continues."
                )
                raise
            state = self.run.state()
            retries = 0 if state != before else retries
            if failure is None and state != before:
                continue
            stage, failure = self._under_way(current), failure or StageFailure(status=0)
            again = failure.status == OUT_OF_MEMORY and stage.startswith("train-")
            if not again or retries == MAX_RETRIES:
                raise _error(stage, failure)
            self._say(f"{stage} ran out of memory: trying again with less at once")
            retries += 1

    def _process(self, current: Round, retries: int) -> StageFailure | None:
        """Have one process do the next stages of a round. Returns its failure, if any.

        Raises KeyboardInterrupt where the process was interrupted.
        """
        settings = self.workspace.settings.training
        stages = stages_of_start(settings, current)
        shared = bool(SHARED & set(stages))
        how = (settings.processes, settings.accelerate) if shared else (1, None)
        error_file(self.run).unlink(missing_ok=True)
        status = self._launcher.run(self.run, retries, *how)
        done = self.run.state().rounds[current.number].stages[len(current.stages) :]
        for one in () if self._launcher.counts_stages else done:
            STAGE_SECONDS.labels(stage_side(one.name), one.name).observe(one.seconds)
        if status == 0:
            return None
        failure = StageFailure.of(self.run) or StageFailure(status=status)
        if failure.status in (INTERRUPTED, -signal.SIGINT):
            raise KeyboardInterrupt
        return failure

    def _under_way(self, current: Round) -> StageName:
        rounds = self.run.state().rounds[current.number :]
        return (rounds[0] if rounds else current).next_stage or current.plan[-1]


def _error(stage: StageName, failure: StageFailure) -> CogrError:
    if failure.message:
        return _BY_STATUS.get(failure.status, UserError)(failure.message)
    if failure.status == OUT_OF_MEMORY:
        tried = ", also with an eighth of the micro batch" * stage.startswith("train-")
        return TrainingError(
            f"The stage {stage} ran out of memory{tried}; lower prompts_per_step of its side, "
            "train with training.lora.rank, or use a smaller model. Nothing before it is lost."
        )
    if failure.status < 0:
        return TrainingError(
            f"The stage {stage} was killed by signal {-failure.status} (9: often the system, out "
            "of memory); nothing before it is lost, so run the same command again."
        )
    return TrainingError(
        f"The stage {stage} ended with status {failure.status}; see its output above. Nothing "
        "before it is lost."
    )
