"""Killed at any moment: the same command goes on, what was finished stays, nothing is left running
or lying about.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from cogr.store import Store
from tests.shops import write_sample_part
from tests.trainers.shop import Shop, learned, whole
from trainers.training.rounds import Run, round_name

pytestmark = [pytest.mark.slow, pytest.mark.model]

MARK = "KILLED_BY_A_TEST"
RUN = [Path(sys.executable).with_name("cogr-train"), "run"]


class Commands:
    """`cogr-train run --rounds N`, killed again and again.

    Every process of it, stages included, carries a mark in its environment, so that what a kill
    leaves is found.
    """

    def __init__(self, config: Path, store: Path, rounds: int, draw: random.Random) -> None:
        self.run = Run(Store(store), "main")
        self.temporary = store.parent / f"{store.name}-temporary"
        self.temporary.mkdir()
        self.kills = 0
        self.began: list[str] = []  # Stages that the last attempt began.
        self._draw = draw
        self._mark = uuid.uuid4().hex
        self._asked = ["--rounds", str(rounds), "-c", str(config), "--set", f"store={store}"]
        self._environment = {**os.environ, MARK: self._mark, "TMPDIR": str(self.temporary)}

    def attempt(self, kill: bool) -> int | None:
        """Run it; kill it while it starts, or some time after some stage began.

        Its exit status, None when it was killed.
        """
        self.began = []
        process = subprocess.Popen(
            [*RUN, *self._asked], stderr=subprocess.PIPE, text=True, env=self._environment
        )
        assert process.stderr is not None
        stages = self._draw.randint(0, 2) if kill else sys.maxsize
        if stages == 0:
            time.sleep(self._draw.uniform(0, 4))
            process.kill()
        for line in process.stderr:
            if line.startswith(("sft, ", "round ")):
                self.began.append(line.strip())
                if len(self.began) == stages:
                    time.sleep(self._draw.uniform(0, 1.5))
                    process.kill()
        status = process.wait()
        self.kills += status == -signal.SIGKILL
        return None if status == -signal.SIGKILL else status

    def finished(self) -> list[str]:
        """The stages that the state knows, as the command says them."""
        rounds = self.run.state().rounds
        return [f"{round_name(one.number)}, {of.name}" for one in rounds for of in one.stages]

    def processes(self) -> list[str]:
        """Command lines of everything that still runs."""
        every = (one.info for one in psutil.process_iter(["environ", "cmdline"]))
        own = (one for one in every if (one["environ"] or {}).get(MARK) == self._mark)
        return [" ".join(one["cmdline"] or ()) for one in own]

    def survive(self, kills: int) -> None:
        """Kill it so often, or until it ends; look at what is left after every death."""
        status = None
        while status is None:
            finished = self.finished()
            status = self.attempt(kill=self.kills < kills)
            assert not set(self.began) & set(finished), "a stage that was finished was done again"
            assert self.finished()[: len(finished)] == finished
            until = time.monotonic() + 30
            while running := self.processes():
                assert time.monotonic() < until, running
                time.sleep(0.05)
        assert status == 0


def check_nothing_is_left(commands: Commands, store: Path) -> None:
    assert commands.processes() == []
    # torch keeps a cache folder of its own compiler there.
    kept = (one for one in commands.temporary.iterdir() if "torchinductor_" not in one.name)
    assert list(kept) == []
    for lock in ("run-main", "stage-main"):
        with Store(store).lock(lock, "the test"):
            pass
    # A command that comes an hour later sweeps what the last kill left.
    with pytest.MonkeyPatch.context() as later:
        later.setattr("cogr.store.HALF_WRITTEN", 0.0)
        Store(store).sweep()
    assert not [path for path in store.rglob("*") if path.name.startswith((".tmp", "tmp"))]
    assert not (store / "runs/main/error.json").exists()


@pytest.mark.drill
@pytest.mark.timeout(3600)
def test_twenty_kills_in_two_rounds_change_nothing(tmp_path: Path) -> None:
    config, draw = write_sample_part(tmp_path, items=40), random.Random(7)
    calm = Commands(config, tmp_path / "calm", 2, draw)
    assert calm.attempt(kill=False) == 0
    assert calm.began == calm.finished()
    kills = 0
    # A run that ends before it is killed so often is followed by another.
    for number in range(20):
        store = tmp_path / f"store{number}"
        disturbed = Commands(config, store, 2, draw)
        disturbed.survive(20 - kills)
        kills += disturbed.kills
        assert learned(disturbed.run) == learned(calm.run)
        assert len(whole(Shop(config), "main", f"store={store}")) == 3
        check_nothing_is_left(disturbed, store)
        if kills == 20:
            return
    raise AssertionError(f"only {kills} kills came in time")


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_an_interrupt_of_the_group_ends_everything_and_says_how_to_go_on(tmp_path: Path) -> None:
    config = write_sample_part(tmp_path, items=40)
    options = ["--rounds", "1", "-c", config, "--set", "training.sft.epochs=100"]
    process = subprocess.Popen(
        [*RUN, *options], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line.strip())
        if line.startswith("sft, train-query"):
            os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130, said
    assert said[-2:] == [
        "train-query of sft was interrupted: the same command repeats it and continues.",
        "Interrupted.",
    ]
    assert not any("Traceback" in line for line in said)
