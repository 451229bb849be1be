"""The format `jsonl`, our own: items.jsonl, queries.jsonl and labels.jsonl in one folder, each
plain or .gz.

Items are all that it takes. Queries without labels get keywords, but nothing can be trained or
evaluated on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cogr.datasets.building import Builder
from cogr.datasets.fields import id_field, number_field, text_field, time_field
from cogr.datasets.loader import Loader
from cogr.datasets.reading import Place, find, json_records, need

ITEMS_ADVICE = "write one record an item, with id, title and text"
QUERIES_ADVICE = "labels need queries: write one record a query, with id and text"


def read(folder: Path, builder: Builder) -> None:
    for place, record in json_records(need(folder, "items.jsonl", ITEMS_ADVICE)):
        builder.has_fields(record)
        add_item(builder, place, record)
    queries, labels = find(folder, "queries.jsonl"), find(folder, "labels.jsonl")
    for place, record in json_records(queries) if queries else ():
        add_query(builder, place, record)
    for place, record in json_records(labels) if labels else ():
        if queries is None:
            need(folder, "queries.jsonl", QUERIES_ADVICE)
        add_label(builder, place, record)


def add_item(
    builder: Builder, place: Place, record: Mapping[str, Any], id_key: str | None = None
) -> None:
    """Add a record with an id, a title and a text, and perhaps when it was updated.

    Raises DataError when it has neither title nor text.
    """
    columns = builder.options.columns
    title, text = columns.title_and_text(record, place)
    id_ = id_field(record, id_key or columns.id, place)
    builder.item(place, id_, title, text, time_field(record, columns.updated, place), record)


def add_query(builder: Builder, place: Place, record: Mapping[str, Any]) -> None:
    """Add a record with an id, a text, and perhaps a weight, a split, and when it was updated."""
    columns = builder.options.columns.queries
    split = text_field(record, columns.split, place) or None
    weight = number_field(record, columns.weight, place, default=1.0)
    id_ = id_field(record, columns.id, place)
    text, updated = (
        text_field(record, columns.text, place),
        time_field(record, columns.updated, place),
    )
    builder.query(place, id_, text, weight, split, updated)


def add_label(builder: Builder, place: Place, record: Mapping[str, Any]) -> None:
    """Add a record with a query's id, an item's id and perhaps a grade (1 without)."""
    columns = builder.options.columns.labels
    grade = number_field(record, columns.grade, place, default=1.0)
    builder.judgement(
        place, id_field(record, columns.query, place), id_field(record, columns.item, place), grade
    )


LOADER = Loader("jsonl", read, own=True)
