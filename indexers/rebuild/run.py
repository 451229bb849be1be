"""`cogr-index rebuild` from settings to a published snapshot: lock, plan, generate, freeze, push,
verify, switch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from cogr.errors import CheckFailedError, CogrError, LockedError, ServiceError, SnapshotError
from cogr.matching.mirror import Mirror
from cogr.records import Advance, Entity, ProgressBar, Query, Say, Side
from cogr.snapshots import Row, Snapshot
from indexers.generators import Generator, batched
from indexers.generators.statistical import LEAST_QUERIES
from indexers.generators.statistical.generator import KeptFit, Statistical, is_installed
from indexers.inspection import remarks
from indexers.lease import REBUILD_SECONDS, Lease, held_lease, lease_to_rebuild
from indexers.rebuild.assembly import Rebuilt, freeze
from indexers.rebuild.plan import Job, Plan, generate_missing, make_plan
from indexers.release import release
from indexers.telemetry import logs, prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace

log = logging.getLogger(__name__)

Workers = Literal["local", "celery"]


@dataclass(frozen=True)
class RebuildRequest:
    """The options of the command.

    Attributes:
        limit: only the first entities of the source; such a snapshot is kept, and not pushed.
    """

    side: Side
    generator: str | None = None
    limit: int | None = None
    push: bool = True
    publish: bool = True
    workers: Workers | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a rebuild.

    Attributes:
        prompted: whether the generator read prompts; others read the entities themselves.
    """

    rebuilt: Rebuilt
    index: str | None
    published: bool
    why: str = ""
    prompted: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        rebuilt = self.rebuilt
        return {
            "snapshot": rebuilt.snapshot.id,
            "side": rebuilt.snapshot.side,
            "items": rebuilt.snapshot.manifest.entities,
            "failures": len(rebuilt.set_aside),
            "seconds": round(rebuilt.seconds, 3),
            "generated": rebuilt.generated,
            "keywords": rebuilt.snapshot.manifest.keywords,
            "vocabulary": rebuilt.snapshot.manifest.vocabulary,
            "empty": rebuilt.snapshot.manifest.empty,
            "cut_prompts": rebuilt.cut_prompts,
            "cut_to_budget": rebuilt.cut_to_budget,
            "generator": rebuilt.snapshot.manifest.generator,
            "fields": dict(rebuilt.snapshot.manifest.fields),
            "why": self.why,
            "prompted": self.prompted,
            "truncated": rebuilt.truncated,
            "index": self.index,
            "published": self.published,
        }


def make_job(workspace: Workspace, request: RebuildRequest) -> Job:
    """The job that the settings and the command line describe; opens the generator."""
    entities = workspace.dataset.entities(request.side)
    chosen = entities if request.limit is None else entities[: request.limit]
    job = job_by(
        workspace.generator(request.side, request.generator),
        workspace,
        request.side,
        chosen,
        parent=workspace.backend.serving().get(request.side) if request.push else None,
        name=request.generator,
    )
    choice = workspace.choice(request.side, request.generator)
    weigh = weigher(workspace, request.side, choice.name, serving=request.push)
    return replace(job, why=choice.why, weigh=weigh)


def job_by(
    generator: Generator,
    workspace: Workspace,
    side: Side,
    entities: Sequence[Entity],
    *,
    parent: str | None = None,
    round_: int = 0,
    name: str | None = None,
) -> Job:
    """The job of writing these entities' keywords with an open generator, and with the prompt,
    budget and fields of the settings.

    Args:
        name: the generator's, where it is not that of the settings: the prompt is cut for it.
    """
    settings = workspace.settings
    return Job(
        side=side,
        entities=entities,
        generator=generator,
        prompter=workspace.prompter(side, name),
        store=workspace.store,
        dataset_hash=workspace.dataset.dataset_hash,
        lineage=workspace.dataset.lineage,
        k_max=settings.keywords.k_max,
        weights=settings.keywords.weights,
        round=round_,
        parent=parent,
        search_results=workspace.search_results(side, entities),
        fields=settings.publish.fields,
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
            "prompts": len(plan.entities),
            "cached": len(plan.entities) - len(plan.missing),
            "to_generate": len(plan.missing),
            "cut_prompts": plan.cut_prompts,
            "prompted": job.generator.reads == "prompt",
            "generator": dict(job.generator.fingerprint),
            "why": job.why,
            "workers": request.workers or workspace.settings.rebuild.workers,
            "store": workspace.store.url,
            "backend": workspace.backend.name,
            "push": pushes(request),
            "publish": pushes(request) and request.publish,
        }


def pushes(request: RebuildRequest) -> bool:
    """Whether to push. A part of a side (`limit`) is never pushed: it would replace the
    whole side.
    """
    return request.push and request.limit is None


def rebuild_side(
    workspace: Workspace, request: RebuildRequest, bar: ProgressBar, say: Say
) -> Outcome:
    """Rebuild one side and, where asked, push, verify and publish it.

    Raises:
        LockedError: another rebuild of this side is under way in this store.
        CheckFailedError: too many entities were set aside, or the pushed index differs from the
            snapshot; nothing was switched.
        ServiceError: a service can't be reached; the same command goes on.
    """
    with side_held(workspace, "rebuild", request.side) as lease:
        with stage("load", request.side):
            job = make_job(workspace, request)
        for remark in remarks(workspace.dataset) if request.side == "item" else ():
            say(remark)
        return carry_out(workspace, request, job, lease, bar, say)


@contextmanager
def side_held(workspace: Workspace, command: str, side: Side) -> Iterator[Lease]:
    """For the time of the block no other process rebuilds or updates this side of the store; it is
    logged and counted as a run of this command, however it ends. Raises LockedError.
    """
    prometheus.serve(workspace.settings.metrics)
    kind, doing, outcome = lease_to_rebuild(side), f"{command} --side {side}", "finished"
    with (
        held_lease(workspace.store, kind, doing, REBUILD_SECONDS) as lease,
        logs.bound(side=side),
    ):
        try:
            yield lease
            prometheus.LAST_SUCCESS.labels(side, command).set_to_current_time()
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            prometheus.RUNS.labels(side, command, outcome).inc()
            log.info("%s of %ss: %s", command, side, outcome)


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
    whose = "queries" if job.side == "query" else "items"
    language = job.generator.fingerprint.get("language")
    spoken = f"; their language is {language}" if language else ""
    if isinstance(job.generator, Statistical):
        spoken += f"; {job.generator.told_encoder}"
    return f"keywords of {whose} by {job.generator.fingerprint.get('kind')} ({job.why}{spoken})"


def carry_out(
    workspace: Workspace,
    request: RebuildRequest,
    job: Job,
    lease: Lease,
    bar: ProgressBar,
    say: Say,
) -> Outcome:
    """Generate what a job lacks, freeze the side's keyword sets, and push and publish the snapshot
    as far as asked. Closes the generator. Raises as `rebuild_side` does.
    """
    say(generator_line(job))
    with job.generator:
        rebuilt = _generated(workspace, request, job, lease, bar, say)
        if isinstance(job.generator, Statistical) and job.generator.told_judge:
            say(job.generator.told_judge)
    snapshot, push = rebuilt.snapshot, pushes(request)
    with logs.bound(snapshot=snapshot.id):
        done = release(
            workspace,
            [snapshot.id],
            push=push,
            switch=push and request.publish,
            say=say,
            check_lease=lease.check,
        )
    index, prompted = done.indexes.get(snapshot.side), job.generator.reads == "prompt"
    return Outcome(rebuilt, index, push and request.publish, job.why, prompted)


def _generated(
    workspace: Workspace,
    request: RebuildRequest,
    job: Job,
    lease: Lease,
    bar: ProgressBar,
    say: Say,
) -> Rebuilt:
    started = time.monotonic()
    with stage("plan", job.side):
        plan = make_plan(job)
    on_workers = (request.workers or workspace.settings.rebuild.workers) == "celery"
    what = "queries" if job.side == "query" else "items"
    with bar(f"keywords of {what}", len(plan.missing)) as advance:
        # A kept fit takes seconds, and workers fit for themselves.
        if on_workers and not isinstance(job.generator, KeptFit):
            from indexers.fleet.broker import Broker, queue_of
            from indexers.fleet.coordinator import Coordinator

            settings = workspace.generator_settings(job.side, request.generator)
            broker = Broker(workspace.settings.redis, queue_of(job.side, settings))
            transient = Coordinator(job, plan, lease, broker, say, advance).work()
        else:
            transient = generate_missing(job, plan, advance)
    return freeze(job, plan, transient, started)


def generate_and_freeze(
    job: Job, plan: Plan | None = None, advance: Advance | None = None
) -> Rebuilt:
    """Generate what is missing in this process, and freeze the side's keyword sets.

    Raises:
        ServiceError: the generator's service is away; what was answered is kept.
        StorageError: the store is full or read-only; what was written is kept.
    """
    started = time.monotonic()
    plan = plan or make_plan(job)
    return freeze(job, plan, generate_missing(job, plan, advance or (lambda _: None)), started)


_WEIGHED_AT_ONCE = 64

Weigh = Callable[[Iterable[Row]], Iterator[Row]]


def weigher(workspace: Workspace, side: Side, writer: str, *, serving: bool = True) -> Weigh | None:
    """What gives the rows of queries their weights; None where `writer` gives them itself, or
    nothing can.

    A language model gives its keywords no weights. They come from the ranker of `statistical`,
    where the store has it fitted for this data set.
    Nothing is fitted here and no keyword is added: the retrieved sets stay what they are.

    Args:
        serving: weigh for the items that serve, and else for the store's newest ones.
    """
    wanted = side == "query" and workspace.settings.keywords.weights and writer != "statistical"
    if not wanted or not is_installed():
        return None
    if len(workspace.dataset.queries.get("train", ())) < LEAST_QUERIES:
        return None
    with workspace.generator("query", "statistical") as generator:
        assert isinstance(generator, Statistical)
        items = _items(workspace, serving=serving) if generator.is_fitted else None
    return None if items is None else lambda rows: _weighed(generator, items, rows)


def _items(workspace: Workspace, *, serving: bool) -> Snapshot | None:
    asked = workspace.backend.serving().get("item") if serving else None
    try:
        return workspace.snapshot(asked, "item")
    except SnapshotError:
        return None


def _weighed(generator: Statistical, items: Snapshot, rows: Iterable[Row]) -> Iterator[Row]:
    mirror = Mirror.build(items)
    for some in batched(rows, _WEIGHED_AT_ONCE):
        queries = [Query(row.id, row.text) for row in some]
        sets = [row.keywords for row in some]
        found = generator.artefact.weigh(queries, sets, mirror)
        for row, weights in zip(some, found, strict=True):
            if row.weights or not weights:
                yield row
            else:
                words = (*row.keywords, row.self_keyword)
                yield replace(row, weights=tuple(weights.get(word, 1.0) for word in words))
