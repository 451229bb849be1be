"""The records of a data set, the data set itself, types of items' extra fields, and types for
progress messages.

`cogr.datasets` reads the records. This module imports nothing heavy: commands name its types in
their options, and must start at once.

Extra fields let an index filter, count and sort by price, brand or stock. A field has one type for
all items: the first in `TYPES` that every value fits. So texts that are numbers, as in CSV, become
numbers. The backend maps types to those of OpenSearch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast, get_args

from cogr.errors import DataError

Say = Callable[[str], None]
"""Prints one line for a person."""
Advance = Callable[[int], None]
"""Adds to the number of finished steps."""
ProgressBar = Callable[[str, int], AbstractContextManager[Advance]]
"""Shows the work and its progress while a block runs."""


Side = Literal["query", "item"]
SIDES: tuple[Side, ...] = ("query", "item")
PLURAL: Mapping[Side, str] = {"item": "items", "query": "queries"}

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
        items: every item, in the order of the source.
        queries: queries by split, in the order of the source. Only queries with at least one
            relevant item.
        relevant: query id -> ids of its relevant items (binary, after the threshold), items of the
            universe only.
        judged: query id -> item id -> grade, for judged-only metrics; every judgement of a known
            item by a query of a split.
        dataset_hash: sha256 over all of these but items' extra fields; names the data in manifests.
        notes: counts of left-out records by reason, e.g. {"judgements of unknown items": 1}.
        unlabelled: queries without a relevant item, such as frequent ones of a log. They get
            keywords, but are not used for training and evaluation.
        updated: side -> id -> time of the entity's last change, where the source has it.
        unread: what nothing reads of the source -> how many records have it: fields of items, those
            of others ("labels' rating"), and files (1).
        lineage: the origin of the labels (source, files, filters, judge, date) from the file
            lineage.json beside the data. Goes into manifests.
        pair_signals: column -> query id -> item id -> a number above 0, such as clicks; of known
            queries, labelled or not, and known items.
        new: ids of the items that the labels cannot know, because they are younger.
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

    def never_judged(self, items: Iterable[str]) -> frozenset[str]:
        """Those of the items that no query has a label of."""
        return frozenset(items).difference(*self.relevant.values(), *self.judged.values())

    def entities(self, side: Side) -> Sequence[Entity]:
        """The entities of one side: every item, or the queries of every split and the unlabelled
        ones.
        """
        return self.items if side == "item" else [*self.all_queries(), *self.unlabelled]


FieldType = Literal["boolean", "long", "double", "date", "keyword"]
TYPES: tuple[FieldType, ...] = get_args(FieldType)

MAX_BYTES = 32_766
"""The longest term that Lucene takes."""
_LONG = 1 << 63
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")
_ANY = frozenset(TYPES)


def types_of(items: Iterable[tuple[str, str]], names: Iterable[str]) -> dict[str, FieldType]:
    """The type of every field, by name.

    Args:
        items: (id, its fields as one JSON object or "") of all items. A field without any value
            is a keyword.

    Raises DataError where a field has values of several kinds.
    """
    open_ = dict.fromkeys(names, _ANY)
    example: dict[str, tuple[str, Scalar]] = {}
    for id_, fields_json in items if open_ else ():
        for name, value in fields_of(fields_json).items():
            for one in values_of(value) if name in open_ else ():
                left = open_[name] & _fitting(one)
                if not left:
                    other, before = example[name]
                    raise DataError(
                        f"The field {name} of item {id_!r} is {_shown(one)}, but of item "
                        f"{other!r} {_shown(before)}; write one kind of value."
                    )
                if left != open_[name] or name not in example:
                    example[name] = (id_, one)
                open_[name] = left
    return {
        name: next(t for t in TYPES if t in left) if name in example else "keyword"
        for name, left in sorted(open_.items())
    }


def typed(id_: str, fields_json: str, types: Mapping[str, FieldType]) -> str:
    """An item's fields as a snapshot stores them: converted to their types, names sorted, no empty
    values.

    Raises DataError where a text is too long. `types`: of `types_of` for all items.
    """
    given = fields_of(fields_json)
    kept: dict[str, FieldValue] = {}
    for name in sorted(given.keys() & types.keys()):
        values = [_made(id_, name, one, types[name]) for one in values_of(given[name])]
        if values:
            kept[name] = values if isinstance(given[name], list) else values[0]
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")) if kept else ""


def values_of(value: FieldValue) -> list[Scalar]:
    """The single values; an empty text is no value."""
    return [one for one in (value if isinstance(value, list) else [value]) if one != ""]


def _fitting(value: Scalar) -> frozenset[FieldType]:
    # Only a text fits a keyword: a number or a boolean in the data is meant as such.
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"long", "double"} if -_LONG <= value < _LONG else {"double"})
    if isinstance(value, float):
        return frozenset({"double"})
    text = value.strip()
    types: set[FieldType] = {"keyword"}
    if text.lower() in ("true", "false"):
        types.add("boolean")
    elif _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        types |= {"long", "double"} if _WHOLE.fullmatch(text) else {"double"}
    elif _TIME.fullmatch(text) and _is_time(text):
        types.add("date")
    return frozenset(types)


def _is_time(text: str) -> bool:
    with suppress(ValueError):
        return datetime.fromisoformat(text) is not None
    return False


def _made(id_: str, name: str, value: Any, type_: FieldType) -> Scalar:
    made = _MAKERS[type_](value)
    if isinstance(made, str) and len(made) * 4 > MAX_BYTES and len(made.encode()) > MAX_BYTES:
        raise DataError(
            f"The field {name} of item {id_!r} has {len(made):,} characters, but a text for "
            f"filters has at most {MAX_BYTES:,} bytes; shorten it, or take the field out of "
            "publish.fields."
        )
    return made


_MAKERS: Mapping[FieldType, Callable[[Any], Scalar]] = {
    "boolean": lambda value: value if isinstance(value, bool) else value.strip().lower() == "true",
    "long": int,
    "double": float,
    "date": str.strip,
    "keyword": str,
}


def _shown(value: Scalar) -> str:
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return json.dumps(value) if isinstance(value, bool) else f"the number {value}"
