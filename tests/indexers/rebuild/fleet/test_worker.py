"""What a worker makes of a message, without a broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import GeneratorError
from cogr.settings import load_settings
from indexers.generators.extractive import Scripted
from indexers.rebuild.fleet.worker import RunningAttempt, Worker
from indexers.workspace import Workspace
from tests.indexers.faulty import faulty
from tests.indexers.generators.fake_endpoint import FakeEndpoint
from tests.indexers.rebuild.fleet.fleet_worlds import attempts_of
from tests.indexers.rebuild.fleet.in_process import SHARD, begin, missing, task
from tests.shops import write_thing_shop


def test_a_shard_is_done_once_and_gone_then(workspace: Workspace) -> None:
    run, folder = begin(workspace)
    worker = Worker(workspace, "here")
    assert "done, 20 generated" in worker.take(task(run))
    # The broker delivers the message once more: to this worker, or to one that never saw it.
    assert "a worker has it" in worker.take(task(run))
    assert "a worker has it" in Worker(workspace, "there").take(task(run))
    assert "declined, 0 generated" in worker.take(task(run, shard="gone"))
    assert folder.names("shards") == []
    assert not missing(workspace)
    first, second = attempts_of(folder)
    assert (first.shard, first.state, first.items) == (SHARD, "done", 20)
    assert (second.shard, second.state, second.items) == ("gone", "declined", 0)


@pytest.mark.parametrize("over", [False, True])
def test_a_worker_leaves_the_rest_when_time_or_run_is_over(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, *, over: bool
) -> None:
    run, folder = begin(workspace)
    monkeypatch.setattr("indexers.rebuild.fleet.worker.WORKER_LOOK_SECONDS", 0.05)
    monkeypatch.setattr("indexers.rebuild.fleet.worker.SHARD_SECONDS", 60 if over else 0.1)
    monkeypatch.setattr("indexers.generators.extractive.Scripted", faulty(delay=0.02))
    worker = Worker(workspace, "here")
    begun = RunningAttempt.begin

    def begin_and_end(attempt: RunningAttempt) -> None:
        begun(attempt)
        folder.write(run.model_copy(update={"state": "stopped"}), "run")

    if over:
        # The coordinator ends in the middle of the shard.
        monkeypatch.setattr(RunningAttempt, "begin", begin_and_end)
    assert "the rest is left" in worker.take(task(run))
    (attempt,) = attempts_of(folder)
    assert 1 <= attempt.items < 20
    assert folder.names("shards") == []
    assert missing(workspace) == 20 - attempt.items
    if over:
        assert "has ended" in worker.take(task(run, shard="other"))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"shard": None}, "the task can't be read"),
        ({"run": "../../snapshots"}, "the task can't be read"),
        ({"run": "0"}, "there is no run 0 in"),
    ],
)
def test_a_task_that_is_not_understood_is_refused(
    workspace: Workspace, more: dict[str, Any], reason: str
) -> None:
    run, folder = begin(workspace)
    said = Worker(workspace, "here").take(task(run, **more))
    assert said.startswith(f"A message is refused: {reason}")
    assert attempts_of(folder) == []
    assert not (Path(workspace.store.url) / "attempts").exists()


def test_a_worker_with_another_generator_declines_or_changes_over(
    workspace: Workspace, tmp_path: Path
) -> None:
    run, _ = begin(workspace)
    # Its kind is said by the command.
    other = Workspace(load_settings(tmp_path / "cogr.toml", ["generator.name=extractive"]))
    with pytest.raises(GeneratorError, match="'extractive' .*'scripted'"):
        Worker(other, "here").generator_of(run)
    worker = Worker(other, "here", "scripted")
    held = worker.generator_of(run)
    assert held.fingerprint == run.fingerprint
    assert worker.generator_of(run) is held
    unknown, folder = begin(workspace, words=3)
    assert "words is 10 here and 3 there" in worker.take(task(unknown))
    assert [one.state for one in attempts_of(folder)] == ["declined"]
    assert worker.generator_of(run) is not held


def test_an_engine_that_can_t_be_changed_in_its_process_ends_the_worker(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = begin(workspace)
    worker = Worker(workspace, "here")
    worker.generator_of(run)
    monkeypatch.setattr(Scripted, "fingerprint", {"kind": "another"})
    monkeypatch.setattr(Scripted, "keeps_memory", True)
    assert "restarts" in worker.take(task(run))
    assert worker.restart_needed


def test_workers_may_reach_the_model_by_addresses_of_their_own(tmp_path: Path) -> None:
    """A server on each worker's machine, a gateway of its own: the answers are still those that the
    coordinator waits for.
    """
    write_thing_shop(tmp_path, items=20)
    with FakeEndpoint() as endpoint:
        here = ["generator.name=openai", *endpoint.settings]
        there = [setting.replace("127.0.0.1", "localhost") for setting in here]
        coordinator, worker = (
            Workspace(load_settings(tmp_path / "cogr.toml", settings)) for settings in (there, here)
        )
        run, _ = begin(coordinator)
        assert "done, 20 generated" in Worker(worker, "here").take(task(run))
        assert not missing(coordinator)


def test_a_worker_whose_generator_hangs_ends(workspace: Workspace, tmp_path: Path) -> None:
    run, folder = begin(workspace)
    program = (
        "from pathlib import Path; from cogr.settings import load_settings\n"
        "from indexers.rebuild.fleet import worker; from indexers.generators import extractive\n"
        "from indexers.workspace import Workspace; from tests.indexers.faulty import faulty\n"
        "worker.STUCK_SECONDS = 0.4; extractive.Scripted = faulty(accidents={'i7': 'hang'})\n"
        f"workspace = Workspace(load_settings(Path({str(tmp_path / 'cogr.toml')!r})))\n"
        f"worker.Worker(workspace, 'it').take({task(run)!r})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ended.returncode == 1
    assert b"in _meet_with" in ended.stderr
    (attempt,) = attempts_of(folder)
    assert (attempt.state, attempt.why) == ("running", "worker it: died while running")
