"""A rebuild in local mode: plan, generate what is missing, assemble a snapshot. Pushing is
`indexers.release.push`.

One rebuild reads like this: every entity gets a prompt and a cache key; entities without a cached
answer go to the generator in one stream; answers are flushed to the cache every few seconds; when
nothing is missing, all answers are parsed into keyword sets and frozen. Killed at any moment, the
next call generates only what is missing. In memory are a few numbers an entity, never a whole side
of texts, answers or keyword sets.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from cogr.datasets.items import in_id_order
from cogr.errors import SnapshotError, StorageError
from cogr.item_fields import FieldType, typed, types_of
from cogr.keywords import cut_to_budget, over_budget, parse_counted, self_keyword
from cogr.prompts import Prompt, Prompter
from cogr.records import Entity, Item, Side, self_text
from cogr.snapshots import Provenance, Row, Snapshot, open_snapshot, write_snapshot
from cogr.store import Store
from indexers.build.assembled import Note, digest_of, recall, remember
from indexers.build.cache import Cached, GenerationCache, fingerprint_hash
from indexers.build.extra_fields import rows_with_fields, typed_rows
from indexers.build.generation import CacheWriter, generate_into
from indexers.build.keys import Keys, request_key
from indexers.build.parse_stats import ParseStats
from indexers.generators.protocol import Answer, Failure, Generator, Request
from indexers.telemetry import prometheus
from indexers.telemetry.traces import stage

SearchResults = Callable[[Entity], Sequence[str]]
Advance = Callable[[int], None]

_ASSEMBLE = 8192


@dataclass(frozen=True)
class Carried:
    """Rows of another snapshot that a job takes over instead of generating them.

    Attributes:
        snapshot: whose rows.
        without: ids of rows that are not taken: changed and gone ones.
        set_aside: id -> reason, of the rows that are taken.
        cut_to_budget: how many of them were cut to the budget.
        fields_of: items whose extra fields take the place of the rows' own, in any order; None
            leaves these.
    """

    snapshot: Snapshot
    without: Collection[str]
    set_aside: Mapping[str, str] = field(default_factory=dict)
    cut_to_budget: int = 0
    fields_of: Sequence[Entity] | None = None

    def rows(self) -> Iterator[Row]:
        """The rows in id order, streaming."""
        rows = (row for row in self.snapshot.rows() if row.id not in self.without)
        if self.fields_of is None or not self.snapshot.manifest.fields:
            return rows
        return rows_with_fields(rows, self.fields_of)


@dataclass(frozen=True)
class Job:
    """Everything that a rebuild needs to know.

    Attributes:
        side: which side.
        entities: the whole side without what is carried, in any order, ids distinct.
        generator: what writes the keywords.
        prompter: fills the side's template.
        store: where cache and snapshot go.
        k_max: budget; a longer keyword set is cut to it and counted.
        round: number of the round that the snapshot belongs to; 0 outside of training.
        parent: the snapshot that it follows.
        search_results: what goes into {search_results} of the prompt variant `search`.
        carried: rows of another snapshot that go into this one as they are.
        why: why this generator, for the report.
        fields: names of the extra fields that items carry.
        field_types: types of some of these.
    """

    side: Side
    entities: Sequence[Entity]
    generator: Generator
    prompter: Prompter
    store: Store
    dataset_hash: str
    k_max: int = 30
    round: int = 0
    parent: str | None = None
    search_results: SearchResults | None = None
    flush_answers: int = 512
    flush_seconds: float = 20.0
    carried: Carried | None = None
    why: str = ""
    fields: Sequence[str] = ()
    field_types: Mapping[str, FieldType] = field(default_factory=dict)

    def extra_fields(self) -> Iterator[tuple[str, str]]:
        """(id, extra fields as the data has them) of every item that the snapshot will hold."""
        yield from (
            (entity.id, entity.fields_json) for entity in self.entities if isinstance(entity, Item)
        )
        if self.carried is not None:
            yield from ((row.id, row.fields_json) for row in self.carried.rows())

    def request(self, entity: Entity) -> Request:
        """The request of one entity."""
        return Request(entity.id, entity, self.prompt(entity))

    def prompt(self, entity: Entity) -> Prompt:
        """The prompt of one entity."""
        return self.prompter(entity, self.search_results(entity) if self.search_results else ())


@dataclass(frozen=True)
class Plan:
    """What a rebuild would do: entities in id order, their cache keys, and the positions of those
    without an answer.

    Attributes:
        fields: types of the extra fields that items carry.
    """

    entities: Sequence[Entity]
    keys: Keys
    missing: BitMap
    cut_prompts: int
    fields: Mapping[str, FieldType] = field(default_factory=dict)


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild did.

    Attributes:
        snapshot: the frozen keyword sets.
        generated: entities that the generator was asked for now.
        cut_prompts: entities whose description was cut to the token budget.
        cut_to_budget: entities that wrote more than K_max keywords.
        set_aside: id -> reason, for entities without keywords of their own; they keep their own
            text as keyword.
        parse_stats: how well the completions kept to a list of keywords.
    """

    snapshot: Snapshot
    generated: int
    cut_prompts: int
    cut_to_budget: int
    set_aside: Mapping[str, str]
    parse_stats: ParseStats
    seconds: float

    @property
    def failure_share(self) -> float:
        """Share of entities that were set aside."""
        return len(self.set_aside) / max(1, self.snapshot.manifest.entities)


def make_plan(job: Job) -> Plan:
    """Prompts, keys and cached answers of every entity. Costs no generation.

    Raises:
        DataError: extra fields that are of several types, or not of the type that is set.
    """
    fields = _field_types(job)
    entities = in_id_order(job.entities)
    data, cut, reads = bytearray(), 0, job.generator.reads
    for entity in entities:
        prompt = job.prompt(entity)
        data += request_key(entity.id, prompt, reads)
        cut += prompt.cut
    keys = Keys(data)
    plan = Plan(entities, keys, _cache(job).missing(keys), cut, fields)
    prometheus.ENTITIES.labels(job.side).set(len(entities))
    prometheus.TO_GENERATE.labels(job.side).set(len(plan.missing))
    prometheus.ANSWERED.labels(job.side).set(0)
    return plan


def _field_types(job: Job) -> Mapping[str, FieldType]:
    """The types of the extra fields, after every value was looked at: before anything
    is generated.
    """
    if job.side != "item" or not job.fields:
        return {}
    types = types_of(job.extra_fields(), job.fields, job.field_types)
    for id_, fields_json in job.extra_fields():
        typed(id_, fields_json, types)
    return types


def _cache(job: Job) -> GenerationCache:
    return GenerationCache(job.store, job.generator.fingerprint)


def rebuild(job: Job, plan: Plan | None = None, advance: Advance | None = None) -> Rebuilt:
    """Generate what is missing and freeze the side's keyword sets.

    Args:
        job: what to rebuild.
        plan: a plan of this job made just before, when there is one.
        advance: called with the number of entities answered since the last call.

    Raises:
        ServiceError: the generator's service is away; what was answered is kept.
        StorageError: the store is full or read-only; what was written is kept.
    """
    started = time.monotonic()
    plan = plan or make_plan(job)
    return freeze(job, plan, generate_missing(job, plan, advance or (lambda _: None)), started)


def freeze(job: Job, plan: Plan, passing: Mapping[str, Failure], started: float) -> Rebuilt:
    """All answers, now that none is missing, as a snapshot.

    Args:
        plan: as it was before anything was generated.
        passing: failures that the cache does not remember, by entity id.
        started: when the rebuild began, by time.monotonic().
    """
    with stage("assemble", job.side) as step:
        cache = _cache(job)
        digest = _digest(job, plan, cache.state)
        before = (
            None
            if plan.missing
            else _as_before(job, plan, recall(job.store, job.side, digest), started)
        )
        if before is not None:
            return before
        assembly = _Assembly(job, plan, cache.load(plan.keys), passing)
        rows = assembly.rows()
        if job.carried is not None:
            rows = heapq.merge(rows, job.carried.rows(), key=lambda row: row.id)
            assembly.set_aside.update(job.carried.set_aside)
            assembly.cut_to_budget += job.carried.cut_to_budget
        rows = typed_rows(rows, plan.fields)
        snapshot = write_snapshot(job.store, job.side, rows, assembly.provenance, plan.fields)
        _write_set_aside(job.store, snapshot.id, assembly.set_aside)
        if not passing and job.carried is None:
            remember(job.store, job.side, assembly.note(digest, snapshot.id))
        step.add(
            snapshot=snapshot.id,
            entities=snapshot.manifest.entities,
            set_aside=len(assembly.set_aside),
        )
    _tell(snapshot, len(assembly.set_aside))
    return Rebuilt(
        snapshot,
        len(plan.missing),
        plan.cut_prompts,
        assembly.cut_to_budget,
        assembly.set_aside,
        assembly.stats,
        time.monotonic() - started,
    )


def _digest(job: Job, plan: Plan, cache: str) -> str:
    """Of all that decides the rows; "" where rows are carried over."""
    if job.carried is not None:
        return ""
    return digest_of(
        plan.entities,
        plan.keys,
        side=job.side,
        round=job.round,
        k_max=job.k_max,
        generator=fingerprint_hash(job.generator.fingerprint),
        reads=job.generator.reads,
        cache=cache,
        fields=dict(plan.fields),
    )


def _as_before(job: Job, plan: Plan, known: Note | None, started: float) -> Rebuilt | None:
    """What a rebuild comes to when nothing has changed since the last one; None when it must be
    assembled.
    """
    if known is None:
        return None
    snapshot = open_snapshot(job.store, known.snapshot, verify=False)
    try:
        set_aside = read_set_aside(job.store, snapshot.id)
    except SnapshotError:
        return None
    if len(set_aside) != known.set_aside:
        return None
    _tell(snapshot, len(set_aside))
    seconds = time.monotonic() - started
    return Rebuilt(
        snapshot, 0, plan.cut_prompts, known.cut_to_budget, set_aside, known.stats, seconds
    )


def _tell(snapshot: Snapshot, set_aside: int) -> None:
    """A frozen snapshot's figures, as metrics."""
    manifest = snapshot.manifest
    figures = {
        prometheus.SET_ASIDE: set_aside,
        prometheus.SNAPSHOT_KEYWORDS: manifest.keywords,
        prometheus.SNAPSHOT_VOCABULARY: manifest.vocabulary,
        prometheus.SNAPSHOT_EMPTY: manifest.empty,
        prometheus.SNAPSHOT_CUT: manifest.cut_to_budget,
    }
    for gauge, value in figures.items():
        gauge.labels(manifest.side).set(value)


def generate_missing(job: Job, plan: Plan, advance: Advance) -> dict[str, Failure]:
    """Ask for every missing answer; flush to the cache as they come.

    Returns the transient failures, which are not remembered, by entity id.

    Raises: as of `rebuild`.
    """
    if not plan.missing:
        return {}
    answered = prometheus.ANSWERED.labels(job.side)

    def each(_: Answer) -> None:
        answered.inc()
        advance(1)

    with stage("generate", job.side) as step:
        writer = CacheWriter(_cache(job), job.side, job.flush_answers, job.flush_seconds)
        keyed = ((plan.keys[i], job.request(plan.entities[i])) for i in plan.missing)
        generated = generate_into(writer, job.generator, keyed, len(plan.missing), each)
        step.add(generated=len(plan.missing), transient_failures=len(generated.transient))
    return generated.transient


@dataclass
class _Assembly:
    """Turns answers into rows, counting on the way."""

    job: Job
    plan: Plan
    cached: Cached
    passing: Mapping[str, Failure]
    cut_to_budget: int = 0
    set_aside: dict[str, str] = field(default_factory=dict)
    stats: ParseStats = field(default_factory=ParseStats)

    def rows(self) -> Iterator[Row]:
        for start in range(0, len(self.plan.entities), _ASSEMBLE):
            entities = list(self.plan.entities[start : start + _ASSEMBLE])
            answers = self.cached.answers([entity.id for entity in entities], start)
            for entity, answer in zip(entities, answers, strict=True):
                yield self._row(entity, answer or self._passing(entity))

    def _passing(self, entity: Entity) -> Failure:
        if entity.id not in self.passing:
            raise StorageError(
                f"The answer of {entity.id!r} has vanished from the cache in "
                f"{self.job.store.url}; run the same command again."
            )
        return self.passing[entity.id]

    def _row(self, entity: Entity, answer: Answer) -> Row:
        text, fields = self_text(entity), entity.fields_json if isinstance(entity, Item) else ""
        if isinstance(answer, Failure):
            self.set_aside[entity.id] = answer.reason
            return Row(entity.id, text, (), fields)
        parsed = parse_counted(answer.text)
        self.stats.add(answer, parsed)
        own = self_keyword(text)
        keywords = tuple(keyword for keyword in parsed.keywords if keyword != own)
        # A generator that reads the collection may find that nothing is worth saying; a language
        # model that says nothing failed.
        if not parsed.keywords and self.job.generator.reads == "prompt":
            self.set_aside[entity.id] = "no keywords in the output"
        self.cut_to_budget += over_budget(keywords, self.job.k_max)
        return Row(entity.id, text, cut_to_budget(keywords, self.job.k_max), fields)

    def note(self, digest: str, snapshot: str) -> Note:
        """What a rerun with nothing changed needs to know."""
        aside = len(self.set_aside)
        return Note(
            digest=digest,
            snapshot=snapshot,
            cut_to_budget=self.cut_to_budget,
            set_aside=aside,
            stats=self.stats,
        )

    @property
    def provenance(self) -> Callable[[], Provenance]:
        """Read by the writer after the last row, when the counts are complete."""
        return lambda: Provenance(
            round=self.job.round,
            k_max=self.job.k_max,
            prompt_hash=self.job.prompter.template.hash,
            generator=dict(self.job.generator.fingerprint),
            dataset_hash=self.job.dataset_hash,
            parent=self.job.parent,
            cut_to_budget=self.cut_to_budget,
            set_aside=len(self.set_aside),
            notes={"cut_prompts": self.plan.cut_prompts},
        )


def _write_set_aside(store: Store, snapshot_id: str, set_aside: Mapping[str, str]) -> None:
    lines = (
        json.dumps({"id": id_, "reason": reason}, ensure_ascii=False)
        for id_, reason in set_aside.items()
    )
    store.write(_set_aside_path(snapshot_id), "".join(line + "\n" for line in lines).encode())


def read_set_aside(store: Store, snapshot_id: str) -> dict[str, str]:
    """id -> reason of a snapshot's entities that were set aside; empty where nothing is known of
    it.

    Raises SnapshotError when the file is damaged.
    """
    path = _set_aside_path(snapshot_id)
    try:
        lines = store.read(path).decode().splitlines() if store.exists(path) else []
        return {str(row["id"]): str(row["reason"]) for row in map(json.loads, lines)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotError(
            f"The file {path} in {store.url} is damaged; run cogr-index rebuild --side "
            f"{snapshot_id.split('-')[0]}."
        ) from error


def _set_aside_path(snapshot_id: str) -> str:
    return f"snapshots/{snapshot_id}/set_aside.jsonl"
