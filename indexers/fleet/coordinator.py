"""The coordinator of a rebuild on workers. It holds the side's lease and works in rounds: it cuts
what the cache lacks into shards, sends them, and waits until each is over or no live worker is at
one; then it cuts what is still missing anew, and freezes the snapshot when nothing is. All state is
in files of the store, so the broker may lose its data.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyroaring import BitMap

from cogr.errors import CheckFailedError, ServiceError, StorageError
from cogr.records import Advance, Say, Side
from indexers.fleet.broker import Broker, Message, queue_of
from indexers.fleet.run_files import (
    Attempt,
    Cancel,
    FleetRun,
    RunFolder,
    latest_run,
    new_run_id,
    public_settings,
    runs_of,
)
from indexers.generators import Failure
from indexers.lease import REBUILD_SECONDS, Lease, held_lease, lease_to_rebuild
from indexers.rebuild.assembly import Rebuilt, freeze
from indexers.rebuild.cache import GenerationCache, Missing
from indexers.rebuild.plan import Job, Plan
from indexers.rebuild.run import Executor
from indexers.telemetry import logs, prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace

log = logging.getLogger(__name__)

LEAST, MOST, SHARDS = 16, 4096, 64
"""Entities of a shard, at least and at most, and into how many shards a round is cut within these
bounds; later rounds have no least. A worker leaves what it can't do in time
(`indexers.fleet.worker.SHARD_SECONDS`) to the next round.
"""
POLL_SECONDS = 1.0
"""How often the coordinator looks at the cache."""
LOOK_SECONDS = 15.0
"""How often it asks which shards workers are at, once the queue is empty. When nobody is at one for
two looks, the round is over. It is also the pause after a round without an answer.
"""
PARTS = 8
"""After a round without an answer shards are smaller by this factor: many parts, so that few deaths
of workers find the entity that causes them.
"""
LAST_DEATHS = 3
"""Deaths before an entity alone in its shard is set aside, since a machine may also die by itself.
"""
SETBACKS = 10
"""Rounds in a row without an answer, after which the fleet counts as broken."""
PATIENCE_SECONDS = 600.0
"""How long to wait for a broker that can't be reached: longer than a restart takes."""
KEPT_RUNS = 5
"""Runs whose files are kept, for `cogr-index status` and later inspection."""
_REPORT_SECONDS = 60.0


@contextmanager
def coordinate(
    workspace: Workspace, side: Side, generator: str | None, say: Say, command: str = "rebuild"
) -> Iterator[FleetExecutor]:
    """Hold the side's lease as its coordinator, for the time of the block. Raises LockedError."""
    doing = f"{command} --side {side}"
    with held_lease(workspace.store, lease_to_rebuild(side), doing, REBUILD_SECONDS) as lease:
        yield FleetExecutor(lease, workspace, generator, say)


@dataclass
class FleetExecutor(Executor):
    """Generates on workers."""

    workspace: Workspace
    generator: str | None
    say: Say

    def run(self, job: Job, plan: Plan, advance: Advance) -> Rebuilt:
        """As `indexers.rebuild.run.generate_and_freeze`, by workers. With no answer missing, the
        broker is not used.

        Raises: as `Coordinator.work`.
        """
        started = time.monotonic()
        latest = latest_run(job.store, job.side)
        unfinished = latest is not None and latest[1].state == "running"
        if not (plan.missing or unfinished):
            return freeze(job, plan, {}, started)
        if latest and unfinished:
            # Its workers stop after their present answer.
            state = "cancelled" if latest[0].over else "superseded"
            latest[0].end(state=state, note="another rebuild began")
        settings = self.workspace.generator_settings(job.side, self.generator)
        run = FleetRun(
            id=new_run_id(),
            side=job.side,
            fingerprint=job.generator.fingerprint,
            generator=public_settings(settings),
            entities=len(plan.entities),
            to_generate=len(plan.missing),
        )
        folder = RunFolder(job.store, job.side, run.id)
        folder.write(run, "run")
        for old in runs_of(job.store, job.side)[:-KEPT_RUNS]:
            job.store.remove(old.path)
        with logs.bound(run=run.id):
            transient: dict[str, Failure] = {}
            if plan.missing:
                broker = Broker(self.workspace.settings.redis, queue_of(job.side, settings))
                parts = run, job, plan, folder, self.lease, broker, self.say, advance
                with stage("generate", job.side):
                    transient = Coordinator(*parts).work()
            rebuilt = freeze(job, plan, transient, started)
            self.lease.check()
            folder.end(state="finished", snapshot=rebuilt.snapshot.id, note="")
            return rebuilt


@dataclass
class Coordinator:
    """One rebuild from its plan to the last answer. It makes all decisions."""

    run: FleetRun
    job: Job
    plan: Plan
    folder: RunFolder
    lease: Lease
    broker: Broker
    say: Say
    advance: Advance

    def __post_init__(self) -> None:
        self._cache = GenerationCache(self.job.store, self.job.generator.fingerprint)
        self._looking = Missing(self._cache, self.plan.keys)
        self._missing = self.plan.missing
        self._transient: dict[str, str] = {}
        self._deaths = Counter[int]()
        self._round: dict[str, BitMap] = {}
        self._unsent: list[str] = []
        self._most, self._size = MOST, 0
        self._barren = self._idle = self._answered = 0
        self._reason = ""
        self._away: float | None = None
        self._began = self._grown = self._looked = self._said = time.monotonic()
        for gauge in (prometheus.QUEUE, prometheus.SETBACKS):
            gauge.labels(self.job.side).set(0)

    def work(self) -> dict[str, Failure]:
        """Returns the transient failures, by entity id, when all others have an answer. Raises
        CheckFailedError, LockedError, ServiceError and StorageError.
        """
        number = 0
        while todo := self._todo():
            self._open(number, todo)
            while self._under_way():
                time.sleep(POLL_SECONDS)
            aside = len(self.run.set_aside)
            self._close()
            barren = self._todo() == todo and len(self.run.set_aside) == aside
            self._barren = self._barren + 1 if barren else 0
            prometheus.SETBACKS.labels(self.job.side).set(self._barren)
            if barren:
                self._set_back()
            number += 1
        left = [self.plan.entities[i].id for i in self._missing]
        return {id_: Failure(id_, self._transient[id_], permanent=False) for id_ in left}

    def _todo(self) -> BitMap:
        self._missing = self._looking.look()
        if not self._transient:
            return self._missing
        ids = ((i, self.plan.entities[i].id) for i in self._missing)
        return BitMap(i for i, id_ in ids if id_ not in self._transient)

    def _open(self, number: int, todo: BitMap) -> None:
        usual = min(self._most, max(1 if number else LEAST, -(-len(todo) // SHARDS)))
        self._size = max(1, self._size // PARTS) if self._barren else usual
        self._round, self._idle, self._looked = {}, 0, time.monotonic()
        for part, start in enumerate(range(0, len(todo), self._size)):
            shard, positions = f"{number:03d}-{part:05d}", todo[start : start + self._size]
            keyed = [
                (self.plan.keys[i], self.job.request(self.plan.entities[i])) for i in positions
            ]
            self.folder.write_shard(shard, keyed)
            self._round[shard] = positions
        self._unsent = list(self._round)

    def _under_way(self) -> bool:
        self.lease.check()
        if (cancel := self.folder.read(Cancel, "cancel")) is not None:
            self._stop(cancel)
        shards = set(self.folder.names("shards"))
        self._missing = self._looking.look()
        self._report(len(shards))
        if not (self._missing and shards):
            return False
        try:
            self._send()
            self._look(shards)
            self._away = None
        except ServiceError as error:
            self._wait_for_broker(error)
        prometheus.BROKER_UP.labels(self.job.side).set(self._away is None)
        return self._idle < 2

    def _send(self) -> None:
        side, run = self.job.side, self.folder.run
        while self._unsent:
            message = Message(side=side, run=run, shard=self._unsent[0])
            self.broker.send(message)
            del self._unsent[0]

    def _look(self, shards: set[str]) -> None:
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        waiting = self.broker.waiting()
        prometheus.QUEUE.labels(self.job.side).set(waiting)
        busy = waiting or shards & self.broker.active(self.folder.run)
        self._idle = 0 if busy else self._idle + 1

    def _close(self) -> None:
        self._reason = ""
        shards = ((shard, self.folder.read(Attempt, f"attempts/{shard}")) for shard in self._round)
        attempts = {shard: one for shard, one in shards if one is not None}
        if any(one.state == "stopped" for one in attempts.values()):
            # A worker's time was over: what one manages in it is a better size.
            self._most = max(LEAST, *(one.items for one in attempts.values()))
        for shard, attempt in attempts.items():
            self._transient |= attempt.transient
            if attempt.state not in ("done", "stopped"):
                positions = self._round[shard]
                worker, why = attempt.worker, attempt.logged_reason or attempt.state
                log.warning("Shard %s: %s: %s", shard, worker, why)
                self._reason = attempt.why
                if attempt.state in ("running", "failed") and len(positions) == 1:
                    self._died(positions[0])
        for shard in self.folder.names("shards"):
            self.folder.write_shard(shard, ())

    def _died(self, position: int) -> None:
        self._deaths[position] += 1
        deaths, entity = self._deaths[position], self.plan.entities[position]
        if deaths < LAST_DEATHS or position not in self._missing:
            return
        why = f"took down {deaths} workers, the last time: {self._reason}"
        self._cache.add([(self.plan.keys[position], Failure(entity.id, why))])
        aside = {**self.run.set_aside, entity.id: why}
        self.run = self.run.model_copy(update={"set_aside": aside})
        self.folder.write(self.run, "run")

    def _set_back(self) -> None:
        if self._barren >= SETBACKS:
            if not self._reason:
                raise StorageError(
                    f"{len(self._missing)} answers that workers reported are not in "
                    f"{self.job.store.url}; the workers must have the same store."
                )
            raise ServiceError(
                f"The fleet gave no answer {self._barren} times in a row, the last time: "
                f"{self._reason}; see cogr-index status, repair the workers and run the same "
                "command again."
            )
        time.sleep(LOOK_SECONDS)

    def _wait_for_broker(self, error: ServiceError) -> None:
        now = time.monotonic()
        if self._away is None:
            self._away = now
            self.say(f"{error} Waiting for it; workers finish their shards.")
        if now - max(self._away, self._grown) > PATIENCE_SECONDS:
            raise error

    def _report(self, shards: int) -> None:
        now, answered = time.monotonic(), len(self.plan.missing) - len(self._missing)
        if answered > self._answered:
            self.advance(answered - self._answered)
            self._answered, self._grown, self._said = answered, now, now
        prometheus.SHARDS.labels(self.job.side).set(shards)
        prometheus.ANSWERED.labels(self.job.side).set(answered)
        silent = now - self._grown
        note = f"no answer for {silent:.0f} s" if silent > _REPORT_SECONDS else ""
        if note and now - self._said > _REPORT_SECONDS:
            self._said = now
            self.say(
                f"{note.capitalize()}: unless workers are loading their model, start some with "
                f"cogr-ops worker --side {self.job.side}; they need the same configuration and the "
                f"store {self.job.store.url}."
            )
        rate = round(answered / max(1.0, self._grown - self._began), 3)
        facts = {"answered": answered, "per_second": rate, "note": note}
        self.run = self.run.model_copy(update=facts)
        self.folder.write(self.run, "run")

    def _stop(self, cancel: Cancel) -> None:
        reason = f"cancelled by {cancel.by}"
        self.folder.end(state="cancelled", note=reason)
        raise CheckFailedError(
            f"The rebuild of {self.job.side}s was {reason}; what was generated is kept, and a new "
            "rebuild goes on from there."
        )
