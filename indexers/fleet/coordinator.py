"""The coordinator of a rebuild on workers. It holds the side's lease, cuts what the cache lacks
into shards, sends them, sends those again that no live worker is at, and freezes the snapshot when
no answer is missing. All state is in files of the store, so the broker may lose its data.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

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
    transient_of,
)
from indexers.generators import Failure, Request
from indexers.lease import REBUILD_SECONDS, Lease, held_lease, lease_to_rebuild
from indexers.rebuild.assembly import Rebuilt, freeze
from indexers.rebuild.cache import GenerationCache, Keys, Missing
from indexers.rebuild.plan import Job, Keyed, Plan
from indexers.rebuild.run import Executor
from indexers.telemetry import logs, prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace

log = logging.getLogger(__name__)

LEAST, MOST, SHARDS = 16, 4096, 64
"""Entities of a shard, at least and at most, and into how many shards a rebuild is cut within
these bounds. A worker hands on what it can't do in time (`indexers.fleet.worker.SHARD_SECONDS`).
"""
POLL_SECONDS = 1.0
"""How often the coordinator looks at the cache."""
LOOK_SECONDS = 15.0
"""How often it asks which shards workers are at, once the queue is empty. A shard that nobody is at
for two looks is sent again.
"""
PARTS = 8
"""Parts of a shard during which a worker died: many, so that few deaths find the entity."""
LAST_DEATHS = 3
"""Deaths before an entity alone in its shard is set aside, since a machine may also die by itself.
"""
SETBACKS = 20
"""Times in a row that shards fail without an answer, after which the fleet counts as broken."""
PATIENCE_SECONDS = 600.0
"""How long to wait for a broker that can't be reached: longer than a restart takes."""
KEPT_RUNS = 5
"""Runs whose files are kept, for `cogr-index status` and later inspection."""
_ROUNDS = 3
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
    tries: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._cache = GenerationCache(self.job.store, self.job.generator.fingerprint)
        self._looking = Missing(self._cache, self.plan.keys)
        self._missing = self.plan.missing
        self._sent: set[str] = set()
        self._idle: set[str] = set()
        self._opened = self._answered = self._before = self._setbacks = 0
        self._away: float | None = None
        self._began = self._grown = self._looked = self._said = time.monotonic()
        for gauge in (prometheus.QUEUE, prometheus.SETBACKS):
            gauge.labels(self.job.side).set(0)

    def work(self) -> dict[str, Failure]:
        """Returns the transient failures, by entity id, when all others have an answer. Raises
        CheckFailedError, LockedError, ServiceError and StorageError.
        """
        self._open()
        rounds = 1
        while True:
            self.lease.check()
            if (cancel := self.folder.read(Cancel, "cancel")) is not None:
                self._stop(cancel)
            shards = set(self.folder.names("shards"))
            self._missing = self._looking.look()
            self._report(len(shards))
            if not self._missing:
                return {}
            if shards:
                self._deliver(shards)
                time.sleep(POLL_SECONDS)
                continue
            transient = self._transient()
            if not self._missing:
                return transient
            if (rounds := rounds + 1) > _ROUNDS:
                raise StorageError(
                    f"{len(self._missing)} answers that workers reported are not in "
                    f"{self.job.store.url}; the workers must have the same store."
                )
            self._open()

    def _transient(self) -> dict[str, Failure]:
        found = transient_of(self.folder.attempts())
        ids = {i: self.plan.entities[i].id for i in self._missing}
        self._missing = BitMap(i for i, id_ in ids.items() if id_ not in found)
        return {
            id_: Failure(id_, found[id_], permanent=False) for id_ in ids.values() if id_ in found
        }

    def _open(self) -> None:
        plan, count = self.plan, len(self._missing)
        size = min(MOST, max(LEAST, -(-count // SHARDS)))
        for start in range(0, count, size):
            positions = self._missing[start : start + size]
            keyed = [(plan.keys[i], self.job.request(plan.entities[i])) for i in positions]
            self.folder.write_shard(f"{self._opened:05d}", keyed)
            self._opened += 1

    def _deliver(self, shards: set[str]) -> None:
        reasons: list[str] = []
        try:
            for shard in sorted(shards - self._sent):
                self._send(shard)
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                reasons = self._recover(shards)
                self._looked = time.monotonic()
            self._away = None
        except ServiceError as error:
            self._wait_for_broker(error)
        prometheus.BROKER_UP.labels(self.job.side).set(self._away is None)
        if reasons:
            self._setback(reasons[-1])

    def _send(self, shard: str) -> None:
        side, run, number = self.job.side, self.folder.run, self.tries[shard] + 1
        message = Message(side=side, run=run, shard=shard, attempt=number)
        self.broker.send(message)
        self._sent.add(shard)
        self.tries[shard] += 1

    def _recover(self, shards: set[str]) -> list[str]:
        waiting = self.broker.waiting()
        prometheus.QUEUE.labels(self.job.side).set(waiting)
        if waiting:
            self._idle = set()
            return []
        idle = shards & self._sent - self.broker.active(self.folder.run)
        lost, self._idle = idle & self._idle, idle
        return [reason for shard in sorted(lost) if (reason := self._retry(shard))]

    def _retry(self, shard: str) -> str:
        numbers = range(1, self.tries[shard] + 1)
        records = (self.folder.read(Attempt, f"attempts/{shard}.{n}") for n in numbers)
        attempts = [one for one in records if one is not None]
        deaths = sum(one.state in ("running", "failed") for one in attempts)
        reason = attempts[-1].why if attempts and attempts[-1].state != "stopped" else ""
        if reason:
            last = attempts[-1]
            log.warning("Shard %s: %s: %s", shard, last.worker, last.logged_reason or last.state)
        left = self._unanswered(self.folder.read_shard(shard) or ())
        if deaths and len(left) > 1:
            self.folder.split_shard(shard, left, -(-len(left) // PARTS), "x")
        elif left and deaths >= LAST_DEATHS:
            self._set_aside(*left[0], f"took down {deaths} workers, the last time: {reason}")
            self.folder.write_shard(shard, ())
        else:
            # Without an answer missing, the shard is done; a damaged one is opened again as others.
            self.folder.write_shard(shard, left)
        self._sent.discard(shard)
        return reason

    def _set_aside(self, key: bytes, request: Request, why: str) -> None:
        self._cache.add([(key, Failure(request.id, why))])
        aside = {**self.run.set_aside, request.id: why}
        self.run = self.run.model_copy(update={"set_aside": aside})

    def _unanswered(self, keyed: Sequence[Keyed]) -> list[Keyed]:
        rows, positions = self.plan.keys.find(Keys.of(key for key, _ in keyed))
        pairs = zip(rows.tolist(), positions.tolist(), strict=True)
        left = {row for row, at in pairs if at in self._missing}
        return [one for row, one in enumerate(keyed) if row in left]

    def _setback(self, reason: str) -> None:
        self._setbacks = self._setbacks + 1 if self._answered == self._before else 1
        self._before = self._answered
        prometheus.SETBACKS.labels(self.job.side).set(self._setbacks)
        if self._setbacks >= SETBACKS:
            raise ServiceError(
                f"Shards failed {self._setbacks} times without an answer in between, the last "
                f"time: {reason}; see cogr-index status, repair the workers and run the same "
                "command again."
            )

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
