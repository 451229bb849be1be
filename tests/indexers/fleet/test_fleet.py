"""Rebuilds on real workers by way of a real Valkey: whatever dies, the snapshot is that of an
undisturbed local rebuild.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cogr.settings import GeneratorSettings
from cogr.settings.fleet import RedisSettings
from indexers.fleet.broker import Broker, make_app, queue_of
from indexers.fleet.run_files import Attempt, RunFolder, latest_run, runs_of
from indexers.lease import read_lease
from tests.indexers.fleet.fleet_worlds import Fleet, fleet_in, kill
from tests.indexers.telemetry.otlp_collector import Collector, attributes
from tests.indexers.telemetry.test_telemetry import scraped

pytestmark = [pytest.mark.slow, pytest.mark.fault]


@pytest.fixture
def fleet(tmp_path: Path, valkey: RedisSettings) -> Iterator[Fleet]:
    with fleet_in(tmp_path, valkey, delay="0.01") as fleet:
        yield fleet


def attempts(fleet: Fleet) -> list[Attempt]:
    """Every attempt of all runs."""
    runs: list[RunFolder] = runs_of(fleet.store, "item")
    return [attempt for folder in runs for attempt in folder.read_all(Attempt, "attempts")]


def test_two_workers_write_the_snapshot_of_a_local_rebuild(fleet: Fleet) -> None:
    workers = [fleet.worker(), fleet.worker()]
    outcome = fleet.outcome(fleet.rebuild())
    assert outcome["snapshot"] == fleet.calm()
    assert (outcome["generated"], outcome["published"]) == (240, True)
    run = fleet.status()
    assert run is not None
    assert (run.state, run.answered, run.running, run.failed) == ("finished", 240, 0, 0)
    assert {attempt.state for attempt in attempts(fleet)} == {"done"}
    assert len({attempt.worker for attempt in attempts(fleet)}) == 2
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0
    # Nothing is missing: no worker and no broker is needed, and none is asked.
    again = fleet.outcome(fleet.rebuild(redis__url="redis://127.0.0.1:1/0"))
    assert (again["snapshot"], again["generated"]) == (outcome["snapshot"], 0)


def test_what_coordinator_and_worker_tell_in_metrics_traces_and_logs(
    tmp_path: Path, valkey: RedisSettings
) -> None:
    told = {
        "log__format": "json",
        "metrics__port": "0",
    }
    with (
        fleet_in(
            tmp_path, valkey, items=60, accidents={"i7": "error"}, fleet__attempts="2", **told
        ) as fleet,
        Collector() as collector,
    ):
        fleet.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        worker = fleet.worker()
        outcome = fleet.outcome(fleet.rebuild())
        lines = [
            json.loads(line)
            for process in fleet.processes
            for line in fleet.log_of(process).splitlines()
        ]
        port = int(
            next(line["message"] for line in lines if "Metrics: " in line["message"])
            .rpartition(":")[2]
            .split("/")[0]
        )
        seen = scraped(port)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0
    # One trace: a worker's spans hang below the shards of the coordinator's.
    generated = collector.named("shard.generate")
    assert {collector.parent_of(span).name for span in generated} == {"shard"}
    assert {collector.parent_of(span).name for span in collector.named("shard")} == {"generate"}
    assert len({span.trace_id for span in collector.spans}) == 1
    assert set(collector.services) == {"cogr-index", "cogr-worker"}
    assert (
        sum(
            attributes(span)["cogr.items"]
            for span in generated
            if attributes(span)["cogr.outcome"] == "done"
        )
        <= 59
    )
    # The worker's own metrics.
    assert seen['cogr_answers_total{outcome="completion",side="item"}'] == 59
    assert seen['cogr_worker_shards_total{outcome="failed",side="item"}'] >= 2
    assert seen['cogr_generated_tokens_total{side="item"}'] > 0
    # Logs: every line is JSON and says which run and shard; the text of an unexpected error is left
    # out.
    (failed, *_) = [line for line in lines if line.get("error")]
    assert {"run", "shard", "worker", "side"} <= failed.keys()
    assert not any("asked for" in line["message"] for line in lines)
    # The report names the fleet.
    report = json.loads(Path(outcome["report"]).read_text())
    assert outcome["report"].endswith(f"fleet/item/runs/{report['run']}/report.json")
    assert report["fleet"]["items"] <= 59
    assert (report["fleet"]["set_aside"], len(report["fleet"]["workers"])) == (1, 1)


def test_a_worker_that_is_killed_in_mid_shard(fleet: Fleet) -> None:
    first = fleet.worker()
    coordinator = fleet.rebuild(fleet__first_items="120")
    fleet.wait_until(lambda run: run.held and run.held[0].items > 20)
    kill(first)
    second = fleet.worker()
    outcome = fleet.outcome(coordinator)
    assert outcome["snapshot"] == fleet.calm()
    dead = [attempt for attempt in attempts(fleet) if not attempt.final]
    assert [attempt.state for attempt in dead] == ["running"]
    generated = sum(attempt.items for attempt in attempts(fleet) if attempt.final)
    # What the dead worker had flushed is not generated again, and nothing else was.
    assert 120 <= generated <= 240 - 8
    # A worker that is asked to end does so between two answers.
    second.send_signal(signal.SIGINT)
    assert second.wait(120) == 0


@pytest.mark.drill
def test_a_store_in_s3_where_worker_and_coordinator_are_killed(
    tmp_path: Path, valkey: RedisSettings, s3: str
) -> None:
    with fleet_in(tmp_path, valkey, items=60, delay="0.05", store=f"{s3}/shop") as fleet:
        worker = fleet.worker()
        coordinator = fleet.rebuild(fleet__first_items="40")
        fleet.wait_until(lambda run: run.held and run.held[0].items > 8)
        kill(worker)
        kill(coordinator)
        fleet.worker()
        # No lock of this host tells that the holder is dead: the lease has to run out.
        while (
            lease := read_lease(fleet.store, "item")
        ) is not None and time.time() - lease.renewed < lease.seconds:
            time.sleep(0.1)
        outcome = fleet.outcome(fleet.rebuild())
        assert outcome["snapshot"] == fleet.calm()
        assert outcome["report"].startswith(f"{s3}/shop/fleet/item/runs/")
        assert not (tmp_path / ".cogr").exists()


def test_a_coordinator_that_is_killed_and_a_broker_that_forgets_everything(fleet: Fleet) -> None:
    fleet.worker()
    first = fleet.rebuild()
    fleet.wait_until(lambda run: run.done >= 1 and run.held)
    kill(first)
    run = fleet.status()
    assert run is not None
    second = fleet.rebuild()
    # What was answered is in the cache; workers leave the shards of the run that is over.
    resumed = fleet.wait_until(lambda now: now.run != run.run and now.done >= 3 and now.held)
    assert resumed.to_generate < run.to_generate
    app = make_app(fleet.redis)
    with app.connection_for_write() as connection:
        connection.default_channel.client.flushall()
    outcome = fleet.outcome(second)
    assert outcome["snapshot"] == fleet.calm()
    assert sum(attempt.items for attempt in attempts(fleet)) <= 240 + run.held[0].entities


def test_clocks_that_jump_cost_nothing(fleet: Fleet) -> None:
    # A worker's own delay counts: twelve seconds for two of them, however fast they start. A busy
    # machine may hold a heartbeat back for seconds, which is no jump.
    patient = {"fleet__lost_seconds": "30"}
    with fleet.clock_that_jumps(-7200, after=6):
        fleet.worker(delay="0.1", **patient)
    with fleet.clock_that_jumps(+7200, after=6):
        fleet.worker(delay="0.1", **patient)
    with fleet.clock_that_jumps(+3600, after=8):
        coordinator = fleet.rebuild(**patient)
    outcome = fleet.outcome(coordinator)
    assert outcome["snapshot"] == fleet.calm()
    # Who is at a shard keeps it: silence is measured by counting heartbeats, not by comparing
    # clocks.
    assert [attempt.state for attempt in attempts(fleet) if attempt.state != "done"] == []
    assert sum(attempt.items for attempt in attempts(fleet)) == 240
    # The jumps were seen: what was written bears times of more than one clock.
    times = sorted(attempt.updated for attempt in attempts(fleet))
    assert times[-1] - times[0] > 3600


@pytest.mark.drill
def test_a_message_that_comes_back_while_its_shard_is_slow(fleet: Fleet) -> None:
    first = fleet.worker(fleet__visibility_seconds="2", delay="0.15")
    coordinator = fleet.rebuild(fleet__first_items="240")
    fleet.wait_until(lambda run: run.held)
    # A worker looks for messages to deliver again soon after it started, then seldom; one at work
    # does not look at all.
    time.sleep(4)
    second = fleet.worker(fleet__visibility_seconds="2")
    outcome = fleet.outcome(coordinator)
    assert outcome["snapshot"] == fleet.calm()
    assert "is left alone" in fleet.log_of(second)
    assert {attempt.worker.rpartition("-")[2] for attempt in attempts(fleet)} == {str(first.pid)}
    assert sum(attempt.items for attempt in attempts(fleet)) == 240


def test_entities_that_take_workers_down_are_set_aside(
    tmp_path: Path, valkey: RedisSettings
) -> None:
    accidents = {"i7": "kill", "i13": "error"}
    settings = {
        "fleet__attempts": "2",
        "fleet__first_items": "8",
    }
    with fleet_in(tmp_path, valkey, items=40, accidents=accidents, **settings) as fleet:
        script = tmp_path / "script.jsonl"
        script.write_text(
            "".join(json.dumps({"id": i, "failure": "as it was"}) + "\n" for i in ("i7", "i13"))
        )
        workers = [fleet.worker()]
        coordinator = fleet.rebuild()
        while coordinator.poll() is None:
            # What an orchestrator does: a worker that died is started again.
            if workers[-1].poll() is not None:
                workers.append(fleet.worker())
            time.sleep(0.05)
        outcome = fleet.outcome(coordinator)
        assert outcome["failures"] == 2
        calm = fleet.calm(generator__scripted__script=str(script))
        assert outcome["snapshot"] == calm
        # Two deaths of the whole shard, two of the entity alone.
        assert [worker.poll() for worker in workers[:-1]] == [-signal.SIGKILL] * 4
        ended = fleet.run("status", "--side", "item", "--json")
        (run,) = json.loads(ended.stdout)["runs"]
        assert "fell silent while running" in run["set_aside"]["i7"]
        assert "ValueError: an accident that was asked for" in run["set_aside"]["i13"]


def test_two_coordinators_and_cancel(fleet: Fleet) -> None:
    fleet.worker(delay="0.3")
    first = fleet.rebuild()
    fleet.wait_until(lambda run: run.held)
    second = fleet.run("rebuild", "--side", "item", "--workers", "celery")
    assert second.returncode == 2
    assert f"process {first.pid} on" in second.stderr
    cancelled = fleet.run("cancel", "--side", "item", "--json")
    assert cancelled.returncode == 0, cancelled.stderr
    first.communicate(timeout=120)
    assert first.returncode == 1
    assert "was cancelled by" in fleet.log_of(first)
    run = fleet.status()
    assert run is not None
    assert (run.state, run.running, run.waiting) == ("cancelled", 0, 0)
    assert run.answered < 240
    assert fleet.run("cancel", "--side", "item").returncode == 2
    fleet.worker()
    outcome = fleet.outcome(fleet.rebuild())
    assert outcome["generated"] < 240
    assert outcome["snapshot"] == fleet.calm()


def test_a_task_of_another_format_is_refused_with_the_reason(fleet: Fleet) -> None:
    worker = fleet.worker(delay="0.02")
    coordinator = fleet.rebuild(fleet__first_items="1000")
    run = fleet.wait_until(lambda run: run.held)
    opened = latest_run(fleet.store, "item")
    assert opened is not None
    queue = queue_of("item", GeneratorSettings.model_validate(opened[1].generator))
    redis = fleet.redis.model_copy(update={"prefix": fleet.prefix})
    message = {
        "format": 99,
        "side": "item",
        "run": run.run,
        "shard": run.held[0].shard,
        "attempt": 1,
        "colour": "blue",
    }
    Broker(redis, queue).send(message)
    outcome = fleet.outcome(coordinator)
    assert outcome["snapshot"] == fleet.calm()
    deadline = time.monotonic() + 60
    while "reads task format 2, the task has 99" not in fleet.log_of(worker):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert worker.poll() is None
