"""The plan of a rebuild: each entity's prompt and cache key, and which have no answer yet.

A rebuild may be killed at any moment: the next call generates only what is missing. Memory: a few
numbers an entity, never the texts or answers of a whole side. `indexers.rebuild.assembly` turns the
answers into a snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from cogr.datasets.items import in_id_order
from cogr.prompts import Prompt, Template
from cogr.records import (
    Advance,
    Entity,
    FieldType,
    Item,
    Side,
    typed,
    types_of,
)
from cogr.snapshots import Row, Snapshot
from cogr.store import Store
from indexers.generators import Generator, Request
from indexers.generators.cache import GenerationCache, Keys, generate_into, request_key
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace

PromptOf = Callable[[Entity], Prompt]


@dataclass(frozen=True)
class Carried:
    """Rows of another snapshot that a job takes over instead of generating them.

    Attributes:
        set_aside: id -> reason, of the rows that are taken.
    """

    snapshot: Snapshot
    without: Collection[str]
    set_aside: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> Iterator[Row]:
        """The rows in id order, streaming."""
        return (row for row in self.snapshot.rows() if row.id not in self.without)


@dataclass(frozen=True)
class Job:
    """Whose keywords a rebuild writes, and by which generator.

    Attributes:
        workspace: its store, its data set, and the settings of prompts, keywords and fields.
        entities: the whole side without what is carried, in any order, ids distinct.
        prompt: writes the prompt of one of the entities.
        why: the reason for the generator.
    """

    workspace: Workspace
    side: Side
    entities: Sequence[Entity]
    generator: Generator
    prompt: PromptOf
    parent: str | None = None
    round: int = 0
    carried: Carried | None = None
    why: str = ""

    @property
    def store(self) -> Store:
        return self.workspace.store

    @property
    def cache(self) -> GenerationCache:
        return GenerationCache(self.store, self.generator.fingerprint)

    @property
    def template(self) -> Template:
        return self.workspace.settings.prompts.template(self.side)

    def extra_fields(self) -> Iterator[tuple[str, str]]:
        """(id, extra fields as in the data) of every item that the snapshot will hold."""
        yield from (
            (entity.id, entity.fields_json) for entity in self.entities if isinstance(entity, Item)
        )
        if self.carried is not None:
            yield from ((row.id, row.fields_json) for row in self.carried.rows())

    def request(self, entity: Entity) -> Request:
        return Request(entity.id, entity, self.prompt(entity))


@dataclass(frozen=True)
class Plan:
    """The work of a rebuild: entities in id order, their cache keys, and the positions of those
    without an answer.

    Attributes:
        fields: types of the items' extra fields.
        started: by time.monotonic().
    """

    entities: Sequence[Entity]
    keys: Keys
    missing: BitMap
    cut_prompts: int
    fields: Mapping[str, FieldType]
    started: float


def make_plan(job: Job) -> Plan:
    """Prompts, keys and cached answers of every entity. Generates nothing.

    Raises:
        DataError: extra fields that are of several types, or too long.
    """
    started, fields = time.monotonic(), _field_types(job)
    entities = in_id_order(job.entities)
    data, cut, reads = bytearray(), 0, job.generator.reads
    for entity in entities:
        prompt = job.prompt(entity)
        data += request_key(entity.id, prompt, reads)
        cut += prompt.cut
    keys = Keys(data)
    plan = Plan(entities, keys, job.cache.missing(keys), cut, fields, started)
    prometheus.ENTITIES.labels(job.side).set(len(entities))
    prometheus.TO_GENERATE.labels(job.side).set(len(plan.missing))
    prometheus.ANSWERED.labels(job.side).set(0)
    return plan


def _field_types(job: Job) -> Mapping[str, FieldType]:
    names = job.workspace.settings.publish.fields
    if job.side != "item" or not names:
        return {}
    types = types_of(job.extra_fields(), names)
    for id_, fields_json in job.extra_fields():
        typed(id_, fields_json, types)
    return types


def generate_missing(job: Job, plan: Plan, advance: Advance = lambda _: None) -> dict[str, str]:
    """Generate every missing answer, and write answers to the cache as they come.

    Returns the reasons of the failures that the cache does not remember, by entity id.

    Raises: as `generate_into`.
    """
    if not plan.missing:
        return {}
    answered = prometheus.ANSWERED.labels(job.side)

    def each() -> None:
        answered.inc()
        advance(1)

    keyed = ((plan.keys[i], job.request(plan.entities[i])) for i in plan.missing)
    with stage("generate", job.side):
        return generate_into(job.cache, job.side, job.generator, keyed, each)
