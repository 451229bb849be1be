"""Turns answers into a snapshot: they are parsed into keyword sets, counted and frozen.

`cogr.keywords` parses keywords, `cogr.records` extra fields. Rows stream in id order. Memory:
one batch of rows, and a reason for each entity without keywords.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from cogr.errors import SnapshotError, StorageError
from cogr.keywords import cut_to_budget, parse, self_keyword
from cogr.records import Entity, Item, Query, self_text, typed
from cogr.snapshots import (
    Provenance,
    Row,
    Snapshot,
    read_manifest,
    write_set_aside,
)
from cogr.snapshots.texts import MAX_FILES, Texts, TextsWriter
from cogr.snapshots.writing import write_snapshot
from indexers.generators import Answer, Completion, batched, query_row
from indexers.rebuild.plan import Carried, Job, Plan
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import stage

_ROWS = 8192
"""Answers that are read from the cache at once."""


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild did.

    Attributes:
        cut_to_budget: entities that wrote more than K_max keywords now.
        truncated: completions that the length limit ended.
        set_aside: id -> reason, for entities without keywords of their own; they keep their own
            text as keyword.
        why: the reason for the generator.
        prompted: whether the generator read prompts; others read the entities themselves.
        index: where the snapshot was pushed to, if it was.
    """

    snapshot: Snapshot
    generated: int
    cut_prompts: int
    cut_to_budget: int
    set_aside: Mapping[str, str]
    truncated: int
    seconds: float
    why: str
    prompted: bool
    index: str | None = None
    published: bool = False

    def as_dict(self) -> dict[str, Any]:
        manifest = self.snapshot.manifest
        return {
            "snapshot": self.snapshot.id,
            "side": self.snapshot.side,
            "items": manifest.entities,
            "failures": len(self.set_aside),
            "seconds": round(self.seconds, 3),
            "generated": self.generated,
            "keywords": manifest.keywords,
            "vocabulary": manifest.vocabulary,
            "empty": manifest.empty,
            "cut_prompts": self.cut_prompts,
            "cut_to_budget": self.cut_to_budget,
            "generator": manifest.generator,
            "fields": dict(manifest.fields),
            "why": self.why,
            "prompted": self.prompted,
            "truncated": self.truncated,
            "index": self.index,
            "published": self.published,
        }


def freeze(job: Job, plan: Plan, transient: Mapping[str, str]) -> Rebuilt:
    """All answers, now that none is missing, as a snapshot.

    Equal answers give an equal snapshot: with nothing changed, the snapshot that exists is
    returned.

    Args:
        plan: as it was before anything was generated.
        transient: reasons of the failures that the cache does not remember, by entity id.
    """
    with (
        stage("assemble", job.side),
        _no_garbage_collection(),
        TextsWriter(job.store, _texts_of_parent(job)) as texts,
    ):
        assembly = _Assembly(job, plan, transient, texts)
        rows = assembly.rows()
        snapshot = write_snapshot(job.store, job.side, rows, assembly.provenance, plan.fields)
        texts.keep()  # Once more: a prune may have run before the manifest named them.
        write_set_aside(job.store, snapshot.id, assembly.set_aside)
    prometheus.ENTITIES.labels(job.side).set(snapshot.manifest.entities)
    prometheus.SET_ASIDE.labels(job.side).set(len(assembly.set_aside))
    return Rebuilt(
        snapshot,
        len(plan.missing),
        plan.cut_prompts,
        assembly.cut_to_budget,
        assembly.set_aside,
        assembly.truncated,
        time.monotonic() - plan.started,
        job.why,
        job.generator.reads == "prompt",
    )


def _texts_of_parent(job: Job) -> Texts | None:
    try:
        names = read_manifest(job.store, job.parent).texts or () if job.parent else ()
        return Texts(job.store, names) if 0 < len(names) < MAX_FILES else None
    except SnapshotError:
        if job.carried is not None:  # Its rows name these texts.
            raise
        return None  # All are written.


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


class _Assembly:
    def __init__(
        self, job: Job, plan: Plan, transient: Mapping[str, str], texts: TextsWriter
    ) -> None:
        self._job, self._plan, self._transient, self._texts = job, plan, transient, texts
        settings = job.workspace.settings
        self._keywords = settings.keywords
        self._keeps_texts = job.side == "item" and settings.publish.search_text
        self._cached = job.cache.load(plan.keys)
        carried = job.carried
        self.set_aside = dict(carried.set_aside) if carried else {}
        self.cut_to_budget = self.truncated = 0

    def rows(self) -> Iterator[Row]:
        # Raises DataError, while they pass, for an extra field that does not fit its type.
        rows = self._written()
        if self._job.carried is not None:
            rows = heapq.merge(rows, self._carried(self._job.carried), key=lambda row: row.id)
        if not self._keywords.weights:
            rows = (replace(row, weights=()) for row in rows)
        if types := self._plan.fields:
            rows = (replace(row, fields_json=typed(row.id, row.fields_json, types)) for row in rows)
        return rows

    def _written(self) -> Iterator[Row]:
        for start in range(0, len(self._plan.entities), _ROWS):
            entities = list(self._plan.entities[start : start + _ROWS])
            answers = self._cached.answers([entity.id for entity in entities], start)
            rows: Iterable[Row] = map(self._row, entities, answers)
            if self._keeps_texts:
                texts = [one.text if isinstance(one, Item) else "" for one in entities]
                keys = self._texts.add(texts)
                rows = (replace(row, body=key) for row, key in zip(rows, keys, strict=True))
            yield from rows

    def _carried(self, carried: Carried) -> Iterator[Row]:
        names = carried.snapshot.manifest.texts or ()
        if len(names) < MAX_FILES:  # Its files are named on.
            yield from carried.rows()
            return
        kept = Texts(self._job.store, names)
        for rows in batched(carried.rows(), _ROWS):
            self._texts.add(kept.of([row.body for row in rows]))
            yield from rows

    def _row(self, entity: Entity, answer: Answer | None) -> Row:
        text, k_max = self_text(entity), self._keywords.k_max
        fields = entity.fields_json if isinstance(entity, Item) else ""
        if not isinstance(answer, Completion):
            self.set_aside[entity.id] = answer.reason if answer else self._why(entity.id)
            return Row(entity.id, text, (), fields)
        parsed, own = parse(answer.text), self_keyword(text)
        self.truncated += answer.truncated
        keywords = tuple(keyword for keyword in parsed if keyword != own)
        # A generator that reads the collection may answer that an entity needs no keywords. An
        # empty answer of a language model is a failure.
        if not parsed and self._job.generator.reads == "prompt":
            why = ", which generator.sampling.max_tokens cut" if answer.truncated else ""
            self.set_aside[entity.id] = f"no keywords in the output{why}"
        self.cut_to_budget += len(keywords) > k_max
        if isinstance(entity, Query):
            return query_row(answer, entity, parsed, k_max)
        return Row(entity.id, text, cut_to_budget(keywords, k_max), fields, own=own)

    def _why(self, id_: str) -> str:
        if id_ not in self._transient:
            raise StorageError(
                f"The answer of {id_!r} is missing from the cache in {self._job.store.url}; run "
                "the same command again."
            )
        return self._transient[id_]

    def provenance(self) -> Provenance:
        job, lineage = self._job, self._job.workspace.dataset.lineage
        return Provenance(
            round=job.round,
            k_max=self._keywords.k_max,
            prompt_hash=job.template.hash,
            generator=dict(job.generator.fingerprint),
            dataset_hash=job.workspace.dataset.dataset_hash,
            parent=job.parent,
            cut_to_budget=self.cut_to_budget,
            set_aside=len(self.set_aside),
            notes={
                "cut_prompts": self._plan.cut_prompts,
                **({"lineage": dict(lineage)} if lineage else {}),
            },
            texts=self._texts.keep() if self._keeps_texts else None,
        )
