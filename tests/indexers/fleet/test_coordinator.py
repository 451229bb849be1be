"""A coordinator and a worker together in one process: what fails is made good."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import ServiceError
from indexers.fleet.coordinator import coordinate
from indexers.fleet.run_files import End, GivenUp, RunFolder, overview
from indexers.fleet.worker import Worker
from indexers.rebuild.assembly import Rebuilt
from indexers.rebuild.plan import make_plan
from indexers.rebuild.run import RebuildRequest, make_job, rebuild_side
from indexers.rebuild.update import UpdateRequest, update_side
from indexers.workspace import Workspace
from tests.damages import HARMS, damage, files_below
from tests.indexers.faulty import faulty
from tests.indexers.fleet.fleet_worlds import no_bar
from tests.indexers.fleet.in_process import Straight, attempts_of, begin, task

Rebuild = Callable[[Worker], Rebuilt]


@pytest.fixture
def rebuild_by(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rebuild]:
    """Rebuilds on a worker of this process."""
    workspace.settings.redis.url = "redis://127.0.0.1:1/0"
    with coordinate(workspace, "item", None, lambda _: None) as executor:

        def rebuild(worker: Worker) -> Rebuilt:
            straight = Straight(worker)
            monkeypatch.setattr("indexers.fleet.coordinator.Broker", lambda *_: straight)
            job = make_job(workspace, RebuildRequest("item"))
            return executor.run(job, make_plan(job), lambda _: None)

        yield rebuild


def test_a_service_that_is_away_stops_the_rebuild_and_the_next_one_goes_on(
    workspace: Workspace, rebuild_by: Rebuild
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("indexers.fleet.shards.SETBACKS", 2)
        patch.setattr("indexers.generators.scripted.Scripted", faulty(away_after=11))
        with pytest.raises(
            ServiceError, match="The last 2 attempts failed.*went away after 11 answers"
        ):
            rebuild_by(Worker(workspace, "one"))
    assert rebuild_by(Worker(workspace, "two")).generated == 20 - 11
    assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing
    found = overview(workspace.store, "item", 5)
    assert found is not None
    assert (found.state, found.answered, found.waiting, found.running) == ("finished", 9, 0, 0)
    away = workspace.store.list("fleet/item/runs")[-2]
    attempts = attempts_of(RunFolder(workspace.store, "item", away))
    assert any("went away" in attempt.reason for attempt in attempts)


def test_answers_that_are_not_what_the_worker_said_are_asked_for_again(
    workspace: Workspace, rebuild_by: Rebuild
) -> None:
    class Spoiling(Worker):
        spoiled = 0

        def take(self, task: Any) -> str:
            said = super().take(task)
            if self.spoiled < 2:
                self.spoiled += 1
                for path in sorted((Path(workspace.store.url) / "cache").rglob("*.parquet"))[:1]:
                    path.unlink()
            return said

    worker = Spoiling(workspace, "one")
    rebuild_by(worker)
    assert worker.spoiled == 2
    assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("folder", ["shards", "attempts"])
def test_damaged_records_and_shards_are_written_again(
    workspace: Workspace, rebuild_by: Rebuild, folder: str, how: str
) -> None:
    class Spoiling(Worker):
        spoiled = 0

        def take(self, task: Any) -> str:
            if folder == "shards":
                self.spoil()
            said = super().take(task)
            if folder != "shards":
                self.spoil()
            return said

        def spoil(self) -> None:
            for path in sorted((Path(workspace.store.url) / "fleet").rglob(f"{folder}/*"))[:1]:
                if self.spoiled < 2:
                    self.spoiled += 1
                    damage(path, how, random.Random(self.spoiled))

    worker = Spoiling(workspace, "one")
    rebuild_by(worker)
    assert worker.spoiled == 2
    assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing


@pytest.mark.parametrize("how", HARMS)
def test_whatever_is_damaged_of_an_earlier_run_it_can_be_looked_at_and_followed(
    workspace: Workspace, rebuild_by: Rebuild, how: str
) -> None:
    for number in range(8):
        run, folder = begin(workspace)
        Worker(workspace, "here").take(task(run))
        folder.write(
            GivenUp(shard="00001-1", why="it fell", set_aside={"x": "it fell"}),
            "given_up/00001-1",
        )
        folder.write(End(state="finished"), "end")
        draw = random.Random(f"{how} {number}")
        damage(
            draw.choice(list(files_below(Path(workspace.store.url) / "fleet/item/runs" / run.id))),
            how,
            draw,
        )
        overview(workspace.store, "item", 1.0)
        shutil.rmtree(Path(workspace.store.url) / "cache", ignore_errors=True)
        rebuild_by(Worker(workspace, "one"))
        assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing
        shutil.rmtree(Path(workspace.store.url) / "cache")


def test_failures_for_the_time_being_are_passed_on_and_tried_again_later(
    workspace: Workspace, rebuild_by: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.generators.scripted.Scripted", faulty(fail_every=5))
    set_aside = rebuild_by(Worker(workspace, "one")).set_aside
    assert set(set_aside.values()) == {"told to fail"}
    missing = make_plan(make_job(workspace, RebuildRequest("item"))).missing
    assert len(missing) == len(set_aside)
    found = overview(workspace.store, "item", 5)
    assert found is not None
    assert found.set_aside == set_aside


def test_an_update_on_workers_equals_a_local_one(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what changed reaches the workers."""
    workspace.settings.redis.url = "redis://127.0.0.1:1/0"
    straight: Any = Straight(Worker(workspace, "here"))
    monkeypatch.setattr("indexers.fleet.coordinator.Broker", lambda *_: straight)
    first = rebuild_side(
        workspace, RebuildRequest("item"), no_bar, lambda _: None
    ).rebuilt.snapshot.id
    changes = tmp_path / "changes.jsonl"
    changes.write_text(
        '{"id": "i1", "title": "another", "text": "thing"}\n{"id": "i2", "deleted": true}\n'
    )
    request = UpdateRequest("item", changed=changes, parent=first, publish=False)
    on_workers = update_side(workspace, replace(request, workers="celery"), no_bar, lambda _: None)
    assert straight.said == [said for said in straight.said if "done, 1 generated" in said] != []
    workspace.store.remove("cache")
    local = update_side(workspace, request, no_bar, lambda _: None)
    assert on_workers.outcome.rebuilt.snapshot.id == local.outcome.rebuilt.snapshot.id != first
    assert (on_workers.carried, local.outcome.rebuilt.generated) == (18, 1)


@pytest.mark.slow
def test_a_rebuild_with_its_store_in_s3_is_that_of_a_local_store(
    workspace: Workspace, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run state, cache, snapshot, mirror and report lie in the bucket; worker and coordinator are
    in this process.
    """
    redis = workspace.settings.redis.model_copy(update={"url": "redis://127.0.0.1:1/0"})
    shared = Workspace(
        workspace.settings.model_copy(update={"store": f"{s3}/shop", "redis": redis})
    )
    straight: Any = Straight(Worker(shared, "here"))
    monkeypatch.setattr("indexers.fleet.coordinator.Broker", lambda *_: straight)
    there = rebuild_side(shared, RebuildRequest("item", workers="celery"), no_bar, lambda _: None)
    here = rebuild_side(workspace, RebuildRequest("item"), no_bar, lambda _: None)
    assert there.rebuilt.snapshot.id == here.rebuilt.snapshot.id
    assert there.published
    assert str(there.report).startswith(f"{s3}/shop/fleet/item/runs/")
    assert (
        shared.store.read_json(str(there.report).removeprefix(f"{s3}/shop/"))["outcome"]
        == "finished"
    )
