"""The coordinator's loop: plans shards as rates become known, sends them, mends what breaks, until
no answer is missing.

It is the only one that decides. The broker may forget messages or deliver them twice: which shards
are open, done or given up is in files, and a worker looks there first.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from pyroaring import BitMap

from cogr.errors import CheckFailedError, ServiceError, StorageError
from cogr.matching.postings import to_array
from cogr.progress import Advance, Say
from cogr.settings.fleet import FleetSettings
from indexers.build.cache import GenerationCache
from indexers.build.lease import Lease
from indexers.build.plan import Job, Plan
from indexers.fleet.broker import Broker
from indexers.fleet.gauges import Gauges
from indexers.fleet.ledger import Ended, Ledger, Shard
from indexers.fleet.mending import Mender, intact
from indexers.fleet.pace import Pace
from indexers.fleet.records import Cancel, Done, End, Progress, Run, RunFolder, shard_name
from indexers.fleet.shards import write_shard
from indexers.fleet.station import Message
from indexers.generators.protocol import Failure
from indexers.telemetry import logs, traces

log = logging.getLogger(__name__)


GRACE = 5
"""Looks after which a message that nobody took counts as lost, if nothing waits in the queue any
more.
"""
_TELL_SECONDS = 60.0
_LONGEST_PAUSE = 60.0
_ROUNDS = 3


@dataclass(frozen=True)
class Parts:
    """What a coordinator works with."""

    job: Job
    plan: Plan
    folder: RunFolder
    run: Run
    lease: Lease
    broker: Broker
    settings: FleetSettings
    say: Say
    advance: Advance


class Coordinator:
    """One rebuild from its plan to the last answer.

    Attributes:
        passing: failures that the cache does not remember, by entity id.
    """

    def __init__(self, parts: Parts) -> None:
        self._p = parts
        self._settings = parts.settings
        self._ledger = Ledger(
            parts.folder, parts.settings.lost_seconds, parts.settings.stuck_seconds
        )
        self._pace = Pace(parts.settings.shard_seconds, parts.settings.first_items)
        self._mender = Mender(parts.job, parts.plan, parts.folder, parts.settings)
        self._cache = GenerationCache(parts.job.store, parts.job.generator.fingerprint)
        done, given_up = (len(parts.folder.names(folder)) for folder in ("done", "given_up"))
        self._gauges = Gauges(parts.job.side, done, given_up)
        self._todo = BitMap()
        self._number = 0
        self._setbacks: list[str] = []
        self._answered = self._shown = 0
        self._away_since: float | None = None
        self._written: Progress | None = None
        self._counted = 0.0
        self._told = self._active = time.monotonic()
        self.passing: dict[str, Failure] = {}

    def work(self) -> None:
        """Return when every entity has an answer, or a reason why not.

        Raises:
            CheckFailedError: the run was cancelled.
            LockedError: another coordinator took over.
            ServiceError: the broker is away for too long, or workers fail without any answer in
                between.
            StorageError: answers that workers reported are not in this store.
        """
        missing = self._p.plan.missing
        for _ in range(_ROUNDS):
            self._todo = missing - self._mender.adopt(self._ledger, missing)
            self._until_settled()
            missing = self._still_missing(missing)
            if not missing:
                return
        raise StorageError(
            f"{len(missing)} answers that workers reported are not in {self._p.job.store.url}; "
            "the workers must have the same store."
        )

    def _until_settled(self) -> None:
        while self._ledger.shards or self._todo:
            self._p.lease.check()
            if (cancel := self._p.folder.read(Cancel, "cancel")) is not None:
                self._stop(cancel)
            self._look()
            self._fill()
            self._send_all()
            self._report()
            if self._ledger.shards:
                time.sleep(self._settings.poll_seconds)

    def _still_missing(self, asked: BitMap) -> BitMap:
        """Positions without an answer although nothing is under way any more."""
        entities, positions = self._p.plan.entities, to_array(asked)
        found = positions[to_array(self._cache.missing(self._p.plan.keys.take(positions)))]
        return BitMap(
            position for position in found.tolist() if entities[position].id not in self.passing
        )

    # What workers wrote

    def _look(self) -> None:
        before = sum(attempt.items for attempt in self._ledger.living)
        troubles: list[str] = []
        for shard, done in list(self._ledger.results()):
            self._settle(shard, done, troubles)
        ends = self._ledger.ends()
        if sum(attempt.items for attempt in self._ledger.living) > before:
            self._clear_setbacks()
        for ended in ends:
            self._handle(ended, troubles)
        # Machines that die together are one setback.
        if troubles:
            self._set_back(troubles[-1])

    def _settle(self, shard: Shard, done: Done, troubles: list[str]) -> None:
        if not intact(self._p.job.store, done):
            self._p.folder.store.remove(f"{self._p.folder.path}/done/{shard.name}.json")
            troubles.append(
                f"the answers of shard {shard.name} from worker {done.worker} are not what it "
                "said they are"
            )
            shard.sent = None
            self._gauges.broken()
            return
        for id_, reason in done.passing.items():
            self.passing[id_] = Failure(id_, reason, permanent=False)
        self._pace.measure(done)
        self._gauges.done()
        shard.span.set(worker=done.worker, items=done.items, tokens=done.tokens)
        self._finish(shard)

    def _finish(self, shard: Shard) -> None:
        self._ledger.drop(shard)
        self._answered += len(shard.positions)
        self._clear_setbacks()
        self._active = time.monotonic()

    def _handle(self, ended: Ended, troubles: list[str]) -> None:
        shard, state = ended.shard, ended.attempt.state
        shard.sent = None
        self._gauges.ended(ended)
        if state == "stopped" or shard.name not in self._ledger.shards:
            return
        with logs.bound(shard=shard.name, worker=ended.attempt.worker):
            log.warning("Shard %s: %s", shard.name, ended.told)
        shard.deaths += ended.counts
        shard.last_words = ended.why
        if not ended.inherited:
            troubles.append(ended.why)
        if state == "declined":
            self._mender.write_again(shard)
        if not ended.gone and state in ("declined", "away"):
            # What this worker or its service can't do now may be possible later, or elsewhere.
            shard.not_before = time.monotonic() + min(
                _LONGEST_PAUSE, 0.5 * 2 ** min(len(self._setbacks), 10)
            )
        if self._mender.hopeless(shard):
            self._give_up(shard)

    def _give_up(self, shard: Shard) -> None:
        parts, rest = self._mender.give_up(shard, self._p.lease.term, self._number)
        self._number += len(parts)
        self._gauges.given_up()
        shard.span.set(given_up=True, parts=len(parts))
        self._ledger.drop(shard)
        self._answered += rest
        for part in parts:
            self._ledger.add(part)

    def _clear_setbacks(self) -> None:
        self._setbacks.clear()
        self._gauges.setbacks(0)

    def _set_back(self, why: str) -> None:
        self._setbacks.append(why)
        self._gauges.setbacks(len(self._setbacks))
        if len(self._setbacks) >= self._settings.setbacks:
            raise ServiceError(
                f"The last {len(self._setbacks)} attempts failed without an answer in between, "
                f"the latest: {why}; see "
                "cogr-index status, mend the workers and run the same command again."
            )

    # What workers are given

    def _fill(self) -> None:
        """Plan shards ahead: as many waiting as there are workers, and two more; the others are
        sized by later rates.
        """
        running = len(self._ledger.living)
        while self._todo and len(self._ledger.shards) - running < running + 2:
            size = self._pace.next_size(len(self._todo), running)
            taken = self._todo[:size]
            self._todo -= taken
            positions = list(taken)
            shard = Shard(shard_name(self._p.lease.term, self._number, size), positions)
            shard.span = traces.begin("shard", shard=shard.name, entities=size)
            self._number += 1
            write_shard(
                self._p.folder, shard.name, self._mender.requests(positions), shard.span.carrier
            )
            self._ledger.add(shard)

    def _send_all(self) -> None:
        now = time.monotonic()
        unsent = [
            shard
            for shard in self._ledger.shards.values()
            if shard.sent is None and shard.living is None
        ]
        try:
            for shard in [
                shard for shard in unsent if shard.not_before <= now
            ] + self._lost_messages(now):
                message = Message(
                    side=self._p.job.side,
                    run=self._p.run.id,
                    shard=shard.name,
                    dead=tuple(shard.dead[-20:]),
                )
                self._p.broker.send(message.model_dump(mode="json"))
                shard.sent = now
        except ServiceError as error:
            self._gauges.broker(up=False)
            self._wait_for_broker(error)
        else:
            self._gauges.broker(up=True)
            self._away_since = None

    def _lost_messages(self, now: float) -> list[Shard]:
        """Shards whose message nobody has taken although the queue is empty, or a later one was
        taken.
        """
        grace = GRACE * self._settings.poll_seconds
        if now - self._counted < grace:
            return []
        self._counted = now
        waiting = [
            shard
            for shard in self._ledger.shards.values()
            if shard.living is None and shard.sent is not None and now - shard.sent > grace
        ]
        messages = self._p.broker.waiting()
        self._gauges.queue(messages)
        if not waiting or not messages:
            return waiting
        taken = max(
            (s.sent for s in self._ledger.shards.values() if s.living and s.sent is not None),
            default=0.0,
        )
        return [shard for shard in waiting if shard.sent is not None and shard.sent < taken - grace]

    def _wait_for_broker(self, error: ServiceError) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            self._p.say(f"{error} Waiting for it; shards with workers go on.")
        if now - self._away_since > self._settings.patience_seconds and not self._ledger.living:
            raise error

    # What others see

    def _report(self) -> None:
        under_way = sum(min(attempt.items, attempt.entities) for attempt in self._ledger.living)
        if (shown := self._answered + under_way) > self._shown:
            self._p.advance(shown - self._shown)
            self._shown, self._active = shown, time.monotonic()
        self._gauges.look(
            list(self._ledger.shards.values()), len(self._todo), self._answered + under_way
        )
        progress = Progress(
            term=self._p.lease.term,
            updated=time.time(),
            unplanned=len(self._todo),
            note=self._note(),
        )
        was, self._written = self._written, progress
        if (
            was is None
            or (was.unplanned, was.note) != (progress.unplanned, progress.note)
            or progress.updated - was.updated >= self._settings.heartbeat_seconds
        ):
            self._p.folder.write(progress, "progress")
        else:
            self._written = was

    def _note(self) -> str:
        now = time.monotonic()
        if self._ledger.living or now - self._active < _TELL_SECONDS:
            return "the broker is away" if self._away_since is not None else ""
        note = f"no worker has taken a shard for {now - self._active:.0f} s"
        if now - self._told > _TELL_SECONDS:
            self._told = now
            self._p.say(
                f"{note[0].upper()}{note[1:]}: start workers with cogr-ops worker --side "
                f"{self._p.job.side} that have the "
                f"same configuration and the store {self._p.job.store.url}."
            )
        return note

    def _stop(self, cancel: Cancel) -> None:
        """End a cancelled run: nothing more is sent, workers finish their present answer, then all
        is over.
        """
        self._p.say(
            f"Cancelled by {cancel.by}; waiting for {len(self._ledger.living)} workers to stop ..."
        )
        try:
            self._p.broker.purge()
        except ServiceError as error:
            self._p.say(f"{error} Its messages mean nothing any more.")
        deadline = time.monotonic() + self._settings.lost_seconds
        while time.monotonic() < deadline:
            self._ledger.ends()
            if not self._ledger.living:
                break
            time.sleep(self._settings.poll_seconds)
        self._p.folder.write(
            End(state="cancelled", at=time.time(), reason=f"cancelled by {cancel.by}"), "end"
        )
        raise CheckFailedError(
            f"The rebuild of {self._p.job.side}s was cancelled by {cancel.by}; what was "
            "generated is kept, and a new rebuild "
            "goes on from there."
        )
