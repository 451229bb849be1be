"""Extra fields of items on their way into a snapshot: whose are taken where a row is carried over,
and the form they are kept in.

What a field is, is `cogr.item_fields`. Everything streams, in id order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cogr.datasets.items import Items, ItemsSpool, in_id_order
from cogr.item_fields import FieldType, typed
from cogr.records import Entity, Item
from cogr.snapshots import Row, Snapshot


def typed_rows(rows: Iterable[Row], types: Mapping[str, FieldType]) -> Iterator[Row]:
    """The rows with their fields as they are kept.

    Raises DataError for a value that does not fit its type.
    """
    for row in rows:
        yield replace(row, fields_json=typed(row.id, row.fields_json, types)) if types else row


def rows_with_fields(rows: Iterable[Row], entities: Sequence[Entity]) -> Iterator[Row]:
    """The rows, each with the fields of the item of its id; one without such an item
    keeps its own.
    """
    items = (item for item in in_id_order(entities) if isinstance(item, Item))
    item = next(items, None)
    for row in rows:
        while item is not None and item.id < row.id:
            item = next(items, None)
        same = item is not None and item.id == row.id
        yield replace(row, fields_json=item.fields_json) if same and item else row


def items_with_fields(
    entities: Sequence[Entity], parent: Snapshot, changed: Collection[str]
) -> Items:
    """The items with the fields that a snapshot has, but for the changed ones, which keep their
    own.
    """
    spool, rows = ItemsSpool(), parent.rows()
    row = next(rows, None)
    for item in (item for item in in_id_order(entities) if isinstance(item, Item)):
        while row is not None and row.id < item.id:
            row = next(rows, None)
        known = row is not None and row.id == item.id and item.id not in changed
        spool.add(replace(item, fields_json=row.fields_json) if known and row else item)
    return spool.items()
