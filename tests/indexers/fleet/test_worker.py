"""What a worker makes of a message, without a broker."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import GeneratorError
from cogr.settings import load_settings
from indexers.fleet.run_files import Cancel, RunFolder, new_run_id
from indexers.fleet.worker import LoadedGenerator, Worker
from indexers.rebuild.plan import make_plan
from indexers.rebuild.run import RebuildRequest, make_job
from indexers.workspace import Workspace
from tests.indexers.faulty import faulty
from tests.indexers.fleet.in_process import SHARD, attempts_of, begin, task
from tests.indexers.generators.fake_endpoint import FakeEndpoint
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
    assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing
    first, second = attempts_of(folder)
    assert (first.shard, first.state, first.items) == (SHARD, "done", 20)
    assert (second.shard, second.state, second.items) == ("gone", "declined", 0)


def test_a_worker_leaves_the_rest_of_a_shard_that_takes_too_long(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.fleet.worker.SHARD_SECONDS", 0.1)
    monkeypatch.setattr("indexers.generators.scripted.Scripted", faulty(delay=0.02))
    run, folder = begin(workspace)
    assert "the rest is left" in Worker(workspace, "here").take(task(run))
    (attempt,) = attempts_of(folder)
    assert 1 <= attempt.items < 20
    assert folder.names("shards") == []
    missing = make_plan(make_job(workspace, RebuildRequest("item"))).missing
    assert len(missing) == 20 - attempt.items


def test_a_worker_leaves_alone_what_is_not_wanted(workspace: Workspace) -> None:
    run, folder = begin(workspace)
    worker = Worker(workspace, "here")
    assert "there is no run nothing" in worker.take(task(run, run="nothing"))
    folder.write(Cancel(by="me"), "cancel")
    assert "has ended" in worker.take(task(run))
    workspace.store.remove(f"{folder.path}/cancel.json")
    folder.end(state="finished")
    assert "has ended" in worker.take(task(run))
    assert attempts_of(folder) == []


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"side": "both"}, "the task can't be read"),
        ({"run": ["x"]}, "the task can't be read"),
        ({"shard": None}, "the task can't be read"),
    ],
)
def test_a_task_that_is_not_understood_is_refused(
    workspace: Workspace, more: dict[str, Any], reason: str
) -> None:
    run, folder = begin(workspace)
    said = Worker(workspace, "here").take(task(run, **more))
    assert said.startswith("A message is refused")
    assert reason in said
    assert attempts_of(folder) == []


def test_a_task_can_t_lead_out_of_the_run(workspace: Workspace) -> None:
    run, _ = begin(workspace)
    for path in ("../..", "../../snapshots"):
        said = Worker(workspace, "here").take(task(run, run=path))
        assert said.startswith("A message is refused")
    assert not (Path(workspace.store.url) / "attempts").exists()


def test_a_worker_with_another_generator_declines_or_changes_over(
    workspace: Workspace, tmp_path: Path
) -> None:
    run, _ = begin(workspace)
    # A worker that has another generator in its own settings makes what the run names.
    other = Workspace(load_settings(tmp_path / "cogr.toml", ["generator.name=extractive"]))
    loaded = LoadedGenerator(other)
    held = loaded.get(run)
    assert held.fingerprint == run.fingerprint
    assert loaded.get(run) is held
    unknown = run.model_copy(update={"fingerprint": {**run.fingerprint, "words": 3}})
    with pytest.raises(GeneratorError, match="words is 10 here and 3 there"):
        loaded.get(unknown)


def test_workers_may_reach_the_model_by_addresses_of_their_own(tmp_path: Path) -> None:
    """A server on each worker's machine, a gateway of its own: the answers are still those that the
    coordinator waits for.
    """
    write_thing_shop(tmp_path, items=20)
    with FakeEndpoint() as endpoint:
        there = endpoint.url.replace("127.0.0.1", "localhost")
        coordinator, worker = (
            Workspace(
                load_settings(
                    tmp_path / "cogr.toml",
                    [
                        "generator.name=openai",
                        "generator.model=fake",
                        f"generator.openai.base_url={url}",
                    ],
                )
            )
            for url in (there, endpoint.url)
        )
        run, _ = begin(coordinator)
        assert "done, 20 generated" in Worker(worker, "here").take(task(run))
        assert not make_plan(make_job(coordinator, RebuildRequest("item"))).missing
        other = run.model_copy(update={"fingerprint": {**run.fingerprint, "model": "another"}})
        with pytest.raises(
            GeneratorError, match="the rebuild: model is 'fake' here and 'another' there.$"
        ):
            LoadedGenerator(worker).get(other)


def test_a_worker_whose_generator_hangs_gives_its_shard_up(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, told = threading.Event(), []
    run, folder = begin(workspace)
    monkeypatch.setattr("indexers.fleet.worker.STUCK_SECONDS", 0.4)
    monkeypatch.setattr("tests.indexers.faulty.time.sleep", lambda _: released.wait(60))
    monkeypatch.setattr("indexers.generators.scripted.Scripted", faulty(delay=1))

    def abandon() -> None:
        told.extend(attempts_of(folder))
        released.set()

    Worker(workspace, "here", abandon=abandon).take(task(run))
    ((attempt),) = told
    assert (attempt.state, attempt.items) == ("failed", 0)
    assert "no answer for 0.4 s" in attempt.reason


def test_an_engine_that_can_t_be_changed_in_its_process_ends_the_worker(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.fleet.worker.ONE_PER_PROCESS", {"scripted"})
    run, folder = begin(workspace)
    keyed = folder.read_shard(SHARD) or []
    worker = Worker(workspace, "here")
    assert "done" in worker.take(task(run))
    other = run.model_copy(
        update={"id": new_run_id(), "fingerprint": {**run.fingerprint, "words": 3}}
    )
    second = RunFolder(workspace.store, "item", other.id)
    second.write(other, "run")
    second.write_shard(SHARD, keyed)
    assert "starts anew" in worker.take(task(other))
    assert worker.restart_needed
    (attempt,) = attempts_of(second)
    assert attempt.state == "stopped"
