"""Turns answers into a snapshot: they are parsed into keyword sets, counted and frozen.

`cogr.keywords` parses keywords, `cogr.records` extra fields. Rows stream in id order. Memory:
one batch of rows, and a reason for each entity without keywords.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cogr.errors import StorageError
from cogr.keywords import cut_to_budget, parse, self_keyword
from cogr.records import Entity, FieldType, Item, self_text, typed
from cogr.snapshots import (
    Provenance,
    Row,
    Snapshot,
    rounded,
    write_set_aside,
)
from cogr.snapshots.writing import write_snapshot
from indexers.generators import Answer, Failure, weights_of
from indexers.rebuild.cache import Cached, GenerationCache
from indexers.rebuild.plan import Carried, Job, Plan
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import stage

_ROWS = 8192
"""Answers that are read from the cache at once."""


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild did.

    Attributes:
        cut_to_budget: entities that wrote more than K_max keywords.
        truncated: completions that the length limit ended.
        set_aside: id -> reason, for entities without keywords of their own; they keep their own
            text as keyword.
    """

    snapshot: Snapshot
    generated: int
    cut_prompts: int
    cut_to_budget: int
    set_aside: Mapping[str, str]
    truncated: int
    seconds: float


def freeze(job: Job, plan: Plan, transient: Mapping[str, Failure], started: float) -> Rebuilt:
    """All answers, now that none is missing, as a snapshot.

    Equal answers give an equal snapshot: with nothing changed, the snapshot that exists is
    returned.

    Args:
        plan: as it was before anything was generated.
        transient: failures that the cache does not remember, by entity id.
        started: when the rebuild began, by time.monotonic().
    """
    with stage("assemble", job.side), _no_garbage_collection():
        cache = GenerationCache(job.store, job.generator.fingerprint)
        assembly = _Assembly(job, plan, cache.load(plan.keys), transient)
        rows = assembly.rows()
        if job.weigh is not None:
            rows = job.weigh(rows)
        if job.carried is not None:
            rows = heapq.merge(rows, _carried(job, job.carried), key=lambda row: row.id)
            assembly.set_aside.update(job.carried.set_aside)
            assembly.cut_to_budget += job.carried.cut_to_budget
        rows = typed_rows(rows, plan.fields)
        snapshot = write_snapshot(job.store, job.side, rows, assembly.provenance, plan.fields)
        write_set_aside(job.store, snapshot.id, assembly.set_aside)
    _count(snapshot, len(assembly.set_aside))
    return Rebuilt(
        snapshot,
        len(plan.missing),
        plan.cut_prompts,
        assembly.cut_to_budget,
        assembly.set_aside,
        assembly.truncated,
        time.monotonic() - started,
    )


def _carried(job: Job, carried: Carried) -> Iterator[Row]:
    return (row if job.weights else replace(row, weights=()) for row in carried.rows())


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    # There are many rows and no reference cycles: collection takes a seventh of the time for
    # nothing.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def typed_rows(rows: Iterable[Row], types: Mapping[str, FieldType]) -> Iterator[Row]:
    """The rows, with their extra fields in the form in which snapshots keep them.

    Raises DataError, while they pass, for a value that does not fit its type.
    """
    if not types:
        return iter(rows)
    return (replace(row, fields_json=typed(row.id, row.fields_json, types)) for row in rows)


def _count(snapshot: Snapshot, set_aside: int) -> None:
    prometheus.ENTITIES.labels(snapshot.side).set(snapshot.manifest.entities)
    prometheus.SET_ASIDE.labels(snapshot.side).set(set_aside)


@dataclass
class _Assembly:
    job: Job
    plan: Plan
    cached: Cached
    transient: Mapping[str, Failure]
    cut_to_budget: int = 0
    set_aside: dict[str, str] = field(default_factory=dict)
    truncated: int = 0

    def rows(self) -> Iterator[Row]:
        for start in range(0, len(self.plan.entities), _ROWS):
            entities = list(self.plan.entities[start : start + _ROWS])
            answers = self.cached.answers([entity.id for entity in entities], start)
            for entity, answer in zip(entities, answers, strict=True):
                yield self._row(entity, answer or self._transient(entity))

    def _transient(self, entity: Entity) -> Failure:
        if entity.id not in self.transient:
            raise StorageError(
                f"The answer of {entity.id!r} has vanished from the cache in "
                f"{self.job.store.url}; run the same command again."
            )
        return self.transient[entity.id]

    def _row(self, entity: Entity, answer: Answer) -> Row:
        text, fields = self_text(entity), entity.fields_json if isinstance(entity, Item) else ""
        if isinstance(answer, Failure):
            self.set_aside[entity.id] = answer.reason
            return Row(entity.id, text, (), fields)
        parsed, own = parse(answer.text), self_keyword(text)
        self.truncated += answer.truncated
        keywords = tuple(keyword for keyword in parsed if keyword != own)
        # A generator that reads the collection may answer that an entity needs no keywords. An
        # empty answer of a language model is a failure.
        if not parsed and self.job.generator.reads == "prompt":
            self.set_aside[entity.id] = "no keywords in the output"
        kept = cut_to_budget(keywords, self.job.k_max)
        self.cut_to_budget += len(kept) < len(keywords)
        if self.job.side == "item":
            return Row(entity.id, text, kept, fields, own=own)
        weights = weights_of(answer, (*kept, own)) if self.job.weights else ()
        sure = None if answer.confidence is None else rounded(answer.confidence)
        return Row(entity.id, text, kept, fields, weights, sure, own)

    @property
    def provenance(self) -> Callable[[], Provenance]:
        return lambda: Provenance(
            round=self.job.round,
            k_max=self.job.k_max,
            prompt_hash=self.job.prompter.template.hash,
            generator=dict(self.job.generator.fingerprint),
            dataset_hash=self.job.dataset_hash,
            parent=self.job.parent,
            cut_to_budget=self.cut_to_budget,
            set_aside=len(self.set_aside),
            notes={
                "cut_prompts": self.plan.cut_prompts,
                **({"lineage": dict(self.job.lineage)} if self.job.lineage else {}),
            },
        )
