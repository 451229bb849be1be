"""A coordinator and a worker together in one process: what fails is made good."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import ServiceError, StorageError
from indexers.rebuild.assembly import Rebuilt
from indexers.rebuild.fleet.run_files import new_run
from indexers.rebuild.fleet.worker import Worker
from indexers.rebuild.update import UpdateRequest, update_side
from indexers.telemetry.terminal import progress_bar
from indexers.workspace import Workspace
from tests.damages import HARMS, damage
from tests.indexers.faulty import faulty
from tests.indexers.rebuild.fleet.fleet_worlds import attempts_in, run_in
from tests.indexers.rebuild.fleet.in_process import Straight, missing
from tests.shops import rebuild_here, write_jsonl

Rebuild = Callable[[Worker], Rebuilt]
PLACES = [
    (f"fleet/item/runs/*/{folder}", how) for folder in ("shards", "attempts") for how in HARMS
]


@pytest.fixture
def rebuild_by(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Rebuild:
    """Rebuilds on a worker of this process."""

    def rebuild(worker: Worker) -> Rebuilt:
        monkeypatch.setattr("indexers.rebuild.fleet.broker.Broker", lambda *_: Straight(worker))
        return rebuild_here(workspace, push=False, workers="celery")

    return rebuild


def test_a_worker_may_still_write_into_an_earlier_run(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, runs = workspace.store, []

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(shutil, "rmtree", busy)
    for _ in range(2):
        runs.append(new_run(store, "item").path)
        store.write(f"{runs[-1]}/attempts/late", b"")
    monkeypatch.undo()
    runs.append(new_run(store, "item").path)
    assert len({*runs}) == 3
    assert store.list("fleet/item/runs") == []


def test_a_service_that_is_away_stops_the_rebuild_and_the_next_one_goes_on(
    workspace: Workspace, rebuild_by: Rebuild
) -> None:
    told = "no answer 2 times in a row.*went away after 11 answers"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("indexers.rebuild.fleet.coordinator.MAX_SETBACKS", 2)
        patch.setattr("indexers.generators.extractive.Scripted", faulty(away_after=11))
        with pytest.raises(ServiceError, match=told):
            rebuild_by(Worker(workspace, "one"))
    assert run_in(workspace.store).state == "stopped"
    assert any("went away" in one.why for one in attempts_in(workspace.store))
    assert rebuild_by(Worker(workspace, "two")).generated == 20 - 11
    assert not missing(workspace)
    found = run_in(workspace.store)
    assert (found.state, found.answered) == ("finished", 9)


def test_workers_with_another_store_stop_the_rebuild(
    workspace: Workspace, rebuild_by: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(Worker):
        def take(self, task: Any) -> str:
            said = super().take(task)
            workspace.store.remove("cache")
            return said

    monkeypatch.setattr("indexers.rebuild.fleet.coordinator.MAX_SETBACKS", 1)
    with pytest.raises(StorageError, match="20 answers"):
        rebuild_by(Elsewhere(workspace, "one"))


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
    assert not missing(workspace)


def test_entities_that_raise_errors_are_found_by_splitting_and_set_aside(
    workspace: Workspace, rebuild_by: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    accidents: Any = {"i7": "error", "i13": "error"}
    monkeypatch.setattr("indexers.generators.extractive.Scripted", faulty(accidents=accidents))
    rebuilt = rebuild_by(Worker(workspace, "one"))
    assert set(rebuilt.set_aside) == set(accidents)
    told = "took down 3 workers, the last time: worker one: ValueError: an accident"
    assert all(told in why for why in rebuilt.set_aside.values())
    assert dict(run_in(workspace.store).set_aside) == rebuilt.set_aside
    assert rebuild_by(Worker(workspace, "one")).set_aside == rebuilt.set_aside


def test_failures_for_the_time_being_are_passed_on_and_tried_again_later(
    workspace: Workspace, rebuild_by: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.generators.extractive.Scripted", faulty(fail_every=5))
    set_aside = rebuild_by(Worker(workspace, "one")).set_aside
    assert set(set_aside.values()) == {"told to fail"}
    assert missing(workspace) == len(set_aside)
    assert run_in(workspace.store).set_aside == set_aside


def test_an_update_on_workers_equals_a_local_one(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what changed reaches the workers."""
    straight: Any = Straight(Worker(workspace, "here"))
    monkeypatch.setattr("indexers.rebuild.fleet.broker.Broker", lambda *_: straight)
    first = rebuild_here(workspace).snapshot.id
    records = [{"id": "i1", "title": "another", "text": "thing"}, {"id": "i2", "deleted": True}]
    changes = write_jsonl(tmp_path / "changes.jsonl", records)
    request = UpdateRequest("item", changed=changes, publish=False)
    on_workers = update_side(workspace, replace(request, workers="celery"), progress_bar, print)
    assert straight.said == [said for said in straight.said if "done, 1 generated" in said] != []
    workspace.store.remove("cache")
    local = update_side(workspace, request, progress_bar, print)
    assert on_workers.rebuilt.snapshot.id == local.rebuilt.snapshot.id != first
    assert (on_workers.as_dict()["carried"], local.rebuilt.generated) == (18, 1)
