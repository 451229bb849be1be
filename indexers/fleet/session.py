"""A rebuild on workers, from the lock to the frozen snapshot: takes the side's lease, begins a run
or goes on with one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cogr.progress import Advance, Say
from cogr.records import Side
from indexers.build.assembly import Rebuilt, freeze
from indexers.build.cache import fingerprint_hash
from indexers.build.lease import Lease, hold, right_to_rebuild
from indexers.build.plan import Job, Plan
from indexers.fleet.broker import Broker
from indexers.fleet.coordinator import Coordinator, Parts
from indexers.fleet.engines import told
from indexers.fleet.queues import queue_of
from indexers.fleet.records import End, Run, RunFolder, identity_of, new_run_id, open_run, run_ids
from indexers.fleet.summary import summarise
from indexers.generators.protocol import Failure
from indexers.telemetry import logs, traces
from indexers.telemetry.stages import stage
from indexers.workspace import Workspace

KEPT = 5
"""Runs whose files are kept, for `cogr-index status` and for questions afterwards."""


@contextmanager
def coordinate(
    workspace: Workspace, side: Side, generator: str | None, say: Say, command: str = "rebuild"
) -> Iterator[Session]:
    """Be the one coordinator of a side.

    Args:
        generator: instead of the settings' one.
        say: takes lines for the reader.
        command: what holds the lease, for messages: rebuild or update.

    Raises:
        LockedError: another rebuild of this side is under way in this store, here or on another
            machine.
    """
    doing, seconds = f"{command} --side {side}", workspace.settings.fleet.lease_seconds
    with hold(workspace.store, right_to_rebuild(side), doing, seconds) as lease:
        yield Session(workspace, lease, generator, say)


class Session:
    """What a coordinator may do while it holds the lease."""

    def __init__(self, workspace: Workspace, lease: Lease, generator: str | None, say: Say) -> None:
        self._workspace = workspace
        self._lease = lease
        self._generator = generator
        self._say = say
        self._folder: RunFolder | None = None

    @property
    def folder(self) -> str | None:
        """The run's folder in the store; None before there is a run."""
        return self._folder.path if self._folder is not None else None

    def summary(self) -> Mapping[str, Any]:
        """Shards and workers, for the run's report."""
        return summarise(self._folder) if self._folder is not None else {}

    def check(self) -> None:
        """Raise LockedError when another coordinator has taken over."""
        self._lease.check()

    def rebuild(self, job: Job, plan: Plan, advance: Advance) -> Rebuilt:
        """As `indexers.build.plan.rebuild`, by workers. With nothing missing, no broker is asked.

        Raises:
            CheckFailedError: the run was cancelled.
            LockedError: another coordinator took over.
            ServiceError: the broker is away, or workers fail without any answer in between.
        """
        started = time.monotonic()
        latest = open_run(job.store, job.side)
        if not plan.missing and (latest is None or latest[0].ended is not None):
            return freeze(job, plan, {}, started)
        folder, run = self._run(job, plan, latest)
        self._folder = folder
        with logs.bound(run=run.id):
            passing = self._generate(job, plan, run, advance) if plan.missing else {}
            rebuilt = freeze(job, plan, passing, started)
            self.check()
            folder.write(End(state="finished", at=time.time(), snapshot=rebuilt.snapshot.id), "end")
            return rebuilt

    def _generate(self, job: Job, plan: Plan, run: Run, advance: Advance) -> Mapping[str, Failure]:
        """Have workers answer what is missing.

        Returns failures that the cache does not remember.
        """
        assert self._folder is not None
        settings = self._workspace.settings
        with stage("generate", job.side, run=run.id) as step:
            step.span.link(run.trace)
            broker = Broker(settings.redis, settings.fleet, run.queue)
            parts = Parts(
                job,
                plan,
                self._folder,
                run,
                self._lease,
                broker,
                settings.fleet,
                self._say,
                advance,
            )
            coordinator = Coordinator(parts)
            coordinator.work()
            step.add(generated=len(plan.missing), passing_failures=len(coordinator.passing))
        return coordinator.passing

    def _run(
        self, job: Job, plan: Plan, latest: tuple[RunFolder, Run] | None
    ) -> tuple[RunFolder, Run]:
        """The latest run, when it is under way and is the very same rebuild, or a new one."""
        settings = self._workspace.generator_settings(job.side, self._generator)
        fingerprint = fingerprint_hash(job.generator.fingerprint)
        identity = identity_of(
            generator=fingerprint,
            prompt=job.prompter.template.hash,
            dataset=job.dataset_hash,
            entities=len(plan.entities),
        )
        if latest is not None and latest[0].ended is None:
            if latest[1].identity == identity and not latest[0].cancelled:
                return latest
            reason = "cancelled" if latest[0].cancelled else "superseded"
            latest[0].write(
                End(state=reason, at=time.time(), reason="another rebuild began"), "end"
            )
        run = Run(
            id=new_run_id(),
            side=job.side,
            identity=identity,
            created=time.time(),
            fingerprint=job.generator.fingerprint,
            fingerprint_hash=fingerprint,
            generator=told(settings),
            prompt_hash=job.prompter.template.hash,
            entities=len(plan.entities),
            to_generate=len(plan.missing),
            queue=queue_of(job.side, settings),
            trace=traces.carrier(),
        )
        folder = RunFolder(job.store, job.side, run.id)
        folder.write(run, "run")
        for old in run_ids(job.store, job.side)[:-KEPT]:
            job.store.remove(RunFolder(job.store, job.side, old).path)
        return folder, run
