"""Runs in a shop: their stages in the process of the tests, and rewards that teach nothing or end
badly.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cogr.rewards import World, query_reward
from cogr.snapshots import open_snapshot
from indexers.generators.model_folders import digest
from indexers.workspace import Workspace
from tests.shops import read_jsonl
from trainers.training.driver import Driver
from trainers.training.rounds import ROUND_STAGES, SFT_STAGES, Round, Run, State, create, open_run
from trainers.training.stage import InThisProcess


class Shop:
    """One configuration with runs."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.said: list[str] = []

    def workspace(self, *overrides: str) -> Workspace:
        return Workspace.open(self.config, overrides)

    def driver(self, run: str = "main", *overrides: str) -> Driver:
        return self.driver_of(create(self.workspace(*overrides), run), *overrides)

    def driver_of(self, run: Run, *overrides: str) -> Driver:
        """A driver of a run that is there, whose stages are done in this process."""
        launcher = InThisProcess(self.config, overrides)
        return Driver(self.workspace(*overrides), run, launcher, self.said.append)


def copy_of(workspace: Workspace, run: str, new: str) -> Run:
    """A run with the workspace's settings that has the finished rounds of another."""
    made = create(workspace, new)
    made.save(State(rounds=open_run(workspace, run).state().finished))
    return made


def whole(shop: Shop, run: str = "main", *overrides: str) -> tuple[Round, ...]:
    """The finished rounds of a run, after a look at everything that they wrote."""
    opened = open_run(shop.workspace(*overrides), run)
    rounds = opened.state().finished
    for round_ in rounds:
        assert [stage.name for stage in round_.stages] == list(
            ROUND_STAGES if round_.number else SFT_STAGES
        )
        for side in ("query", "item"):
            folder = opened.store.local(round_.model(side))
            assert folder.name.endswith(f"-{digest(folder)}")
        for id_ in (round_.items, round_.queries):
            open_snapshot(opened.store, id_)
    return rounds


def steps(run: Run, stage: str) -> list[dict[str, Any]]:
    """The step figures of a training stage, without times."""
    lines = read_jsonl(run.folder("logs") / f"{stage}.jsonl")
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def learned(run: Run) -> list[Any]:
    """What each stage wrote and its figures, without times; folders are named by their content."""
    return [
        (done.number, done.verdict, one.name, Path(one.output).name, timeless(one.notes))
        for done in run.state().rounds
        for one in done.stages
    ]


def timeless(value: Any) -> Any:
    """A value without seconds, at any depth."""
    if isinstance(value, list):
        return [timeless(one) for one in value]
    if isinstance(value, dict):
        return {name: timeless(one) for name, one in value.items() if name != "seconds"}
    return value


def killing_reward(world: World, id_: str, keywords: Sequence[str]) -> float:
    """The query reward, during which the process is killed once: when the file that KILL_ONCE names
    is not there.
    """
    flag = Path(os.environ["KILL_ONCE"])
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return query_reward(world, id_, keywords)


def interrupted_reward(world: object, id_: str, keywords: object) -> float:
    """A reward during which somebody presses Ctrl-C."""
    raise KeyboardInterrupt


def failing_reward(world: object, id_: str, keywords: object) -> float:
    """A reward that can't score anything."""
    raise KeyError("no margin known")
