"""The process that does a run's stages: `python -m trainers.training.stage`, started by `driver`.

It does the next stages of the round under way, records their outputs in the state, and ends. An
error is written to `error.json` in the run's folder, with its exit status. Without a GPU one
process does all stages of a round, since importing torch, transformers and TRL takes longer than
many a stage of a small model. With a GPU or vLLM each stage has its own process: only its end is
sure to free the GPU's memory.

Of several processes (`ranks`) all train, and all write keywords for an index; the first
alone does the rest, and records.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cogr.errors import INTERRUPTED, CogrError, LockedError
from cogr.records import SIDES, Side
from cogr.settings.training import TrainingSettings
from cogr.store import Store, storage_errors
from indexers.generators.model_folders import is_out_of_memory
from indexers.telemetry import logs
from indexers.telemetry.prometheus import stage as recorded
from indexers.workspace import Workspace
from trainers.evaluation import split_figures
from trainers.training import ranks
from trainers.training.building import accept_items, build_index
from trainers.training.checkpoints import save_side
from trainers.training.grpo import run_grpo
from trainers.training.inputs import Inputs, Wrote
from trainers.training.rounds import (
    Round,
    Run,
    StageName,
    StageRecord,
    State,
    open_run,
    round_name,
    verdict,
    with_dev,
)
from trainers.training.sft import train_sft, write_targets
from trainers.training.trainer_config import has_gpu

OUT_OF_MEMORY = 75
"""Exit status of a stage that ran out of memory; the driver tries it again with less at once."""

_WAIT_FOR_LOCK = 10.0
_LOOK_SECONDS = 0.1


# The command's side


@dataclass(frozen=True)
class StageFailure:
    """The failure of a process: exit status, and an error sentence if it left one."""

    status: int
    message: str = ""

    @classmethod
    def of(cls, run: Run) -> StageFailure | None:
        """The failure that a process wrote; None where it wrote none, or died while writing."""
        with suppress(OSError, ValueError):
            return cls(**json.loads(error_file(run).read_bytes()))
        return None


@dataclass(frozen=True)
class Launcher:
    """Starts processes of stages with the configuration that this command was given.

    Attributes:
        counts_stages: whether their durations are in this process's metrics when they are done.
    """

    counts_stages: ClassVar[bool] = False
    config: Path | None
    overrides: Sequence[str]

    def command(
        self, run: str, retries: int = 0, processes: int = 1, accelerate: str | None = None
    ) -> list[str]:
        """The command line. Several processes are started by `ranks`, with one thread each unless
        OMP_NUM_THREADS says else. One needs no launcher, which imports torch for seconds.
        """
        config = ["--config", str(self.config)] if self.config else []
        overrides = [part for override in self.overrides for part in ("--set", override)]
        stage = ["-m", ranks.STAGE, *config, *overrides, "--run", run, "--retries", str(retries)]
        if processes > 1 or accelerate:
            stage = ["-m", ranks.__name__, *ranks.launch_options(processes, accelerate), *stage]
        return [sys.executable, *stage]

    def run(self, run: Run, *how: Any) -> int:
        """Do stages in a process; `how` are the arguments of `command` after the run. Returns its
        exit status, negative for a signal.

        Its standard output is our standard error. It is killed when this process is interrupted or
        ends, however that happens. It has its own process group, so that Ctrl-C reaches only this
        process.
        """
        parent = os.getpid()
        process = subprocess.Popen(
            self.command(run.name, *how),
            stdout=2,
            process_group=0,
            preexec_fn=lambda: ranks.die_with(parent),
        )
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class InThisProcess(Launcher):
    """Does stages in this process: imports of PyTorch and TRL take longer than a round of a very
    small model. Without a GPU, and one process alone.
    """

    counts_stages: ClassVar[bool] = True

    def run(self, run: Run, retries: int = 0, *_: Any) -> int:
        """Do the stages; returns their exit status. What they print goes to standard error."""
        with redirect_stdout(sys.stderr):
            status = do_stages(Workspace.open(self.config, self.overrides), run, retries)
        if not gc.get_freeze_count():
            gc.freeze()  # The end of each stage need not look through what was imported.
        return status


def one_start_a_round(settings: TrainingSettings) -> bool:
    """Whether processes may do all stages of a round: no GPU, no vLLM."""
    return settings.rollouts.by == "transformers" and not has_gpu()


def stages_of_start(settings: TrainingSettings, current: Round) -> Sequence[StageName]:
    """The next stages of a round that one start of processes does."""
    left = current.plan[len(current.stages) :]
    return left if one_start_a_round(settings) else left[:1]


# The process itself


def calm_threads(settings: TrainingSettings) -> None:
    """Say, before PyTorch is imported, how many threads it takes, unless the environment does.

    Threads that wait spin, and on a machine with other work they wait long. A model of the size of
    `tiny` is faster with one thread even on idle cores.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if settings.model == "tiny":
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the next stages of a run; returns the exit status."""
    parser = argparse.ArgumentParser(prog=ranks.STAGE)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--run", required=True)
    parser.add_argument("--retries", type=int, default=0)
    options = parser.parse_args(arguments)
    logs.begin()
    try:
        workspace = Workspace.open(options.config, options.set)
        logs.configure(workspace.settings.log)
        calm_threads(workspace.settings.training)
        run = open_run(workspace, options.run)
    except CogrError as error:
        logs.say(str(error))
        return error.exit_status
    return do_stages(workspace, run, options.retries)


def do_stages(workspace: Workspace, run: Run, retries: int) -> int:
    """Do the next stages of the round under way. Returns the exit status; an error is written to
    the run's folder.
    """
    unfinished = run.state().unfinished
    stages = stages_of_start(workspace.settings.training, unfinished) if unfinished else ()
    if has_gpu() and stages and not stages[0].startswith("train-"):
        ranks.take_one_gpu()
    try:
        with storage_errors(workspace.store.url), _lock(workspace.store, f"stage-{run.name}"):
            for number in range(len(stages)):
                do_next(workspace, run, 0 if number else retries)
    except CogrError as error:
        return _leave(run, error.exit_status, str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _leave(run, OUT_OF_MEMORY)
    except KeyboardInterrupt:
        return _leave(run, INTERRUPTED)
    return 0


def do_next(workspace: Workspace, run: Run, retries: int) -> None:
    """Say which stage is next, do it, and put it into the state."""
    state = run.state()
    say = logs.say if ranks.is_first() else lambda _: None  # Each message appears once.
    if (round_ := state.unfinished) is None:
        return  # The first process has done the last stages, which it does alone, meanwhile.
    name = round_.next_stage
    assert name is not None
    inputs = Inputs(with_dev(workspace), run, round_, state.base, say, retries)
    if not ranks.is_first():
        if name in SHARED:
            WORK[name](inputs)
        _wait_while(run, state)
        return
    say(f"{round_name(inputs.round.number)}, {name}")
    started = time.monotonic()
    with recorded(name, stage_side(name)):
        wrote = WORK[name](inputs)
    seconds = round(time.monotonic() - started, 2)
    record = StageRecord(name=name, output=wrote.output, seconds=seconds, notes=wrote.notes)
    settings, last = workspace.settings, name == inputs.round.plan[-1]
    rules, tolerance = settings.training.rules, settings.publish.tolerance
    judged = verdict(rules, tolerance, inputs.base, record) if last else (None, "")
    run.save(state.with_stage(record, *judged))


def _wait_while(run: Run, state: State) -> None:
    """Wait until the first process has recorded the stage. It polls the file, because collective
    operations have a time limit.

    Raises TrainingError where the first process has failed.
    """
    while run.state() == state:
        time.sleep(_LOOK_SECONDS)
        ranks.check_others(run.folder())


def train_side(inputs: Inputs, side: Side) -> Wrote:
    """Train a side: SFT in round 0, then GRPO."""
    if inputs.round.number:
        wrote = save_side(inputs, side, run_grpo(inputs, side))
    else:
        wrote = train_sft(inputs, side)
    gc.collect()  # A trainer is part of a reference cycle, so only this frees its model.
    return wrote


def evaluate_round(inputs: Inputs) -> Wrote:
    """P, R and F1 of the round's pair on every split that has queries."""
    round_ = inputs.round
    return Wrote("", split_figures(inputs.workspace, round_.items, round_.queries))


def stage_side(stage: StageName) -> str:
    """The side that a stage trains or writes; "pair" for both."""
    return next((side for side in SIDES if side in stage), "pair")


WORK: Mapping[StageName, Callable[[Inputs], Wrote]] = {
    "targets": write_targets,
    "train-item": lambda inputs: train_side(inputs, "item"),
    "train-query": lambda inputs: train_side(inputs, "query"),
    "index-item": lambda inputs: build_index(inputs, "item"),
    "index-query": lambda inputs: build_index(inputs, "query"),
    "accept-items": accept_items,
    "evaluate": evaluate_round,
}


SHARED: frozenset[StageName] = frozenset(WORK) - {"accept-items", "evaluate"}
"""The stages that all processes take part in."""


@contextmanager
def _lock(store: Store, name: str) -> Iterator[None]:
    """The lock of a run's stage, held by its first process. Waits a little, in case the process
    that holds it is ending.
    """
    until = time.monotonic() + _WAIT_FOR_LOCK
    with ExitStack() as held:
        while ranks.is_first():
            try:
                held.enter_context(store.lock(name, "a training stage"))
                break
            except LockedError:
                if time.monotonic() > until:
                    raise
                time.sleep(_LOOK_SECONDS)
        yield


def _leave(run: Run, status: int, sentence: str = "") -> int:
    """Write an error for the driver; where that fails, print its sentence. Of several failed
    processes the first one's error is kept.
    """
    try:
        with error_file(run).open("x", encoding="utf-8") as file:
            json.dump({"status": status, "message": sentence}, file)
    except FileExistsError:
        pass
    except OSError:
        logs.say(sentence)
    return status


def error_file(run: Run) -> Path:
    """Where the first process that fails writes its failure."""
    return run.folder() / ranks.ERROR


if __name__ == "__main__":
    ranks.die_with(os.getppid())
    sys.exit(main())
