"""The coordinator of a rebuild on workers: it takes the side's lease, plans shards, sends them,
retries failed ones, and freezes the snapshot when no answer is missing. Results of shards are in
files, so the broker may lose its data.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyroaring import BitMap

from cogr.errors import CheckFailedError, ServiceError, StorageError
from cogr.matching.postings import to_array
from cogr.records import Advance, Say, Side
from cogr.settings.fleet import FleetSettings
from indexers.fleet.broker import Broker, queue_of
from indexers.fleet.run_files import (
    FORMAT,
    Attempt,
    Cancel,
    End,
    FleetRun,
    GivenUp,
    Progress,
    RunFolder,
    latest_run,
    new_run_id,
    public_settings,
    runs_of,
    summary_of,
    total_rates,
)
from indexers.fleet.shards import (
    DEATHS,
    PARTS,
    RetryPolicy,
    Shard,
    ShardSizer,
    ShardTracker,
    write_requests,
)
from indexers.generators import Failure
from indexers.lease import Lease, held_lease, lease_to_rebuild
from indexers.rebuild.assembly import Rebuilt, freeze
from indexers.rebuild.cache import GenerationCache, Keys
from indexers.rebuild.plan import Job, Keyed, Plan
from indexers.telemetry import logs, prometheus, traces
from indexers.telemetry.traces import stage
from indexers.workspace import Workspace

log = logging.getLogger(__name__)


KEPT_RUNS = 5
"""Runs whose files are kept, for `cogr-index status` and later inspection."""
PATIENCE_SECONDS = 600.0
"""How long to wait for a broker that can't be reached: longer than a restart or a failover takes.
After that an orchestrator's next try goes on.
"""
RESEND_POLLS = 5
"""Polls with an empty queue after which a message that no worker took counts as lost."""
_ROUNDS = 3
_REPORT_SECONDS = 60.0


@contextmanager
def coordinate(
    workspace: Workspace, side: Side, generator: str | None, say: Say, command: str = "rebuild"
) -> Iterator[FleetExecutor]:
    """Hold the side's lease as its coordinator, for the time of the block.

    Args:
        generator: the generator, where it is not that of the settings.
        command: the command, for messages: rebuild or update.

    Raises:
        LockedError: another rebuild of this side is under way in this store, wherever it runs.
    """
    doing, seconds = f"{command} --side {side}", workspace.settings.fleet.lease_seconds
    with held_lease(workspace.store, lease_to_rebuild(side), doing, seconds) as lease:
        yield FleetExecutor(workspace, lease, generator, say)


@dataclass
class FleetExecutor:
    """Generates on workers, as an `indexers.rebuild.run.Executor`."""

    workspace: Workspace
    lease: Lease
    generator: str | None
    say: Say
    run_folder: RunFolder | None = None

    @property
    def folder(self) -> str | None:
        return self.run_folder.path if self.run_folder is not None else None

    def summary(self) -> Mapping[str, Any]:
        return summary_of(self.run_folder) if self.run_folder is not None else {}

    def check(self) -> None:
        self.lease.check()

    def run(self, job: Job, plan: Plan, advance: Advance) -> Rebuilt:
        """As `indexers.rebuild.run.generate_and_freeze`, by workers. With no answer missing, the
        broker is not used.

        Raises: as `Coordinator.work`.
        """
        started = time.monotonic()
        latest = latest_run(job.store, job.side)
        unfinished = latest is not None and latest[0].ended is None
        if not (plan.missing or unfinished):
            return freeze(job, plan, {}, started)
        folder = self._begin(job, plan, latest[0] if latest and unfinished else None)
        with logs.bound(run=folder.run):
            transient = self._generate(job, plan, folder, advance) if plan.missing else {}
            rebuilt = freeze(job, plan, transient, started)
            self.check()
            folder.write(End(state="finished", snapshot=rebuilt.snapshot.id), "end")
            return rebuilt

    def _begin(self, job: Job, plan: Plan, earlier: RunFolder | None) -> RunFolder:
        """Begin a new run. Workers of an earlier one stop after their present answer."""
        if earlier is not None:
            state = "cancelled" if earlier.cancelled else "superseded"
            earlier.write(End(state=state, reason="another rebuild began"), "end")
        settings = self.workspace.generator_settings(job.side, self.generator)
        run = FleetRun(
            id=new_run_id(),
            side=job.side,
            fingerprint=job.generator.fingerprint,
            generator=public_settings(settings),
            entities=len(plan.entities),
            to_generate=len(plan.missing),
        )
        self.run_folder = folder = RunFolder(job.store, job.side, run.id)
        folder.write(run, "run")
        for old in runs_of(job.store, job.side)[:-KEPT_RUNS]:
            job.store.remove(old.path)
        return folder

    def _generate(
        self, job: Job, plan: Plan, folder: RunFolder, advance: Advance
    ) -> dict[str, Failure]:
        settings = self.workspace.settings
        queue = queue_of(job.side, self.workspace.generator_settings(job.side, self.generator))
        with stage("generate", job.side, run=folder.run) as step:
            broker = Broker(settings.redis, queue)
            parts = job, plan, folder, self.lease, broker, settings.fleet
            transient = Coordinator(*parts, self.say, advance).work()
            step.add(generated=len(plan.missing), transient_failures=len(transient))
        return transient


@dataclass
class Coordinator:
    """One rebuild from its plan to the last answer. It makes all decisions."""

    job: Job
    plan: Plan
    folder: RunFolder
    lease: Lease
    broker: Broker
    settings: FleetSettings
    say: Say
    advance: Advance

    def __post_init__(self) -> None:
        self._tracker = ShardTracker(self.folder, self.settings.lost_seconds)
        self._sizer = ShardSizer()
        self._policy = RetryPolicy(self.job.side)
        self._cache = GenerationCache(self.job.store, self.job.generator.fingerprint)
        self._closed = {"done": 0, "given_up": 0}
        self._todo = BitMap()
        self._transient: dict[str, Failure] = {}
        self._number = self._answered = self._shown = 0
        self._unreachable_since: float | None = None
        self._counted = 0.0
        self._progress = Progress()
        self._reported = self._active = time.monotonic()

    def work(self) -> dict[str, Failure]:
        """Returns the transient failures, by entity id, when all others have an answer.

        Raises:
            CheckFailedError: the run was cancelled.
            LockedError: another coordinator took over.
            ServiceError: the broker can't be reached for too long, or workers fail one after
                another.
            StorageError: answers that workers reported are not in this store.
        """
        missing = self.plan.missing
        for _ in range(_ROUNDS):
            self._todo = BitMap(missing)
            while self._tracker.open or self._todo:
                self._step()
            missing = self._unanswered(missing)
            if not missing:
                return self._transient
        raise StorageError(
            f"{len(missing)} answers that workers reported are not in {self.job.store.url}; "
            "the workers must have the same store."
        )

    def _step(self) -> None:
        self.lease.check()
        if (cancel := self.folder.read(Cancel, "cancel")) is not None:
            self._stop(cancel)
        self._look()
        self._fill()
        self._send()
        self._report()
        if self._tracker.open:
            time.sleep(self.settings.poll_seconds)

    def _unanswered(self, asked: BitMap) -> BitMap:
        """Positions that have no answer although no shard is open."""
        positions = to_array(asked)
        found = positions[to_array(self._cache.missing(self.plan.keys.take(positions)))]
        entities = self.plan.entities
        return BitMap(i for i in found.tolist() if entities[i].id not in self._transient)

    # Results of workers

    def _look(self) -> None:
        before = sum(attempt.items for attempt in self._tracker.running)
        done, failed = self._tracker.poll()
        for shard, attempt in done:
            self._finish(shard, attempt)
        if sum(attempt.items for attempt in self._tracker.running) > before:
            self._policy.progress()
        for shard, attempt in failed:
            self._retry(shard, attempt)
        # Workers that die together count as one setback.
        if reasons := [attempt.full_reason for _, attempt in failed if attempt.state != "stopped"]:
            self._policy.setback(reasons[-1])

    def _finish(self, shard: Shard, done: Attempt) -> None:
        for id_, reason in done.transient.items():
            self._transient[id_] = Failure(id_, reason, permanent=False)
        self._sizer.measure(done)
        prometheus.ATTEMPTS.labels(self.job.side, "done").inc()
        counts = {"items": done.items, "tokens": done.tokens}
        shard.span.set_attributes(traces.named({"worker": done.worker, **counts}))
        self._close(shard, "done", len(shard.positions))
        self._policy.progress()

    def _close(self, shard: Shard, how: str, answered: int) -> None:
        self._tracker.close(shard)
        self._closed[how] += 1
        self._answered += answered

    def _retry(self, shard: Shard, failed: Attempt) -> None:
        prometheus.ATTEMPTS.labels(self.job.side, failed.state).inc()
        if failed.state == "stopped":
            return
        with logs.bound(shard=shard.name, worker=failed.worker):
            log.warning("Shard %s: worker %s: %s", shard.name, failed.worker, failed.logged_reason)
        shard.retry_at = time.monotonic() + self._policy.pause(failed)
        if failed.state == "declined":
            # The file of its requests may be gone or damaged.
            write_requests(self.folder, shard.name, self._requests(shard.positions))
        if self._policy.exhausted(shard):
            self._give_up(shard, failed.full_reason)

    def _requests(self, positions: list[int]) -> list[Keyed]:
        plan = self.plan
        return [(plan.keys[i], self.job.request(plan.entities[i])) for i in positions]

    def _give_up(self, shard: Shard, reason: str) -> None:
        """Split the unanswered rest of a shard, or set its single entity aside."""
        keys = Keys.of(self.plan.keys[i] for i in shard.positions)
        left = [shard.positions[i] for i in self._cache.missing(keys)]
        if len(left) == len(shard.positions) == 1:
            # A permanent failure is cached; another model or prompt is another cache key, and tries
            # again.
            id_ = self.plan.entities[left[0]].id
            reason = f"took down {shard.deaths} workers, the last time: {reason}"
            self._cache.add([(self.plan.keys[left[0]], Failure(id_, reason))])
            record = GivenUp(shard=shard.name, why=reason, set_aside={id_: reason})
        else:
            size = max(1, -(-len(left) // PARTS))
            groups = [left[start : start + size] for start in range(0, len(left), size)]
            parts = [self._open(group, part_of=shard.name) for group in groups]
            for part in parts:
                # The next death shows which of them is the cause.
                part.deaths = DEATHS - 1 if len(part.positions) > 1 else 0
            record = GivenUp(shard=shard.name, why=reason, parts=tuple(one.name for one in parts))
        self.folder.write(record, f"given_up/{shard.name}")
        shard.span.set_attributes({"cogr.given_up": True, "cogr.parts": len(record.parts)})
        answered = len(shard.positions) - (len(left) if record.parts else 0)
        self._close(shard, "given_up", answered)

    # Shards for workers

    def _fill(self) -> None:
        """Plan two open shards more than there are workers; later ones know better rates."""
        running = len(self._tracker.running)
        while self._todo and len(self._tracker.open) < 2 * running + 2:
            taken = self._todo[: self._sizer.next_size(len(self._todo), running)]
            self._todo -= taken
            self._open(list(taken))

    def _open(self, positions: list[int], part_of: str | None = None) -> Shard:
        name = f"{self._number:05d}-{len(positions)}"
        self._number += 1
        names = traces.named({"shard": name, "entities": len(positions), "part_of": part_of})
        span = traces.tracer().start_span("shard", attributes=names)
        shard = Shard(name, positions, span=span)
        write_requests(self.folder, name, self._requests(positions))
        self._tracker.open[name] = shard
        return shard

    def _send(self) -> None:
        now = time.monotonic()
        waiting = [shard for shard in self._tracker.open.values() if shard.running is None]
        due = [shard for shard in waiting if shard.sent is None and shard.retry_at <= now]
        try:
            for shard in due + self._lost(waiting, now):
                self.broker.send(self._message(shard))
                shard.sent = now
            self._unreachable_since = None
        except ServiceError as error:
            self._wait_for_broker(error)
        prometheus.BROKER_UP.labels(self.job.side).set(self._unreachable_since is None)

    def _message(self, shard: Shard) -> dict[str, Any]:
        ids = {"side": self.job.side, "run": self.folder.run, "shard": shard.name}
        trace = traces.carrier(shard.span)
        return {"format": FORMAT, **ids, "attempt": shard.attempt, "trace": trace}

    def _lost(self, waiting: list[Shard], now: float) -> list[Shard]:
        """Shards whose message is lost: the queue is empty, and no worker took them."""
        grace = RESEND_POLLS * self.settings.poll_seconds
        if now - self._counted < grace:
            return []
        self._counted = now
        messages = self.broker.waiting()
        prometheus.QUEUE.labels(self.job.side).set(messages)
        return [s for s in waiting if not messages and s.sent is not None and now - s.sent > grace]

    def _wait_for_broker(self, error: ServiceError) -> None:
        now = time.monotonic()
        if self._unreachable_since is None:
            self._unreachable_since = now
            self.say(f"{error} Waiting for it; shards with workers go on.")
        if now - self._unreachable_since > PATIENCE_SECONDS and not self._tracker.running:
            raise error

    # Progress and cancellation

    def _report(self) -> None:
        running = self._tracker.running
        answered = self._answered + sum(min(one.items, one.entities) for one in running)
        if answered > self._shown:
            self.advance(answered - self._shown)
            self._shown, self._active = answered, time.monotonic()
        self._measure(answered)
        progress = Progress(unplanned=len(self._todo), note=self._note())
        if progress != self._progress:
            self.folder.write(progress, "progress")
            self._progress = progress

    def _measure(self, answered: int) -> None:
        side, running = self.job.side, self._tracker.running
        waiting = len(self._tracker.open) - len(running)
        for state, count in {"running": len(running), "waiting": waiting, **self._closed}.items():
            prometheus.SHARDS.labels(side, state).set(count)
        items, tokens = total_rates(running)
        prometheus.UNPLANNED.labels(side).set(len(self._todo))
        prometheus.ANSWERED.labels(side).set(answered)
        prometheus.WORKERS.labels(side).set(len({attempt.worker for attempt in running}))
        prometheus.ENTITY_RATE.labels(side).set(items)
        prometheus.TOKEN_RATE.labels(side).set(tokens)

    def _note(self) -> str:
        now = time.monotonic()
        if self._tracker.running or now - self._active < _REPORT_SECONDS:
            return "the broker can't be reached" if self._unreachable_since is not None else ""
        note = f"no worker has taken a shard for {now - self._active:.0f} s"
        if now - self._reported > _REPORT_SECONDS:
            self._reported = now
            self.say(
                f"{note.capitalize()}: start workers with cogr-ops worker --side {self.job.side} "
                f"that have the same configuration and the store {self.job.store.url}."
            )
        return note

    def _stop(self, cancel: Cancel) -> None:
        """End a cancelled run, once workers have finished their present answer."""
        running = len(self._tracker.running)
        self.say(f"Cancelled by {cancel.by}; waiting for {running} workers to stop ...")
        while self._tracker.running:
            time.sleep(self.settings.poll_seconds)
            self._tracker.poll()
        reason = f"cancelled by {cancel.by}"
        self.folder.write(End(state="cancelled", reason=reason), "end")
        raise CheckFailedError(
            f"The rebuild of {self.job.side}s was {reason}; what was generated is kept, and a new "
            "rebuild goes on from there."
        )
