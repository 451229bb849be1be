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
from indexers.fleet.run_files import RunFolder, overview
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
PLACES = [
    (f"fleet/item/runs/*/{folder}", how) for folder in ("shards", "attempts") for how in HARMS
]


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
        patch.setattr("indexers.fleet.coordinator.SETBACKS", 2)
        patch.setattr("indexers.generators.scripted.Scripted", faulty(away_after=11))
        with pytest.raises(
            ServiceError, match="no answer 2 times in a row.*went away after 11 answers"
        ):
            rebuild_by(Worker(workspace, "one"))
    assert rebuild_by(Worker(workspace, "two")).generated == 20 - 11
    assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing
    found = overview(workspace.store, "item")
    assert (found.state, found.answered, found.shards, found.held) == ("finished", 9, 0, [])
    away = workspace.store.list("fleet/item/runs")[-2]
    attempts = attempts_of(RunFolder(workspace.store, "item", away))
    assert any("went away" in attempt.reason for attempt in attempts)


@pytest.mark.parametrize(("folder", "how"), [("cache/*", "gone"), *PLACES])
def test_what_is_damaged_under_way_is_made_again(
    workspace: Workspace, rebuild_by: Rebuild, folder: str, how: str
) -> None:
    class Spoiling(Worker):
        spoiled = 0

        def take(self, task: Any) -> str:
            if "shards" in folder:
                self.spoil()
            said = super().take(task)
            if "shards" not in folder:
                self.spoil()
            return said

        def spoil(self) -> None:
            for path in sorted(Path(workspace.store.url).glob(f"{folder}/*"))[:1]:
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
    for number in range(2):
        run, folder = begin(workspace)
        Worker(workspace, "here").take(task(run))
        folder.end(state="finished")
        draw = random.Random(f"{how} {number}")
        damage(
            draw.choice(list(files_below(Path(workspace.store.url) / "fleet/item/runs" / run.id))),
            how,
            draw,
        )
        overview(workspace.store, "item")
        shutil.rmtree(Path(workspace.store.url) / "cache", ignore_errors=True)
        rebuild_by(Worker(workspace, "one"))
        assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing
        shutil.rmtree(Path(workspace.store.url) / "cache")


def test_entities_that_raise_errors_are_found_by_splitting_and_set_aside(
    workspace: Workspace, rebuild_by: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    accidents: Any = {"i7": "error", "i13": "error"}
    monkeypatch.setattr("indexers.generators.scripted.Scripted", faulty(accidents=accidents))
    rebuilt = rebuild_by(Worker(workspace, "one"))
    assert set(rebuilt.set_aside) == set(accidents)
    assert all(
        "took down 3 workers, the last time: worker one: ValueError: an accident" in why
        for why in rebuilt.set_aside.values()
    )
    found = overview(workspace.store, "item")
    assert dict(found.set_aside) == rebuilt.set_aside
    assert rebuild_by(Worker(workspace, "one")).set_aside == rebuilt.set_aside


def test_what_takes_too_long_is_cut_to_what_a_worker_manages(
    workspace: Workspace, rebuild_by: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.fleet.coordinator.SHARDS", 1)
    monkeypatch.setattr("indexers.fleet.worker.SHARD_SECONDS", 0.1)
    monkeypatch.setattr("indexers.generators.scripted.Scripted", faulty(delay=0.02))
    assert rebuild_by(Worker(workspace, "one")).generated == 20
    (run,) = workspace.store.list("fleet/item/runs")
    attempts = attempts_of(RunFolder(workspace.store, "item", run))
    assert [one.state for one in attempts if one.shard.startswith("000")] == ["stopped"]
    assert len([one for one in attempts if one.shard.startswith("001")]) >= 3


def test_failures_for_the_time_being_are_passed_on_and_tried_again_later(
    workspace: Workspace, rebuild_by: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.generators.scripted.Scripted", faulty(fail_every=5))
    set_aside = rebuild_by(Worker(workspace, "one")).set_aside
    assert set(set_aside.values()) == {"told to fail"}
    missing = make_plan(make_job(workspace, RebuildRequest("item"))).missing
    assert len(missing) == len(set_aside)
    found = overview(workspace.store, "item")
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
