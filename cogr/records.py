"""The records of a data set, the data set itself, the formats of query logs, and types for progress
messages.

`cogr.datasets` reads the records. This module imports nothing heavy: commands name its types in
their options, and must start at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, cast

from cogr.errors import DataError

Say = Callable[[str], None]
"""Prints one line for a person."""
Advance = Callable[[int], None]
"""Adds to the number of finished steps."""
ProgressBar = Callable[[str, int], AbstractContextManager[Advance]]
"""Shows the work and its progress while a block runs."""


Side = Literal["query", "item"]
SIDES: tuple[Side, ...] = ("query", "item")

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


Scalar = str | int | float | bool
FieldValue = Scalar | list[Scalar]


def fields_of(fields_json: str) -> dict[str, FieldValue]:
    """The fields in one JSON object; "" is none."""
    return cast(dict[str, FieldValue], json.loads(fields_json)) if fields_json else {}


@dataclass(frozen=True, slots=True)
class Item:
    """One item of the universe. `title` is also its own keyword; a generator may read `text` too.

    Attributes:
        fields_json: the extra fields of `publish.fields` that the item has, as one JSON object; ""
            for none. It is a text, so that a million items need no objects.
    """

    id: str
    title: str
    text: str = ""
    fields_json: str = ""

    @property
    def fields(self) -> Mapping[str, FieldValue]:
        """The extra fields that the item has, by name; parsed at each call."""
        return fields_of(self.fields_json)


@dataclass(frozen=True, slots=True)
class Query:
    """One query. `weight` is its weight in averages, 1.0 by default."""

    id: str
    text: str
    weight: float = 1.0


Entity = Item | Query


def self_text(entity: Entity) -> str:
    """The entity's own text, one keyword in matching: S ∪ {self} (paper, section 2.1)."""
    return entity.title if isinstance(entity, Item) else entity.text


@dataclass(frozen=True, slots=True)
class Dataset:
    """A loaded data set. It has all items; queries are split.

    Attributes:
        items: every item, in the order of the source. Their extra fields are not part of the hash.
        queries: queries by split, in the order of the source. Only queries with at least one
            relevant item.
        relevant: query id -> ids of its relevant items (binary, after the threshold), items of the
            universe only.
        judged: query id -> item id -> grade, for judged-only metrics; every judgement of a known
            item by a query of a split.
        dataset_hash: sha256 over items, queries, splits and labels; names the data in manifests.
        notes: counts of left-out records by reason, e.g. {"judgements of unknown items": 1}.
        unlabelled: queries without a relevant item, such as frequent ones of a log. They get
            keywords, but are not used for training and evaluation. Not part of the hash.
        updated: side -> id -> time of the entity's last change, where the source has it. Not part
            of the hash.
        unread: fields of the source's items that nothing reads -> how many items have them. Not
            part of the hash.
        lineage: the origin of the labels (source, files, filters, judge, date) from the file
            lineage.json beside the data. Goes into manifests. Not part of the hash.
        pair_signals: column -> query id -> item id -> a number above 0, such as clicks; of known
            queries, labelled or not, and known items. Not part of the hash.
        new: ids of the items that the labels cannot know, because they are younger. Not part of the
            hash.
    """

    name: str
    items: Sequence[Item]
    queries: Mapping[Split, Sequence[Query]]
    relevant: Mapping[str, frozenset[str]]
    judged: Mapping[str, Mapping[str, float]]
    dataset_hash: str
    notes: Mapping[str, int] = field(default_factory=dict)
    unlabelled: Sequence[Query] = ()
    updated: Mapping[Side, Mapping[str, datetime]] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)
    lineage: Mapping[str, Any] = field(default_factory=dict)
    pair_signals: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    new: frozenset[str] = frozenset()

    def all_queries(self) -> list[Query]:
        """The labelled queries: those of every split, train first."""
        return [query for split in SPLITS for query in self.queries.get(split, ())]

    def require(self, split: Split) -> Sequence[Query]:
        """The queries of a split. Raises DataError when it is empty."""
        queries = self.queries.get(split, ())
        if not queries:
            sizes = ", ".join(f"{name} {len(self.queries.get(name, ()))}" for name in SPLITS)
            advice = (
                "set dataset.dev_share to take some from train"
                if split == "dev" and self.queries.get("train")
                else "bring labelled queries for it"
            )
            raise DataError(
                f"The {split} split of the data set {self.name} has no queries with a relevant "
                f"item ({sizes}); {advice}."
            )
        return queries

    def entities(self, side: Side) -> Sequence[Entity]:
        """The entities of one side: every item, or the queries of every split and the unlabelled
        ones.
        """
        return self.items if side == "item" else [*self.all_queries(), *self.unlabelled]


CLICKS = ("click", "item_click", "product_click", "add_to_cart", "purchase")
"""UBI's `action_name` of events that count as a click by default."""


class LogFormat(StrEnum):
    """The format of a query log."""

    auto = "auto"
    jsonl = "jsonl"
    csv = "csv"
    ubi = "ubi"
    access = "access"
    text = "text"
