"""The format `jsonl`, our own: items.jsonl, queries.jsonl and labels.jsonl in one folder, each plain or .gz.

A folder with items.jsonl alone is a catalogue: it can be indexed and searched, but neither trained nor evaluated on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cogr.datasets.building import Builder
from cogr.datasets.fields import id_field, number_field, text_field, time_field
from cogr.datasets.loader import Loader
from cogr.datasets.reading import Place, find, json_records, need
from cogr.errors import DataError

ITEMS_ADVICE = "write one record an item, with id, title and text"
QUERIES_ADVICE = "labels need queries: write one record a query, with id and text"
LABELS_ADVICE = "queries need labels: write one record a judgement, with query, item and grade"


def read(folder: Path, builder: Builder) -> None:
    for place, record in json_records(need(folder, "items.jsonl", ITEMS_ADVICE)):
        add_item(builder, place, record)
    if not (find(folder, "queries.jsonl") or find(folder, "labels.jsonl")):
        return
    for place, record in json_records(need(folder, "queries.jsonl", QUERIES_ADVICE)):
        add_query(builder, place, record)
    for place, record in json_records(need(folder, "labels.jsonl", LABELS_ADVICE)):
        add_label(builder, place, record)


def add_item(builder: Builder, place: Place, record: Mapping[str, Any], id_key: str = "id") -> None:
    """Add a record with an id, a title and a text, and perhaps when it was updated. Raises DataError when it has neither title nor text."""
    if record.get("title") is None and record.get("text") is None:
        raise DataError(f"{place}: the item has neither 'title' nor 'text'; give it one of them.")
    title, text = text_field(record, "title", place), text_field(record, "text", place)
    id_ = id_field(record, id_key, place)
    builder.item(place, id_, title, text, time_field(record, "updated", place), record)


def add_query(builder: Builder, place: Place, record: Mapping[str, Any], id_key: str = "id") -> None:
    """Add a record with an id, a text, and perhaps a weight, a split, and when it was updated."""
    split = text_field(record, "split", place) or None
    weight = number_field(record, "weight", place, default=1.0)
    id_ = id_field(record, id_key, place)
    text, updated = text_field(record, "text", place), time_field(record, "updated", place)
    builder.query(place, id_, text, weight, split, updated)


def add_label(builder: Builder, place: Place, record: Mapping[str, Any]) -> None:
    """Add a record with a query's id, an item's id and perhaps a grade (1 without)."""
    grade = number_field(record, "grade", place, default=1.0)
    builder.judgement(place, id_field(record, "query", place), id_field(record, "item", place), grade)


LOADER = Loader("jsonl", read)
