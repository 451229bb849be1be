"""Rebuilds on real workers by way of a real Valkey: whatever dies, the snapshot is that of an
undisturbed local rebuild.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from cogr.errors import LockedError, ServiceError
from cogr.settings.indexing import RedisSettings
from indexers.generators import Failure
from indexers.lease import latest_lease, lease_to_rebuild
from indexers.rebuild.fleet.broker import server_version
from tests.indexers.faulty import faulty
from tests.indexers.rebuild.fleet.fleet_worlds import (
    LAST_DEATHS,
    MIN_SHARD,
    Fleet,
    attempts_in,
    ended,
    fleet_in,
    run_in,
)
from tests.indexers.telemetry.test_telemetry import scraped
from tests.shops import rebuild_here

pytestmark = pytest.mark.slow


@pytest.fixture
def fleet(tmp_path: Path, valkey: RedisSettings) -> Iterator[Fleet]:
    with fleet_in(tmp_path, valkey, settings={"delay": 0.01}) as fleet:
        yield fleet


@pytest.mark.drill
def test_a_failover_of_the_broker_is_waited_for(tmp_path: Path, own_valkey: RedisSettings) -> None:
    client: Any = Redis.from_url(str(own_valkey.url))
    with fleet_in(tmp_path, own_valkey, settings={"delay": 0.02}) as fleet:
        worker, rebuild = fleet.worker(), fleet.rebuild()
        fleet.wait_until(lambda run: run.answered)
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            time.sleep(8)
            assert worker.poll() is None, fleet.log_of(worker)
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")
        assert fleet.outcome(rebuild)["snapshot"] == fleet.calm()
        assert ended(worker, signal.SIGTERM) == 0
        said = fleet.log_of(worker)
        assert said.count("The broker rejects writes") <= 2
        assert "RestartFreqExceeded" not in said


def test_a_user_without_dangerous_commands_does_all_and_logs_and_metrics_tell_of_it(
    tmp_path: Path, own_valkey: RedisSettings
) -> None:
    client: Any = Redis.from_url(str(own_valkey.url))
    settings = {"log.format": "json", "metrics.port": 0, "accidents": {"i7": "error"}}
    with fleet_in(tmp_path, own_valkey, 60, {**settings, LAST_DEATHS: 2}) as fleet:
        channel = f"&{fleet.prefix}:/0.celery.pidbox"
        may = (f"~{fleet.prefix}:*", channel, "+@all", "-@dangerous")
        client.execute_command("ACL", "SETUSER", "shop", "reset", "on", ">pw-of-shop", *may)
        url = str(own_valkey.url).replace("redis://", "redis://shop:pw-of-shop@")
        fleet.redis = RedisSettings(url=url)
        assert server_version(fleet.redis).startswith("version not known")
        worker = fleet.worker()
        assert fleet.outcome(fleet.rebuild())["failures"] == 1
        lines = [
            json.loads(line)
            for process in fleet.processes
            for line in fleet.log_of(process).splitlines()
        ]
        told = (re.search(r"Metrics: .*:(\d+)/", line["message"]) for line in lines)
        seen = scraped(int(next(found[1] for found in told if found)))
        assert ended(worker, signal.SIGTERM) == 0
    with pytest.raises(ServiceError, match="asked"):
        server_version(RedisSettings(url=url.replace("pw-of-shop", "another-one")))
    assert server_version(own_valkey)[0].isdigit()
    # The worker's own metrics.
    assert seen['cogr_answers_total{outcome="completion",side="item"}'] == 59
    assert seen['cogr_worker_shards_total{outcome="failed",side="item"}'] >= 2
    assert seen['cogr_generated_tokens_total{side="item"}'] > 0
    # Logs: every line is JSON and says which run and shard; the text of an unexpected error is left
    # out.
    (failed, *_) = [line for line in lines if line.get("error")]
    assert {"run", "shard", "worker", "side"} <= failed.keys()
    assert not any("asked for" in line["message"] for line in lines)


def test_two_workers_write_the_snapshot_of_a_local_rebuild(fleet: Fleet) -> None:
    workers = [fleet.worker(), fleet.worker()]
    outcome = fleet.outcome(fleet.rebuild())
    assert outcome["snapshot"] == fleet.calm()
    assert (outcome["generated"], outcome["published"]) == (240, True)
    run, attempts = run_in(fleet.store), attempts_in(fleet.store)
    assert (run.state, run.answered) == ("finished", 240)
    assert {attempt.state for attempt in attempts} == {"done"}
    assert len({attempt.worker for attempt in attempts}) == 2
    assert [ended(worker, signal.SIGTERM) for worker in workers] == [0, 0]
    # Nothing is missing: no worker and no broker is needed, and none is asked.
    again = rebuild_here(fleet.workspace("redis://127.0.0.1:1/0"), workers="celery")
    assert (again.snapshot.id, again.generated) == (outcome["snapshot"], 0)


@pytest.mark.drill
def test_a_store_in_s3_where_worker_and_coordinator_are_killed(
    tmp_path: Path, valkey: RedisSettings, s3: str
) -> None:
    with fleet_in(tmp_path, valkey, 60, {"delay": 0.05, "store": f"{s3}/shop"}) as fleet:
        worker = fleet.worker()
        coordinator = fleet.rebuild(**{MIN_SHARD: 40})
        fleet.wait_until(lambda run: run.answered > 8)
        for process in (worker, coordinator):
            ended(process, signal.SIGKILL)
        fleet.worker()
        # No lock of this host tells that the holder is dead: the lease has to run out.
        while (
            lease := latest_lease(fleet.store, lease_to_rebuild("item"))
        ) is not None and time.time() - lease.renewed < lease.seconds:
            time.sleep(0.1)
        outcome = fleet.outcome(fleet.rebuild())
        assert outcome["snapshot"] == fleet.calm()
        assert not (tmp_path / ".cogr").exists()


@pytest.mark.drill
def test_entities_that_take_workers_down_are_set_aside(
    tmp_path: Path, valkey: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    accidents = {"i7": "kill", "i13": "error"}
    settings = {"accidents": accidents, LAST_DEATHS: 2, MIN_SHARD: 8}
    with fleet_in(tmp_path, valkey, 40, settings) as fleet:
        workers = [fleet.worker()]
        coordinator = fleet.rebuild()
        while coordinator.poll() is None:
            # What an orchestrator does: a worker that died is started again.
            if workers[-1].poll() is not None:
                workers.append(fleet.worker())
            time.sleep(0.05)
        outcome = fleet.outcome(coordinator)
        assert outcome["failures"] == 2
        lost = {id_: Failure(id_, "as it was") for id_ in accidents}
        monkeypatch.setattr("indexers.generators.extractive.Scripted", faulty(answers=lost))
        assert outcome["snapshot"] == fleet.calm()
        # One death of the whole shard, two of the entity alone.
        assert [worker.poll() for worker in workers[:-1]] == [-signal.SIGKILL] * 3
        told = run_in(fleet.store).set_aside
        assert "died while running" in told["i7"]
        assert "ValueError: an accident that was asked for" in told["i13"]


def test_two_coordinators_and_ctrl_c(fleet: Fleet) -> None:
    fleet.worker(delay=0.1)
    first = fleet.rebuild()
    fleet.wait_until(lambda run: run.answered)
    with pytest.raises(LockedError, match=f"process {first.pid} on"):
        rebuild_here(fleet.workspace(str(fleet.redis.url)), workers="celery")
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=120)
    assert first.returncode == 130
    assert fleet.wait_until(lambda run: run.state == "stopped").answered < 240
    fleet.worker()
    outcome = fleet.outcome(fleet.rebuild())
    assert outcome["generated"] < 240
    assert outcome["snapshot"] == fleet.calm()


@pytest.mark.drill
def test_a_fault_ends_the_worker_with_a_status(fleet: Fleet) -> None:
    program = (
        "from celery.worker.consumer import Consumer; from ops.cli import main\n"
        "Consumer.start = lambda self: 1 / 0\n"
        "main()"
    )
    redis = f"redis.url={fleet.redis.url}"
    command = ["worker", "-c", str(fleet.folder / "cogr.toml"), "--set", redis]
    worker = fleet.start([sys.executable, "-c", program, *command])
    assert worker.wait(60) == 1
    assert "The worker ends by a fault" in fleet.log_of(worker)
    assert "ZeroDivisionError" in fleet.log_of(worker)
