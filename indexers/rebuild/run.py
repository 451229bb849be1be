"""`cogr-index rebuild` from settings to a published snapshot: lock, plan, generate, freeze, push,
verify, switch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from cogr.errors import CheckFailedError, CogrError, LockedError, ServiceError
from cogr.records import PLURAL, ProgressBar, Say, Side
from indexers.generators.statistical.generator import KeptFit, Statistical
from indexers.inspection import remarks
from indexers.lease import REBUILD_SECONDS, Lease, held_lease, lease_to_rebuild
from indexers.rebuild.assembly import Rebuilt, freeze
from indexers.rebuild.plan import Job, generate_missing, make_plan
from indexers.release import release
from indexers.telemetry import logs, prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RebuildRequest:
    """The options of the command.

    Attributes:
        limit: only the first entities of the source; such a snapshot is kept, and not pushed,
            because it would replace the whole side.
    """

    side: Side
    generator: str | None = None
    limit: int | None = None
    push: bool = True
    publish: bool = True
    workers: Literal["local", "celery"] | None = None

    @property
    def pushes(self) -> bool:
        return self.push and self.limit is None

    @property
    def publishes(self) -> bool:
        return self.pushes and self.publish


def make_job(workspace: Workspace, request: RebuildRequest) -> Job:
    """The job that the settings and the command line describe; opens the generator."""
    side, name = request.side, request.generator
    entities = workspace.dataset.entities(side)[: request.limit]
    choice = workspace.choice(side, name)
    return Job(
        workspace,
        side,
        entities,
        workspace.generator(side, name),
        workspace.prompter(side, name),
        parent=workspace.backend.serving().get(side) if request.push else None,
        why=choice.why,
    )


def plan_rebuild(workspace: Workspace, request: RebuildRequest) -> Mapping[str, Any]:
    """What `rebuild` would do now, for --dry-run. Generates nothing, writes nothing."""
    job = make_job(workspace, request)
    if isinstance(job.generator, Statistical):
        job = replace(job, generator=job.generator.looking())
    with job.generator:
        plan = make_plan(job)
        return {
            "side": job.side,
            "items": len(plan.entities),
            "cached": len(plan.entities) - len(plan.missing),
            "to_generate": len(plan.missing),
            "cut_prompts": plan.cut_prompts,
            "prompted": job.generator.reads == "prompt",
            "generator": dict(job.generator.fingerprint),
            "why": job.why,
            "workers": request.workers or workspace.settings.rebuild.workers,
            "store": workspace.store.url,
            "backend": workspace.backend.name,
            "push": request.pushes,
            "publish": request.publishes,
        }


class RebuildRun:
    """A rebuild of one side, or an update, which is one with another job: the options, and where it
    says what it does.

    Attributes:
        job: what it does, once that is loaded.
        rebuilt: what it did, once that is done.
    """

    command = "rebuild"
    job: Job
    rebuilt: Rebuilt

    def __init__(
        self, workspace: Workspace, request: RebuildRequest, bar: ProgressBar, say: Say
    ) -> None:
        self.workspace, self.request, self.side = workspace, request, request.side
        self.bar, self.say = bar, say

    def load(self) -> Job:
        """The job; called once, while the lease is held."""
        job = make_job(self.workspace, self.request)
        for remark in remarks(self.workspace.dataset) if self.side == "item" else ():
            self.say(remark)
        return job

    def carry_out(self) -> Rebuilt:
        """Generate what the job lacks, freeze the side's keyword sets, and push and publish the
        snapshot as far as asked.

        Raises:
            LockedError: another rebuild of this side is under way in this store.
            CheckFailedError: too many entities were set aside, or the pushed index differs from the
                snapshot; nothing was switched.
            ServiceError: a service can't be reached; the same command goes on.
        """
        with self.held() as lease:
            return self.work(lease)

    def work(self, lease: Lease) -> Rebuilt:
        """As `carry_out`, while the lease is held."""
        with stage("load", self.side):
            job = self.job = self.load()
        self.say(generator_line(job))
        with job.generator:
            rebuilt = self._generate(job, lease)
            if isinstance(job.generator, Statistical):
                for told in filter(None, (job.generator.told_f1, job.generator.told_judge)):
                    self.say(told)
        made, asked = rebuilt.snapshot, self.request
        with logs.bound(snapshot=made.id):
            done = release(
                job.workspace,
                [made.id],
                push=asked.pushes,
                switch=asked.publishes,
                say=self.say,
                check_lease=lease.check,
                base={self.side: job.parent},
            )
        index = done.indexes.get(self.side)
        self.rebuilt = replace(rebuilt, index=index, published=asked.publishes)
        return self.rebuilt

    @contextmanager
    def held(self) -> Iterator[Lease]:
        """For the time of the block no other process rebuilds or updates this side of the store; it
        is logged and counted as a run of this command, however it ends. Raises LockedError.
        """
        prometheus.serve_metrics(self.workspace.settings.metrics)
        kind, doing = lease_to_rebuild(self.side), f"{self.command} --side {self.side}"
        outcome = "finished"
        with (
            held_lease(self.workspace.store, kind, doing, REBUILD_SECONDS) as lease,
            logs.bound(side=self.side),
        ):
            try:
                yield lease
                prometheus.LAST_SUCCESS.labels(self.side, self.command).set_to_current_time()
            except BaseException as error:
                outcome = outcome_of(error)
                raise
            finally:
                prometheus.RUNS.labels(self.side, self.command, outcome).inc()
                log.info("%s of %s: %s", self.command, PLURAL[self.side], outcome)

    def _generate(self, job: Job, lease: Lease) -> Rebuilt:
        with stage("plan", self.side):
            plan = make_plan(job)
        workers = self.request.workers or self.workspace.settings.rebuild.workers
        with self.bar(f"keywords of {PLURAL[self.side]}", len(plan.missing)) as advance:
            # A kept fit takes seconds, and workers fit for themselves.
            if workers == "celery" and not isinstance(job.generator, KeptFit):
                from indexers.rebuild.fleet.broker import Broker, queue_of
                from indexers.rebuild.fleet.coordinator import Coordinator

                settings = job.workspace.generator_settings(self.side, self.request.generator)
                broker = Broker(self.workspace.settings.redis, queue_of(self.side, settings))
                transient = Coordinator(job, plan, lease, broker, self.say, advance).work()
            else:
                transient = generate_missing(job, plan, advance)
        return freeze(job, plan, transient)


def outcome_of(error: BaseException) -> str:
    """How a run ended, as one of a few fixed words, for metrics."""
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (CheckFailedError, "refused"),
        (ServiceError, "service_away"),
        (LockedError, "lost_lease"),
        (CogrError, "user_error"),
        (Exception, "bug"),
    )
    return next((word for kind, word in kinds if isinstance(error, kind)), "interrupted")


def generator_line(job: Job) -> str:
    """A line on who writes a job's keywords, and why."""
    fingerprint = job.generator.fingerprint
    language = fingerprint.get("language")
    spoken = f"; their language is {language}" if language else ""
    if isinstance(job.generator, Statistical):
        spoken += f"; {job.generator.told_encoder}"
    if job.side == "item" and not job.workspace.settings.publish.search_text:
        spoken += "; what follows the set is found by titles alone, publish.search_text is false"
    return f"keywords of {PLURAL[job.side]} by {fingerprint.get('kind')} ({job.why}{spoken})"
