"""The parts of a distributed rebuild, without processes: sizes, files, a worker's decisions, the
broker's settings.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cogr.errors import GeneratorError, ServiceError, SettingsError
from cogr.prompts import Prompt
from cogr.records import Item, Query
from cogr.settings import GeneratorSettings, load_settings
from cogr.settings.fleet import FleetSettings, RedisSettings
from cogr.store import Store
from indexers.build.plan import Rebuilt, make_plan
from indexers.build.run import RebuildRequest, make_job, run_rebuild
from indexers.build.update import UpdateWishes, run_update
from indexers.fleet.broker import Broker, broker_url, make_app, printable, queue_of
from indexers.fleet.coordinator import coordinate
from indexers.fleet.records import (
    Attempt,
    Cancel,
    End,
    GivenUp,
    Run,
    RunFolder,
    entities_of,
    new_run_id,
    public_settings,
)
from indexers.fleet.shards import (
    GROWTH,
    Shard,
    ShardSizer,
    ShardTracker,
    read_requests,
    write_requests,
)
from indexers.fleet.status import overview
from indexers.fleet.worker import LoadedGenerator, Worker
from indexers.generators.protocol import Request
from indexers.workspace import Workspace
from tests.damages import HARMS, damage, files_below
from tests.indexers.fleet.fleet_worlds import no_bar, write_shop
from tests.indexers.generators.fake_endpoint import FakeEndpoint


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    write_shop(tmp_path, items=20)
    quick = [
        "fleet.heartbeat_seconds=0.05",
        "fleet.lost_seconds=0.3",
        "fleet.lease_seconds=0.4",
        "fleet.first_items=4",
    ]
    return Workspace(load_settings(tmp_path / "cogr.toml", [*quick, "fleet.poll_seconds=0.01"]))


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path if request.param == "local" else f"memory://{tmp_path.name}")


# Sizes


def done(items: int, seconds: float) -> Attempt:
    return Attempt(shard="s", worker="w", state="done", items=items, seconds=seconds)


def test_shards_grow_to_the_stated_duration_step_by_step_and_shrink_at_the_end() -> None:
    sizer = ShardSizer(180, 64)
    assert sizer.next_size(10_000, 0) == 64
    sizer.measure(done(64, 0.64))
    assert sizer.next_size(1_000_000, 4) == GROWTH * 64
    sizer.measure(done(18_000, 180))
    assert sizer.next_size(1_000_000, 4) == 18_000
    assert sizer.next_size(8_000, 4) == 1_000
    assert sizer.next_size(10, 4) == 10


@given(
    st.integers(1, 10**7),
    st.integers(0, 500),
    st.lists(st.tuples(st.integers(0, 10**5), st.floats(0, 1e4))),
)
def test_a_size_is_always_possible(
    unplanned: int, workers: int, measured: list[tuple[int, float]]
) -> None:
    sizer = ShardSizer(60, 32)
    for items, seconds in measured:
        sizer.measure(done(items, seconds))
    assert 1 <= sizer.next_size(unplanned, workers) <= unplanned


# Files


def test_requests_come_back_as_they_were(store: Store) -> None:
    items = [
        (b"\0" * 16, Request("a", Item("a", "Täble", "x\ny"), Prompt("s", "u", cut=True))),
        (b"\2" * 16, Request("c", Item("c", "", ""), Prompt("", ""))),
    ]
    queries = [(b"\1" * 16, Request("b", Query("b", "sofa", 2.5), Prompt("s", "v")))]
    for side, keyed in (("item", items), ("query", queries)):
        folder = RunFolder(store, side, "r")  # type: ignore[arg-type]
        write_requests(folder, "00007-3", keyed)
        assert folder.names("shards") == ["00007-3"]
        assert read_requests(folder, "00007-3") == keyed
        assert read_requests(folder, "none") is None
    assert entities_of("00007-3") == 3


# The broker


def test_urls_carry_secrets_that_are_never_printed() -> None:
    redis = RedisSettings(url="rediss://host:6380/1", username="u", password="p@ss/w")
    assert broker_url(redis) == "rediss://u:p%40ss%2Fw@host:6380/1"
    assert printable(RedisSettings(url="redis://u:secret@host/0")) == "redis://host/0"
    assert "p@ss" not in repr(redis)
    conf = make_app(redis, FleetSettings()).conf
    assert conf.broker_use_ssl["ssl_check_hostname"] is True
    assert conf.accept_content == ["json"]


def test_sentinels_need_the_name_of_their_master() -> None:
    urls = "sentinel://a:26379;sentinel://b:26379"
    with pytest.raises(ValidationError, match="sentinel_master"):
        RedisSettings(url=urls)
    redis = RedisSettings(
        url=urls, sentinel_master="main", sentinel_password="inner", password="outer"
    )
    conf = make_app(redis, FleetSettings()).conf
    assert conf.broker_transport_options["master_name"] == "main"
    assert conf.broker_transport_options["sentinel_kwargs"] == {"password": "inner"}
    assert broker_url(redis) == "sentinel://:outer@a:26379;sentinel://:outer@b:26379"


@pytest.mark.parametrize(
    "url", ["redis+cluster://host:7000", "rediss+cluster://host", "amqp://host", "host:6379"]
)
def test_what_is_no_broker_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match=r"Redis Cluster|redis://"):
        RedisSettings(url=url)


def test_no_broker_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match="cogr-ops redis start"):
        Broker(RedisSettings(), FleetSettings(), "q")
    broker = Broker(RedisSettings(url="redis://127.0.0.1:1/0"), FleetSettings(), "q")
    with pytest.raises(ServiceError, match=r"The broker redis://127.0.0.1:1/0 can't be asked"):
        broker.waiting()


def test_each_side_and_model_has_a_queue() -> None:
    one, two = GeneratorSettings(name="vllm", model="a"), GeneratorSettings(name="vllm", model="b")
    queues = {queue_of("item", one), queue_of("item", two), queue_of("query", one)}
    assert len(queues) == 3
    assert all(queue.startswith("v2.") for queue in queues)


# A worker


class Straight:
    """A queue that hands its tasks to a worker of this process when it is asked how many wait."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.tasks: list[dict[str, Any]] = []
        self.said: list[str] = []

    def send(self, message: Any) -> None:
        self.tasks.append(dict(message))
        while self.tasks:
            self.said.append(self.worker.take(self.tasks.pop(0)))

    def waiting(self) -> int:
        return len(self.tasks)


SHARD = "00000-20"


def begin(workspace: Workspace) -> tuple[Run, RunFolder]:
    """A run with one shard of all entities, as a coordinator writes it."""
    job = make_job(workspace, RebuildRequest("item"))
    plan = make_plan(job)
    settings = workspace.generator_settings("item")
    run = Run(
        id=new_run_id(),
        side="item",
        fingerprint=job.generator.fingerprint,
        generator=public_settings(settings),
        entities=len(plan.entities),
        to_generate=len(plan.missing),
    )
    folder = RunFolder(workspace.store, "item", run.id)
    folder.write(run, "run")
    keyed = [(plan.keys[i], job.request(plan.entities[i])) for i in plan.missing]
    write_requests(folder, SHARD, keyed)
    return run, folder


def task(of: Run, **more: Any) -> dict[str, Any]:
    return {"format": 2, "side": "item", "run": of.id, "shard": SHARD, "attempt": 1, **more}


def attempts_of(folder: RunFolder) -> list[Attempt]:
    return folder.read_all(Attempt, "attempts")


def test_an_attempt_is_made_once_and_the_next_one_generates_nothing_again(
    workspace: Workspace,
) -> None:
    run, folder = begin(workspace)
    worker = Worker(workspace, "here")
    assert "done, 20 generated" in worker.take(task(run))
    # The broker delivers the message once more: to this worker, or to one that never saw it.
    assert "a worker has attempt 1" in worker.take(task(run))
    assert "a worker has attempt 1" in Worker(workspace, "there").take(task(run))
    assert "done, 0 generated" in worker.take(task(run, attempt=2))
    assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing
    first, second = attempts_of(folder)
    assert (first.number, first.items, first.entities) == (1, 20, 20)
    assert (second.number, second.items, second.entities) == (2, 0, 20)


def test_of_many_workers_with_one_message_one_makes_the_attempt(workspace: Workspace) -> None:
    run, folder = begin(workspace)
    said: list[str] = []
    workers = [Worker(workspace, f"worker-{number}") for number in range(6)]
    threads = [
        threading.Thread(target=lambda one=one: said.append(one.take(task(run))))  # type: ignore[misc]
        for one in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted("left alone" in one for one in said) == [False, *[True] * 5]
    assert len(attempts_of(folder)) == 1


def test_a_worker_leaves_alone_what_is_not_wanted(workspace: Workspace) -> None:
    run, folder = begin(workspace)
    worker = Worker(workspace, "here")
    assert "no run nothing" in worker.take(task(run, run="nothing"))
    folder.write(Cancel(by="me"), "cancel")
    assert "has ended" in worker.take(task(run))
    workspace.store.remove(f"{folder.path}/cancel.json")
    folder.write(End(state="finished"), "end")
    assert "has ended" in worker.take(task(run))
    assert attempts_of(folder) == []


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"format": 99, "shape": "round"}, "this worker reads task format 2, the task has 99"),
        ({"format": None}, "the task can't be read"),
        ({"attempt": 0}, "the task can't be read"),
        ({"attempt": None}, "the task can't be read"),
    ],
)
def test_a_task_that_is_not_understood_is_refused(
    workspace: Workspace, more: dict[str, Any], reason: str
) -> None:
    run, folder = begin(workspace)
    said = Worker(workspace, "here").take(task(run, **more))
    assert said.startswith("refused")
    assert reason in said
    assert attempts_of(folder) == []


def test_a_task_can_t_lead_out_of_the_run(workspace: Workspace) -> None:
    run, _ = begin(workspace)
    for path in ("../..", "../../snapshots"):
        for format_ in (1, 2):
            said = Worker(workspace, "here").take(task(run, format=format_, run=path))
            assert said.startswith("refused")
    assert not (Path(workspace.store.url) / "attempts").exists()


def test_a_worker_with_another_generator_declines_or_changes_over(
    workspace: Workspace, tmp_path: Path
) -> None:
    run, _ = begin(workspace)
    script = tmp_path / "script.jsonl"
    script.write_text('{"id": "i1", "text": "told"}\n')
    # A worker that has other words in its own settings makes what the run names.
    other = Workspace(
        load_settings(tmp_path / "cogr.toml", [f"generator.scripted.script={script}"])
    )
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
    write_shop(tmp_path, items=20)
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
    """Its heart beats all the time, which proves nothing."""
    released, told = threading.Event(), []
    run, folder = begin(workspace)
    workspace.settings.fleet.stuck_seconds = 0.4
    monkeypatch.setattr("indexers.generators.scripted.time.sleep", lambda _: released.wait(60))
    workspace.settings.generator.scripted.delay = 1

    def abandon() -> None:
        told.extend(attempts_of(folder))
        released.set()

    Worker(workspace, "here", abandon=abandon).take(task(run))
    ((attempt),) = told
    assert (attempt.state, attempt.items) == ("failed", 0)
    assert attempt.updated > attempt.started
    assert "no answer for 0.4 s while running (fleet.stuck_seconds)" in attempt.reason


def test_an_attempt_whose_file_no_longer_changes_is_silent_and_the_next_one_is_due(
    store: Store,
) -> None:
    folder = RunFolder(store, "item", "r")
    tracker = ShardTracker(folder, lost_seconds=0.3)
    shard = tracker.open[SHARD] = Shard(SHARD, [*range(20)])
    attempt = Attempt(shard=SHARD, number=1, worker="w", state="running")
    for beat in range(20):
        # Its clock may say what it wants.
        update = {"updated": float(-beat)}
        folder.write(attempt.model_copy(update=update), f"attempts/{SHARD}.1")
        assert tracker.poll() == ([], [])
        time.sleep(0.02)
    assert tracker.running != []
    deadline = time.monotonic() + 30
    while not (failed := tracker.poll()[1]) and time.monotonic() < deadline:
        time.sleep(0.02)
    ((_, silent),) = failed
    assert (silent.state, silent.reason) == ("silent", "fell silent while running")
    assert (shard.attempt, shard.deaths, shard.running) == (2, 1, None)


def test_an_engine_that_can_t_be_changed_in_its_process_ends_the_worker(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.fleet.worker.ONE_PER_PROCESS", {"scripted"})
    run, folder = begin(workspace)
    worker = Worker(workspace, "here")
    assert "done" in worker.take(task(run))
    other = run.model_copy(
        update={"id": new_run_id(), "fingerprint": {**run.fingerprint, "words": 3}}
    )
    second = RunFolder(workspace.store, "item", other.id)
    second.write(other, "run")
    write_requests(second, SHARD, read_requests(folder, SHARD) or [])
    assert "starts anew" in worker.take(task(other))
    assert worker.restart_needed
    (attempt,) = attempts_of(second)
    assert attempt.state == "stopped"


# Coordinator and worker together


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
            return executor.rebuild(job, make_plan(job), lambda _: None)

        yield rebuild


def test_a_service_that_is_away_stops_the_rebuild_and_the_next_one_goes_on(
    workspace: Workspace, rebuild_by: Rebuild
) -> None:
    workspace.settings.fleet.setbacks = 2
    scripted = workspace.settings.generator.scripted
    scripted.away_after = 11
    with pytest.raises(
        ServiceError, match="The last 2 attempts failed.*went away after 11 answers"
    ):
        rebuild_by(Worker(workspace, "one"))
    scripted.away_after = None
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
    workspace: Workspace, rebuild_by: Rebuild
) -> None:
    workspace.settings.generator.scripted.fail_every = 5
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
    first = run_rebuild(
        workspace, RebuildRequest("item"), no_bar, lambda _: None
    ).rebuilt.snapshot.id
    changes = tmp_path / "changes.jsonl"
    changes.write_text(
        '{"id": "i1", "title": "another", "text": "thing"}\n{"id": "i2", "deleted": true}\n'
    )
    wishes = UpdateWishes("item", changed=changes, parent=first, publish=False)
    on_workers = run_update(workspace, replace(wishes, workers="celery"), no_bar, lambda _: None)
    assert straight.said == [said for said in straight.said if "done, 1 generated" in said] != []
    workspace.store.remove("cache")
    local = run_update(workspace, wishes, no_bar, lambda _: None)
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
    there = run_rebuild(shared, RebuildRequest("item", workers="celery"), no_bar, lambda _: None)
    here = run_rebuild(workspace, RebuildRequest("item"), no_bar, lambda _: None)
    assert there.rebuilt.snapshot.id == here.rebuilt.snapshot.id
    assert there.published
    assert str(there.report).startswith(f"{s3}/shop/fleet/item/runs/")
    assert (
        shared.store.read_json(str(there.report).removeprefix(f"{s3}/shop/"))["outcome"]
        == "finished"
    )
