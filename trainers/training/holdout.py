"""The queries that rounds are judged by: the data's own dev split, or a share of the training
queries that nothing is trained on.

Which ones is decided by the hash of their ids: the same in every run, on every machine, and hardly
others when queries are added. What is done with the figures is `contest`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cogr.records import Dataset, Query, Split
from indexers.workspace import Workspace

LEAST = 10
"""Fewer queries than this judge nothing, and none are set apart."""

SET_APART = "training queries set apart as dev"
"""Under this word a data set notes how many."""


def with_dev(workspace: Workspace) -> Workspace:
    """The workspace as training sees it: with a dev split wherever the gate is on and the data can
    spare one.
    """
    gate, dataset = workspace.settings.training.gate, workspace.dataset
    if not gate.on or dataset.queries.get("dev"):
        return workspace
    ids = by_hash((query.id for query in dataset.queries.get("train", ())), gate.dev_share)
    return workspace if len(ids) < LEAST else workspace.with_dataset(_set_apart(dataset, ids))


def by_hash(ids: Iterable[str], share: float) -> frozenset[str]:
    """A share of ids, rounded down: those whose sha256 comes first."""
    ordered = sorted(
        ids, key=lambda id_: hashlib.sha256(id_.encode("utf-8", "surrogatepass")).digest()
    )
    return frozenset(ordered[: math.floor(len(ordered) * share + 1e-9)])


def _set_apart(dataset: Dataset, ids: frozenset[str]) -> Dataset:
    train = dataset.queries["train"]
    split: dict[Split, Sequence[Query]] = {
        "train": tuple(query for query in train if query.id not in ids),
        "dev": tuple(query for query in train if query.id in ids),
    }
    named = hashlib.sha256(json.dumps([dataset.dataset_hash, sorted(ids)]).encode()).hexdigest()
    notes = {**dataset.notes, SET_APART: len(ids)}
    return replace(dataset, queries={**dataset.queries, **split}, dataset_hash=named, notes=notes)


def is_set_apart(dataset: Dataset) -> bool:
    """Whether its dev split was taken from the training queries here."""
    return SET_APART in dataset.notes


def judged_by(workspace: Workspace) -> str:
    """One sentence for people: by which queries rounds are judged, and how they were chosen."""
    gate, dataset = workspace.settings.training.gate, workspace.dataset
    dev, train = (len(dataset.queries.get(split, ())) for split in ("dev", "train"))
    if not gate.on:
        return "Nothing is judged: training.gate.on is false, so that every round is built upon."
    if is_set_apart(dataset):
        return (
            f"Judged by {dev} of the {dev + train} training queries, chosen by the hash of their "
            "ids and never trained on "
            f"(training.gate.dev_share {gate.dev_share:g})."
        )
    if dev:
        return f"Judged by the {dev} dev queries of the data."
    return (
        f"Nothing is judged: the data have no dev queries, and {gate.dev_share:g} of {train} "
        "training queries "
        f"(training.gate.dev_share) is below {LEAST}; every round is built upon."
    )
