"""The inputs of a stage, and the record of its output.

A stage reads the round under way, the round that it is built upon, the training queries, and the
mirrors and worlds of snapshots: all from the run folder and the store. Nothing is kept in memory
between stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cogr.matching.mirror import Mirror
from cogr.records import Query, Say, Side
from cogr.rewards import World
from cogr.settings.training import TrainingSettings
from cogr.snapshots import Snapshot, open_snapshot
from indexers.backends.memory import mirror_of
from indexers.workspace import Workspace
from trainers.training.rounds import Round, Run
from trainers.word_model import WordModel


@dataclass(frozen=True)
class Inputs:
    """What a stage reads.

    Attributes:
        base: the round that is built upon; None in round 0.
        retries: how often the stage ran out of memory.
    """

    workspace: Workspace
    run: Run
    round: Round
    base: Round | None
    say: Say
    retries: int = 0

    @property
    def settings(self) -> TrainingSettings:
        return self.workspace.settings.training

    @property
    def before(self) -> Round:
        """The round that is built upon, which every round after SFT has."""
        assert self.base is not None
        return self.base

    def log(self, side: Side) -> Path:
        """Where a training stage writes its step figures."""
        return self.run.folder("logs") / f"r{self.round.number:03d}-{side}.jsonl"

    def snapshot(self, id_: str) -> Snapshot:
        return open_snapshot(self.workspace.store, id_)

    @property
    def train(self) -> Sequence[Query]:
        """Training queries; each has a relevant item. Raises DataError when there is none."""
        return self.workspace.dataset.require("train")

    @cached_property
    def relevant(self) -> Mapping[str, frozenset[str]]:
        """Training queries and their relevant items."""
        return {query.id: self.workspace.dataset.relevant[query.id] for query in self.train}

    @cached_property
    def invented(self) -> Mapping[Query, frozenset[str]]:
        """Further queries for fine-tuning, with their relevant items."""
        count = self.settings.invented_queries
        return WordModel(self.workspace.dataset).invent(count, self.settings.seed) if count else {}

    def world(self, items: Mirror, queries: Mirror | None) -> World:
        """The world of the training queries."""
        k_max = self.workspace.settings.keywords.k_max
        return World.of(items, self.train, self.relevant, query_mirror=queries, k_max=k_max)

    def mirror(self, snapshot_id: str) -> Mirror:
        return mirror_of(self.snapshot(snapshot_id))


@dataclass(frozen=True)
class Wrote:
    """The result of a stage: its output (model folder or snapshot id; "" for neither) and notes."""

    output: str
    notes: Mapping[str, Any]


def snapshot_counts(snapshot: Snapshot) -> dict[str, Any]:
    """The counts of a snapshot, for the notes of the stage that wrote it."""
    manifest = snapshot.manifest
    return {
        "keywords_an_entity": round(manifest.keywords / max(1, manifest.entities), 2),
        "vocabulary": manifest.vocabulary,
        "empty": manifest.empty,
        "cut_to_budget": manifest.cut_to_budget,
        "set_aside": manifest.set_aside,
    }
