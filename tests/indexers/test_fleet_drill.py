"""A long drill (`make drill`): hundreds of deaths spread over coordinator, workers and broker, and a table of what was lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cogr.fleet_settings import RedisSettings
from ops.servers import valkey
from tests.indexers.fleet_worlds import Fleet, fleet_in, kill

KILLS = int(os.environ.get("DRILL_KILLS", "300"))
WORKERS = 3

pytestmark = [pytest.mark.drill, pytest.mark.timeout(6 * 3600)]


class Broker:
    """A Valkey of the drill's own, on a port that stays the same over its deaths."""

    def __init__(self) -> None:
        self.wanted = valkey.Wanted(name=f"tests-{os.getpid()}-drill", port=0, bound_to_caller=True)
        self.state = valkey.start(self.wanted).state
        port = int(str(self.state.url).rsplit(":", 1)[1].split("/")[0])
        self.wanted = valkey.Wanted(name=self.wanted.name, port=port, bound_to_caller=True)

    @property
    def redis(self) -> RedisSettings:
        return valkey.connection(self.state)

    def die(self) -> None:
        os.kill(self.state.pid, signal.SIGKILL)
        while self.state.running:
            time.sleep(0.01)
        self.state = valkey.start(self.wanted).state

    def forget(self) -> None:
        from cogr.fleet_settings import FleetSettings
        from indexers.fleet.broker import make_app

        with make_app(self.redis, FleetSettings()).connection_for_write() as connection:
            connection.default_channel.client.flushall()


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    valkey.stop(broker.state, remove=True)


class Drill:
    """A fleet under fire: what dies is started again, as an orchestrator does."""

    def __init__(self, fleet: Fleet, broker: Broker, draw: random.Random) -> None:
        self.fleet, self.broker, self.draw = fleet, broker, draw
        self.workers = [fleet.worker() for _ in range(WORKERS)]
        self.coordinator = fleet.rebuild()
        self.done: Counter[str] = Counter()
        self.snapshots: list[str] = []

    def harm(self) -> None:
        what = self.draw.choices(["worker", "coordinator", "broker", "flushall", "term"], [50, 25, 10, 10, 5])[0]
        if what in ("worker", "term"):
            victim = self.draw.choice(self.workers)
            victim.send_signal(signal.SIGTERM) if what == "term" else kill(victim)
        elif what == "coordinator":
            kill(self.coordinator)
        elif what == "broker":
            self.broker.die()
        else:
            self.broker.forget()
        self.done[what] += 1

    def tend(self) -> None:
        """Start what is gone; begin anew, from half of the cache, when a rebuild has come to its end."""
        for i, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.workers[i] = self.fleet.worker()
        if self.coordinator.poll() is None:
            return
        if self.coordinator.returncode == 0:
            self.snapshots.append(self.fleet.outcome(self.coordinator)["snapshot"])
            self.lose_half()
        elif self.coordinator.returncode > 0:
            raise AssertionError(self.fleet.log_of(self.coordinator))
        self.coordinator = self.fleet.rebuild()

    def lose_half(self) -> None:
        for n, segment in enumerate(sorted((self.fleet.folder / ".cogr/cache").rglob("*.parquet"))):
            if n % 2 or self.draw.random() < 0.2:
                segment.unlink()

    def finish(self) -> str:
        while self.coordinator.poll() is None or self.coordinator.returncode < 0:
            self.tend()
            time.sleep(0.2)
        return str(self.fleet.outcome(self.coordinator)["snapshot"])


def test_hundreds_of_deaths_leave_the_snapshot_of_an_undisturbed_rebuild(tmp_path: Path, broker: Broker) -> None:
    draw = random.Random(0)
    with fleet_in(tmp_path, broker.redis, items=2000, generator__scripted__delay="0.01") as fleet:
        calm = fleet.calm(generator__scripted__delay="0")
        drill = Drill(fleet, broker, draw)
        while sum(drill.done.values()) < KILLS:
            time.sleep(draw.uniform(0.2, 6.0))
            drill.tend()
            drill.harm()
        drill.snapshots.append(drill.finish())
        files = [tmp_path / folder / "snapshots" / calm / "keywords.parquet" for folder in ("calm", ".cogr")]
        print(f"\n{dict(drill.done)}; rebuilds that came to their end: {len(drill.snapshots)}")
        assert set(drill.snapshots) == {calm}
        assert files[0].read_bytes() == files[1].read_bytes()
        assert [path.name for path in (tmp_path / ".cogr" / "snapshots").iterdir()] == [calm]
        run = fleet.status()
        assert run is not None
        assert (run.state, dict(run.set_aside)) == ("finished", {})
