"""The coordinator of a rebuild on workers. It works in rounds: it cuts what the cache lacks into
shards, sends them, and waits until each is over or no live worker is at one; then it cuts what is
still missing anew. All state is in files of the store, so the broker may lose its data.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

from pyroaring import BitMap

from cogr.errors import ServiceError, StorageError
from cogr.records import Advance, Say
from indexers.generators import Failure
from indexers.generators.cache import Missing
from indexers.lease import Lease
from indexers.rebuild.fleet.broker import Broker, Message
from indexers.rebuild.fleet.run_files import Attempt, FleetRun, new_run
from indexers.rebuild.plan import Job, Plan
from indexers.telemetry import logs, prometheus
from indexers.telemetry.prometheus import stage

log = logging.getLogger(__name__)

MIN_SHARD, MAX_SHARD, SHARDS = 16, 4096, 64
"""Entities of a shard, at least and at most, and into how many shards a round is cut within these
bounds; later rounds have no least. A worker leaves what it can't do in time
(`indexers.rebuild.fleet.worker.SHARD_SECONDS`) to the next round.
"""
POLL_SECONDS = 1.0
"""How often the coordinator looks at the cache."""
LOOK_SECONDS = 15.0
"""How often it asks which shards workers are at, once the queue is empty. When nobody is at one for
two looks, the round is over. It is also the pause after a round without an answer.
"""
_PARTS = 8
"""After each round without an answer shards are smaller by this factor, so that few deaths of
workers find the entity that causes them.
"""
LAST_DEATHS = 3
"""Deaths before an entity alone in its shard is set aside, since a machine may also die by itself.
"""
MAX_SETBACKS = 10
"""Rounds in a row without an answer, after which the fleet counts as broken."""
PATIENCE_SECONDS = 600.0
"""How long to wait for a broker that can't be reached: longer than a restart takes."""
_REPORT_SECONDS = 60.0


class Coordinator:
    """One rebuild from its plan to the last answer. It makes all decisions.

    Args:
        lease: of the side; held by the caller.
    """

    def __init__(
        self, job: Job, plan: Plan, lease: Lease, broker: Broker, say: Say, advance: Advance
    ) -> None:
        self._job, self._plan, self._lease, self._broker = job, plan, lease, broker
        self._say, self._advance = say, advance
        self._folder = new_run(job.store, job.side)
        self._run = FleetRun(
            id=self._folder.run,
            side=job.side,
            fingerprint=job.generator.fingerprint,
            to_generate=len(plan.missing),
        )
        self._cache = job.cache
        self._looking, self._missing = Missing(self._cache, plan.keys), plan.missing
        self._deaths = Counter[int]()
        self._reason = ""
        self._grown = self._said = time.monotonic()

    def work(self) -> dict[str, str]:
        """Returns why entities have no answer, by their ids, when all others have one.

        Raises:
            LockedError: another process has taken over.
            ServiceError: the broker is away, or the workers are broken; the same command goes on.
            StorageError: the store can't be written, or the workers have another one.
        """
        with logs.bound(run=self._run.id), stage("generate", self._job.side):
            self._write()
            try:
                self._work()
            except BaseException:
                self._write(state="stopped")
                raise
            self._write(state="finished")
        left = [self._plan.entities[i].id for i in self._missing]
        return {id_: self._run.set_aside[id_] for id_ in left}

    def _work(self) -> None:
        number = barren = 0
        setbacks = prometheus.SETBACKS.labels(self._job.side)
        setbacks.set(0)
        while todo := self._todo():
            least = 1 if number else MIN_SHARD
            size = min(MAX_SHARD, max(least, -(-len(todo) // SHARDS))) // _PARTS**barren
            shards = self._cut(number, todo, max(1, size))
            self._wait(list(shards))
            self._close(shards)
            number, barren = number + 1, barren + 1 if self._todo() == todo else 0
            setbacks.set(barren)
            if barren:
                self._check_fleet(barren)
                time.sleep(LOOK_SECONDS)

    def _todo(self) -> BitMap:
        self._missing = self._looking.look()
        if not (aside := self._run.set_aside):
            return self._missing
        return BitMap(i for i in self._missing if self._plan.entities[i].id not in aside)

    def _cut(self, number: int, todo: BitMap, size: int) -> dict[str, BitMap]:
        shards = {}
        for part, start in enumerate(range(0, len(todo), size)):
            shard, positions = f"{number:03d}-{part:05d}", todo[start : start + size]
            requests = (self._job.request(self._plan.entities[i]) for i in positions)
            keys = (self._plan.keys[i] for i in positions)
            self._folder.write_shard(shard, [*zip(keys, requests, strict=True)])
            shards[shard] = positions
        return shards

    def _wait(self, unsent: list[str]) -> None:
        # Until every shard is over, or nobody is at one for two looks.
        idle, looked, away, side = 0, time.monotonic(), 0.0, self._job.side
        while idle < 2:
            self._lease.check()
            left = set(self._folder.names("shards"))
            self._report()
            if not (self._missing and left):
                break
            try:
                while unsent:
                    self._broker.send(Message(side=side, run=self._run.id, shard=unsent[0]))
                    del unsent[0]
                if time.monotonic() - looked >= LOOK_SECONDS:
                    idle, looked = 0 if self._busy(left) else idle + 1, time.monotonic()
                away = 0.0
            except ServiceError as error:
                if not away:
                    away = time.monotonic()
                    self._say(f"{error} Waiting for it; workers finish their shards.")
                if time.monotonic() - max(away, self._grown) > PATIENCE_SECONDS:
                    raise
            prometheus.BROKER_UP.labels(side).set(not away)
            time.sleep(POLL_SECONDS)

    def _busy(self, left: set[str]) -> bool:
        waiting = self._broker.waiting()
        prometheus.QUEUE.labels(self._job.side).set(waiting)
        return bool(waiting or left & self._broker.active(self._run.id))

    def _close(self, shards: dict[str, BitMap]) -> None:
        aside, self._reason = dict(self._run.set_aside), ""
        for shard, positions in shards.items():
            attempt = self._folder.read(Attempt, f"attempts/{shard}")
            if attempt is not None:
                aside |= attempt.transient
                if attempt.state not in ("done", "stopped"):
                    # The reason of an unexpected error may quote an item.
                    log.warning("Shard %s: %s, by %s", shard, attempt.state, attempt.worker)
                    self._reason = attempt.why
                if attempt.state in ("running", "failed") and len(positions) == 1:
                    aside |= self._died(positions[0])
        for shard in self._folder.names("shards"):
            self._folder.remove_shard(shard)
        self._write(set_aside=aside)

    def _died(self, position: int) -> dict[str, str]:
        self._deaths[position] += 1
        deaths, id_ = self._deaths[position], self._plan.entities[position].id
        if deaths < LAST_DEATHS or position not in self._missing:
            return {}
        why = f"took down {deaths} workers, the last time: {self._reason}"
        self._cache.add([(self._plan.keys[position], Failure(id_, why))])
        return {id_: why}

    def _check_fleet(self, barren: int) -> None:
        if barren < MAX_SETBACKS:
            return
        if not self._reason:
            raise StorageError(
                f"{len(self._missing)} answers that workers reported are not in "
                f"{self._job.store.url}; the workers must use the same store."
            )
        raise ServiceError(
            f"The fleet gave no answer {barren} times in a row, the last time: {self._reason}; "
            "repair the workers and run the same command again."
        )

    def _report(self) -> None:
        self._missing, now = self._looking.look(), time.monotonic()
        answered = self._run.to_generate - len(self._missing)
        if answered > self._run.answered:
            self._advance(answered - self._run.answered)
            self._grown = self._said = now
        prometheus.ANSWERED.labels(self._job.side).set(answered)
        if now - self._said > _REPORT_SECONDS:
            self._said = now
            self._say(
                f"No answer for {now - self._grown:.0f} s: unless workers are loading their model, "
                f"start some with cogr-ops worker --side {self._job.side}; they need the same "
                f"configuration and the store {self._job.store.url}."
            )
        self._write(answered=answered)

    def _write(self, **facts: Any) -> None:
        self._run = self._run.model_copy(update=facts)
        self._folder.write(self._run, "run")
