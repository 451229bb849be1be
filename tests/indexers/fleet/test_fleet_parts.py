"""The parts of a distributed rebuild, without processes: leases, sizes, files, a worker's
decisions, the broker's settings.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cogr.errors import GeneratorError, LockedError, ServiceError, SettingsError
from cogr.progress import Advance
from cogr.prompts import Prompt
from cogr.records import Item, Query
from cogr.settings import GeneratorSettings, load_settings
from cogr.settings.fleet import FleetSettings, RedisSettings
from cogr.store import Store
from indexers.build.lease import acquire, read_lease, right_to_rebuild
from indexers.build.plan import make_plan
from indexers.build.run import RebuildRequest, executor_of, make_job, run_rebuild
from indexers.build.update import UpdateRequest, run_update
from indexers.fleet.broker import Broker, broker_url, make_app, printable
from indexers.fleet.coordinator import Coordinator, Parts
from indexers.fleet.engines import Engines, told
from indexers.fleet.ledger import Ledger, Shard
from indexers.fleet.pace import GROWTH, Pace
from indexers.fleet.queues import queue_of
from indexers.fleet.records import (
    Attempt,
    Cancel,
    Done,
    End,
    GivenUp,
    Run,
    RunFolder,
    entities_of,
    new_run_id,
    open_run,
    shard_name,
)
from indexers.fleet.session import coordinate
from indexers.fleet.shards import read_keys, read_shard, write_shard
from indexers.fleet.station import Station
from indexers.fleet.status import overview
from indexers.generators.protocol import Request
from indexers.workspace import Workspace
from tests.damages import HARMS, damage, files_below
from tests.indexers.fleet.fleet_worlds import write_shop
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


# Leases


def test_one_of_two_coordinators_is_refused_and_takes_over_after_a_release(store: Store) -> None:
    with acquire(store, right_to_rebuild("item"), "rebuild", 30) as first:
        with pytest.raises(LockedError, match="holds the rebuild of items"):
            acquire(store, right_to_rebuild("item"), "rebuild", 30)
        with acquire(store, right_to_rebuild("query"), "rebuild", 30) as other:
            assert other.term == 1
        first.check()
    with acquire(store, right_to_rebuild("item"), "rebuild", 30) as second:
        assert second.term == 2


@pytest.mark.parametrize("how", HARMS)
def test_a_damaged_lease_keeps_nobody_out(store: Store, how: str) -> None:
    for number in range(10):
        acquire(store, right_to_rebuild("item"), "rebuild", 5.0, alone_here=True).release()
        (name,) = store.list("fleet/item/lease")
        if Path(store.url).is_dir():
            damage(Path(store.url) / "fleet/item/lease" / name, how, random.Random(number))
    acquire(store, right_to_rebuild("item"), "rebuild", 5.0, alone_here=True).release()


def test_a_silent_holder_is_replaced_and_notices(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with acquire(store, right_to_rebuild("item"), "rebuild", 0.4) as first:
        # It hangs: its thread does not come to write.
        monkeypatch.setattr(first, "_write", lambda **_: None)
        time.sleep(0.5)
        with acquire(store, right_to_rebuild("item"), "rebuild", 0.4) as second:
            assert second.term == 2
            with pytest.raises(LockedError, match="has taken over"):
                first.check()
            second.check()


@pytest.mark.fault
def test_a_holder_with_a_wrong_clock_is_not_replaced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with acquire(store, right_to_rebuild("item"), "rebuild", 0.4):
        real = time.time
        for wrong in (-3600, 3600):
            monkeypatch.setattr(
                "indexers.build.lease.time.time", lambda wrong=wrong: real() + wrong
            )
            with pytest.raises(LockedError):
                acquire(store, right_to_rebuild("item"), "rebuild", 0.4)
        monkeypatch.undo()


def test_a_lease_of_a_dead_process_of_this_host_is_free_at_once(store: Store) -> None:
    first = acquire(store, right_to_rebuild("item"), "rebuild", 300)
    first._ending.set()
    began = time.monotonic()
    with acquire(store, right_to_rebuild("item"), "rebuild", 300, alone_here=True) as second:
        assert second.term == 2
    assert time.monotonic() - began < 5


def test_many_at_once_get_one_lease(store: Store) -> None:
    got: list[Any] = []

    def ask() -> None:
        try:
            got.append(acquire(store, right_to_rebuild("item"), "rebuild", 30))
        except LockedError:
            got.append(None)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lease,) = [one for one in got if one is not None]
    lease.release()
    held = read_lease(store, "item")
    assert held is not None
    assert (held.term, held.released) == (1, True)


def test_a_local_rebuild_waits_for_one_on_workers_of_another_host_and_the_other_way_round(
    workspace: Workspace,
) -> None:
    """Over a shared store; here no lock of this host helps."""
    shared = Workspace(
        workspace.settings.model_copy(update={"store": f"memory://{uuid.uuid4().hex}"})
    )
    wishes = RebuildRequest("item")
    with acquire(shared.store, right_to_rebuild("item"), "rebuild on another host", 30):
        for workers in ("local", "celery"):
            with pytest.raises(LockedError, match="rebuild on another host"):
                run_rebuild(shared, replace(wishes, workers=workers), no_bar, lambda _: None)
        with pytest.raises(LockedError, match="rebuild on another host"):
            run_update(
                shared, UpdateRequest("item", since=datetime.now(UTC)), no_bar, lambda _: None
            )
    assert run_rebuild(shared, wishes, no_bar, lambda _: None).published
    holding = executor_of(shared, wishes, "rebuild", lambda _: None)
    with holding, pytest.raises(LockedError, match="rebuild --side item"):
        coordinate(shared, "item", None, lambda _: None).__enter__()


@contextmanager
def no_bar(what: str, total: int) -> Iterator[Advance]:
    yield lambda _: None


# Sizes


def done(items: int, seconds: float) -> Done:
    return Done(
        shard="s",
        attempt="a",
        worker="w",
        entities=items,
        items=items,
        tokens=0,
        seconds=seconds,
        finished=0.0,
    )


def test_shards_grow_to_the_stated_duration_step_by_step_and_shrink_at_the_end() -> None:
    pace = Pace(180, 64)
    assert pace.next_size(10_000, 0) == 64
    pace.measure(done(64, 0.64))
    assert pace.next_size(1_000_000, 4) == GROWTH * 64
    pace.measure(done(18_000, 180))
    assert pace.next_size(1_000_000, 4) == 18_000
    assert pace.next_size(8_000, 4) == 1_000
    assert pace.next_size(10, 4) == 10


@given(
    st.integers(1, 10**7),
    st.integers(0, 500),
    st.lists(st.tuples(st.integers(0, 10**5), st.floats(0, 1e4))),
)
def test_a_size_is_always_possible(
    unplanned: int, workers: int, measured: list[tuple[int, float]]
) -> None:
    pace = Pace(60, 32)
    for items, seconds in measured:
        pace.measure(done(items, seconds))
    assert 1 <= pace.next_size(unplanned, workers) <= unplanned


# Files


def test_requests_come_back_as_they_were(store: Store) -> None:
    folder = RunFolder(store, "item", "r")
    keyed = [
        (b"\0" * 16, Request("a", Item("a", "Täble", "x\ny"), Prompt("s", "u", cut=True))),
        (b"\1" * 16, Request("b", Query("b", "sofa", 2.5), Prompt("s", "v"))),
        (b"\2" * 16, Request("c", Item("c", "", ""), Prompt("", ""))),
    ]
    name = shard_name(3, 7, len(keyed))
    write_shard(folder, name, keyed)
    assert read_shard(folder, name) == keyed
    assert read_keys(folder, name) == [key for key, _ in keyed]
    assert entities_of(name) == 3
    assert read_shard(folder, "none") is None


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
    assert all(queue.startswith("v1.") for queue in queues)


# A worker


class Straight:
    """A queue that hands its tasks to a worker of this process when it is asked how many wait."""

    def __init__(self, station: Station) -> None:
        self.station = station
        self.tasks: list[dict[str, Any]] = []
        self.said: list[str] = []

    def send(self, message: Any) -> None:
        self.tasks.append(dict(message))
        while self.tasks:
            self.said.append(self.station.take(self.tasks.pop(0)))

    def waiting(self) -> int:
        return len(self.tasks)

    def purge(self) -> None:
        self.tasks.clear()


def begin(workspace: Workspace) -> tuple[Run, RunFolder]:
    """A run with one shard of all entities, as a coordinator writes it."""
    job = make_job(workspace, RebuildRequest("item"))
    plan = make_plan(job)
    settings = workspace.generator_settings("item")
    run = Run(
        id=new_run_id(),
        side="item",
        identity="",
        created=0.0,
        fingerprint=job.generator.fingerprint,
        fingerprint_hash=fingerprint(job.generator.fingerprint),
        generator=told(settings),
        prompt_hash="",
        entities=len(plan.entities),
        to_generate=len(plan.missing),
        queue=queue_of("item", settings),
    )
    folder = RunFolder(workspace.store, "item", run.id)
    folder.write(run, "run")
    write_shard(
        folder,
        "0001-00000-20",
        [(plan.keys[i], job.request(plan.entities[i])) for i in plan.missing],
    )
    return run, folder


def fingerprint(values: Any) -> str:
    from indexers.build.cache import fingerprint_hash

    return fingerprint_hash(values)


def task(of: Run, **more: Any) -> dict[str, Any]:
    return {"format": 1, "side": "item", "run": of.id, "shard": "0001-00000-20", "dead": [], **more}


def test_a_shard_that_is_done_twice_is_done_once(workspace: Workspace) -> None:
    run, folder = begin(workspace)
    station = Station(workspace, "here")
    assert "done, 20 generated" in station.take(task(run))
    assert "it is done" in station.take(task(run))
    # Even by a worker that knows nothing of the first one's result.
    workspace.store.remove(f"{folder.path}/done/0001-00000-20.json")
    assert "done, 0 generated" in station.take(task(run))
    assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing
    result = folder.read(Done, "done/0001-00000-20")
    assert result is not None
    assert (result.entities, result.items) == (20, 0)


def test_a_worker_leaves_alone_what_is_not_wanted(workspace: Workspace) -> None:
    run, folder = begin(workspace)
    station = Station(workspace, "here")
    now = time.time()
    other = Attempt(
        id="aa",
        shard="0001-00000-20",
        worker="other",
        state="running",
        started=now,
        updated=now + 60,
    )
    folder.write(other, "attempts/0001-00000-20.aa")
    workspace.settings.fleet.lost_seconds = 300
    assert "other is at it" in station.take(task(run))
    # The coordinator says that it is dead.
    assert "done, 20 generated" in station.take(task(run, dead=["aa"]))
    assert "no run nothing" in station.take(task(run, run="nothing"))
    folder.write(Cancel(by="me", at=0.0), "cancel")
    assert "was cancelled" in station.take(task(run, shard="0001-00001-1"))
    folder.write(End(state="finished", at=0.0), "end")
    assert "has ended" in station.take(task(run, shard="0001-00001-1"))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"format": 2, "shape": "round"}, "this worker reads task format 1, the task has 2"),
        ({"format": None}, "task format 1, the task has None"),
        ({"dead": "aa"}, "the task can't be read"),
        ({"colour": "blue"}, "the task can't be read"),
    ],
)
def test_a_task_that_is_not_understood_is_refused_where_the_coordinator_looks(
    workspace: Workspace, more: dict[str, Any], reason: str
) -> None:
    run, folder = begin(workspace)
    assert reason in Station(workspace, "here").take(task(run, **more))
    (attempt,) = folder.attempts_of("0001-00000-20")
    assert attempt.state == "declined"
    assert reason in attempt.reason
    (trouble,) = overview(workspace.store, "item", 5).troubles  # type: ignore[union-attr]
    assert reason in trouble.reason


def test_a_task_can_t_lead_out_of_the_run(workspace: Workspace) -> None:
    run, _ = begin(workspace)
    for path in ("../..", "../../snapshots"):
        for format_ in (1, 2):
            said = Station(workspace, "here").take(task(run, format=format_, run=path))
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
    engines = Engines(other)
    held = engines.get(run)
    assert fingerprint(held.fingerprint) == run.fingerprint_hash
    assert engines.get(run) is held
    unknown = run.model_copy(
        update={"fingerprint": {**run.fingerprint, "words": 3}, "fingerprint_hash": "other"}
    )
    with pytest.raises(GeneratorError, match="words is 10 here and 3 there"):
        engines.get(unknown)


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
        assert "done, 20 generated" in Station(worker, "here").take(task(run))
        assert not make_plan(make_job(coordinator, RebuildRequest("item"))).missing
        other = run.model_copy(update={"fingerprint": {**run.fingerprint, "model": "another"}})
        with pytest.raises(
            GeneratorError, match="the rebuild: model is 'fake' here and 'another' there.$"
        ):
            Engines(worker).get(other)


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
        told.extend(folder.attempts_of("0001-00000-20"))
        released.set()

    Station(workspace, "here", abandon=abandon).take(task(run))
    ((attempt),) = told
    assert (attempt.state, attempt.items) == ("failed", 0)
    assert attempt.beat >= 3
    assert "no answer for 0.4 s while running (fleet.stuck_seconds)" in attempt.reason


def test_a_worker_that_beats_and_brings_nothing_is_passed_over(store: Store) -> None:
    folder = RunFolder(store, "item", "r")
    ledger = Ledger(folder, lost_seconds=0.2, stuck_seconds=0.3)
    shard = Shard("0001-00000-4", [0, 1, 2, 3])
    ledger.add(shard)
    attempt = Attempt(
        id="aa", shard=shard.name, worker="w", state="running", started=0, updated=0, entities=4
    )
    ended, deadline = [], time.monotonic() + 30
    while not ended and time.monotonic() < deadline:
        attempt = attempt.model_copy(update={"beat": attempt.beat + 1})
        folder.write(attempt, f"attempts/{shard.name}.aa")
        ended = ledger.ends()
        time.sleep(0.02)
    assert (ended[0].outcome, ended[0].counts, shard.dead) == ("stuck", True, ["aa"])
    assert "lives, but brought no answer" in ended[0].why
    assert shard.living is None


def test_an_engine_that_can_t_be_changed_in_its_process_ends_the_worker(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.fleet.engines.ONE_PER_PROCESS", {"scripted"})
    run, folder = begin(workspace)
    station = Station(workspace, "here")
    assert "done" in station.take(task(run))
    other = run.model_copy(update={"id": new_run_id(), "fingerprint_hash": "other"})
    second = RunFolder(workspace.store, "item", other.id)
    second.write(other, "run")
    write_shard(second, "0001-00000-20", read_shard(folder, "0001-00000-20") or [])
    assert "starts anew" in station.take(task(other))
    assert station.changing_over
    (attempt,) = second.attempts_of("0001-00000-20")
    assert attempt.state == "stopped"


# Coordinator and worker together


@pytest.fixture
def alone(workspace: Workspace) -> Iterator[Any]:
    with coordinate(workspace, "item", None, lambda _: None) as session:
        yield session


def coordinator(
    workspace: Workspace, session: Any, station: Station, said: list[str]
) -> Coordinator:
    job = make_job(workspace, RebuildRequest("item"))
    plan = make_plan(job)
    folder, run = session._run(job, plan, open_run(workspace.store, "item"))
    broker: Any = Straight(station)
    parts = Parts(
        job,
        plan,
        folder,
        run,
        session._lease,
        broker,
        workspace.settings.fleet,
        said.append,
        lambda _: None,
    )
    return Coordinator(parts)


def test_a_service_that_is_away_stops_the_rebuild_and_the_next_one_goes_on(
    workspace: Workspace, alone: Any
) -> None:
    workspace.settings.fleet.setbacks = 2
    scripted = workspace.settings.generator.scripted
    scripted.away_after = 11
    with pytest.raises(
        ServiceError, match="The last 2 attempts failed.*went away after 11 answers"
    ):
        coordinator(workspace, alone, Station(workspace, "one"), []).work()
    scripted.away_after = None
    resumed = coordinator(workspace, alone, Station(workspace, "two"), [])
    resumed.work()
    assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing
    found = overview(workspace.store, "item", 5)
    assert found is not None
    assert (found.answered, found.waiting, found.running) == (20, 0, 0)
    assert any("went away" in trouble.reason for trouble in found.troubles)


def test_answers_that_are_not_what_the_worker_said_are_asked_for_again(
    workspace: Workspace, alone: Any
) -> None:
    class Spoiling(Station):
        spoiled = 0

        def take(self, task: Any) -> str:
            said = super().take(task)
            if self.spoiled < 2:
                self.spoiled += 1
                for path in sorted((Path(workspace.store.url) / "cache").rglob("*.parquet"))[:1]:
                    path.unlink()
            return said

    station = Spoiling(workspace, "one")
    coordinator(workspace, alone, station, []).work()
    assert station.spoiled == 2
    assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("folder", ["shards", "done", "attempts"])
def test_damaged_records_and_shards_are_written_again(
    workspace: Workspace, alone: Any, folder: str, how: str
) -> None:
    class Spoiling(Station):
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

    station = Spoiling(workspace, "one")
    coordinator(workspace, alone, station, []).work()
    assert station.spoiled == 2
    assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing


@pytest.mark.parametrize("how", HARMS)
def test_whatever_is_damaged_of_an_earlier_run_it_can_be_looked_at_and_followed(
    workspace: Workspace, alone: Any, how: str
) -> None:
    for number in range(8):
        run, folder = begin(workspace)
        Station(workspace, "here").take(task(run, shard="0001-00000-20"))
        folder.write(
            GivenUp(shard="0001-00001-1", why="it fell", set_aside={"x": "it fell"}),
            "given_up/0001-00001-1",
        )
        folder.write(End(state="finished", at=0.0), "end")
        draw = random.Random(f"{how} {number}")
        damage(
            draw.choice(list(files_below(Path(workspace.store.url) / "fleet/item/runs" / run.id))),
            how,
            draw,
        )
        overview(workspace.store, "item", 1.0)
        shutil.rmtree(Path(workspace.store.url) / "cache", ignore_errors=True)
        coordinator(workspace, alone, Station(workspace, "one"), []).work()
        assert not make_plan(make_job(workspace, RebuildRequest("item"))).missing
        shutil.rmtree(Path(workspace.store.url) / "cache")


def test_failures_for_the_time_being_are_passed_on_and_tried_again_later(
    workspace: Workspace, alone: Any
) -> None:
    workspace.settings.generator.scripted.fail_every = 5
    working = coordinator(workspace, alone, Station(workspace, "one"), [])
    working.work()
    assert working.passing
    assert {failure.reason for failure in working.passing.values()} == {"told to fail"}
    missing = make_plan(make_job(workspace, RebuildRequest("item"))).missing
    assert len(missing) == len(working.passing)
    found = overview(workspace.store, "item", 5)
    assert found is not None
    assert found.set_aside.keys() == working.passing.keys()


def test_an_update_on_workers_equals_a_local_one(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what changed reaches the workers."""
    workspace.settings.redis.url = "redis://127.0.0.1:1/0"
    straight: Any = Straight(Station(workspace, "here"))
    monkeypatch.setattr("indexers.fleet.session.Broker", lambda *_: straight)
    first = run_rebuild(
        workspace, RebuildRequest("item"), no_bar, lambda _: None
    ).rebuilt.snapshot.id
    changes = tmp_path / "changes.jsonl"
    changes.write_text(
        '{"id": "i1", "title": "another", "text": "thing"}\n{"id": "i2", "deleted": true}\n'
    )
    wishes = UpdateRequest("item", changed=changes, parent=first, publish=False)
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
    straight: Any = Straight(Station(shared, "here"))
    monkeypatch.setattr("indexers.fleet.session.Broker", lambda *_: straight)
    there = run_rebuild(shared, RebuildRequest("item", workers="celery"), no_bar, lambda _: None)
    here = run_rebuild(workspace, RebuildRequest("item"), no_bar, lambda _: None)
    assert there.rebuilt.snapshot.id == here.rebuilt.snapshot.id
    assert there.published
    assert str(there.report).startswith(f"{s3}/shop/fleet/item/runs/")
    assert (
        shared.store.read_json(str(there.report).removeprefix(f"{s3}/shop/"))["outcome"]
        == "finished"
    )
