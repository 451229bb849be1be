"""Records of User Behavior Insights (UBI 1.3): `ubi_queries` and `ubi_events`.

Schemas: https://github.com/o19s/ubi, `schema/1.3.0`. Of an event only `action_name` and `timestamp`
are required: it may belong to no query, say its query's text itself (`user_query`), or be about no
item. A record with an `action_name` is an event, any other one a query. Search hits are read by
their `_source`. A record's place is its file and line, or its index and document. Labels from
clicks (`trainers.labels.events`) read the same records by DuckDB, for logs of millions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple

from cogr.datasets.fields import id_field, text_field, time_field
from cogr.datasets.reading import Place, json_records
from cogr.errors import DataError

IMPRESSION = "impression"
"""UBI's `action_name` of an item that was shown."""


class UbiQuery(NamedTuple):
    """One search: a record of `ubi_queries`.

    Attributes:
        text: `user_query`, without surrounding white space; "" where the record has none.
        query_id, client_id, session_id: None where the record has none.
        timestamp: as it stands; see `seconds`.
        hits: `query_response_hit_ids`, ids of what the search found, best first.
    """

    place: Place
    text: str
    query_id: str | None
    client_id: str | None
    session_id: str | None
    timestamp: str | float | None
    hits: tuple[str, ...]


class UbiEvent(NamedTuple):
    """One thing that a shopper did, or was shown: a record of `ubi_events`.

    Attributes:
        action: `action_name`.
        text: the event's own `user_query`, without surrounding white space; "" for none.
        query_id, client_id, session_id, user_id: None where the record has none.
        timestamp: as it stands; see `seconds`.
        item: `event_attributes.object.object_id`; None for an event about no item.
        position: `event_attributes.position.ordinal`, the item's place in the results as the
            application counts, by the schema's examples from 1; None for none.
    """

    place: Place
    action: str
    text: str
    query_id: str | None
    client_id: str | None
    session_id: str | None
    user_id: str | None
    timestamp: str | float | None
    item: str | None
    position: int | None


def read_ubi(paths: Sequence[Path]) -> Iterator[UbiQuery | UbiEvent]:
    """Records of files with one JSON object a line, plain or packed by gzip; streams.

    Raises:
        DataError: a file is not there, or a record is bad; names file and line.
    """
    for path in paths:
        if not path.is_file():
            raise DataError(f"The log {path} is not there; name a file of UBI records.")
    for path in paths:
        yield from ubi_records(json_records(path))


def ubi_records(
    records: Iterable[tuple[Place, Mapping[str, Any]]],
) -> Iterator[UbiQuery | UbiEvent]:
    """Typed records, in the order of the given ones. Raises DataError for a bad one."""
    for place, record in records:
        yield ubi_record(place, record)


def ubi_record(place: Place, record: Mapping[str, Any]) -> UbiQuery | UbiEvent:
    """One record.

    Raises DataError: a field has another type than in the schema.
    """
    if "_source" in record:
        record = _inner(record, "_source", place)
    text = text_field(record, "user_query", place).strip()
    query, client, session, user = (
        _id(record, key, place) for key in ("query_id", "client_id", "session_id", "user_id")
    )
    time = record.get("timestamp")
    if "action_name" not in record:
        hits = _hits(record, place)
        return UbiQuery(place, text, query, client, session, time, hits)
    attributes = _inner(record, "event_attributes", place)
    object_, position = (_inner(attributes, key, place) for key in ("object", "position"))
    return UbiEvent(
        place,
        text_field(record, "action_name", place),
        text,
        query,
        client,
        session,
        user,
        time,
        _id(object_, "object_id", place),
        _ordinal(position.get("ordinal"), place),
    )


def seconds(record: UbiQuery | UbiEvent) -> float | None:
    """A record's time in seconds since 1970; UTC where it names no zone, None where it has none.

    A number is taken as OpenSearch takes it for a date: milliseconds. Raises DataError.
    """
    if record.timestamp is None or record.timestamp == "":
        return None
    if isinstance(record.timestamp, int | float) and not isinstance(record.timestamp, bool):
        return record.timestamp / 1000
    time = time_field({"timestamp": record.timestamp}, "timestamp", record.place)
    return time.astimezone(UTC).timestamp() if time else None


def _id(record: Mapping[str, Any], key: str, place: Place) -> str | None:
    """An id; None for none and for "", which collectors write where they know none."""
    value = record.get(key)
    return None if value is None or value == "" else id_field(record, key, place)


def _hits(record: Mapping[str, Any], place: Place) -> tuple[str, ...]:
    hits = record.get("query_response_hit_ids")
    if hits is None:
        return ()
    if not isinstance(hits, list):
        raise DataError(
            f"{place}: 'query_response_hit_ids' is no list; export the records as UBI writes them."
        )
    return tuple(id_field({"hit": hit}, "hit", place) for hit in hits)


def _ordinal(value: Any, place: Place) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(
            f"{place}: the position's 'ordinal' is {value!r}; write the place in the results as an "
            "integer."
        )
    return value


def _inner(record: Mapping[str, Any], key: str, place: Place) -> Mapping[str, Any]:
    value = record.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: {key!r} is no object; export the records as UBI writes them.")
    return value
