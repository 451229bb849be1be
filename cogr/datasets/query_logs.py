"""Query logs: the queries, how often each was asked, and which items were clicked.

Read by `cogr-ops shadow` and `cogr-index update --from-log`. The formats:

- `jsonl`: objects with `query`, perhaps `count` and `clicked` (ids);
- `csv`: a header, a column of queries, perhaps one of counts;
- `ubi`: records of User Behavior Insights as its two indexes hold them, `ubi_queries` and
  `ubi_events`, in one file or several, plain or as search hits with `_source`;
- `access`: a web server's log whose request lines carry the query as a URL parameter;
- `text`: a query a line, or a query, a tab and a count;
- `auto`: the one of these that the file's first lines look like.

Files may be gzip. Memory: the distinct queries, the ids of clicked and shown items, and for UBI
also the ids of queries.

UBI is version 1.3 (https://github.com/o19s/ubi, `schema/1.3.0`). An event needs only `action_name`
and `timestamp`: it may belong to no query, have its query's text itself (`user_query`), or name no
item. A record with an `action_name` is an event, any other one a query. `trainers.labels.events`
reads the same records by DuckDB, for logs of millions of records.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from cogr.datasets.fields import id_field, number_field, text_field, time_field
from cogr.datasets.reading import DELIMITERS, Place, Sheet, json_records, lines
from cogr.errors import DataError
from cogr.records import CLICKS, LogFormat

_REQUEST_LINE = re.compile(r'"(?:GET|HEAD|POST) [^ ?"]*\?([^ "]*)[^"]*"')
_REQUEST = re.compile(r'"(?:GET|HEAD|POST|PUT|OPTIONS) [^"]* HTTP/[\d.]+"')
_LOOKED_AT = 50
QUERY_COLUMNS = (
    "query",
    "user_query",
    "search_query",
    "search_term",
    "search term",
    "searchterm",
    "keyword",
    "term",
    "q",
)
"""Names of a CSV's column of queries, in any case; the first one found is taken."""
COUNT_COLUMNS = ("count", "searches", "frequency", "volume", "total")
"""The same for the column of counts."""


@dataclass(frozen=True)
class Searched:
    """A query of the log.

    Attributes:
        text: as it was typed, without surrounding white space.
        count: how often.
        clicked: ids of items that were clicked for it.
        shown: ids of items that were shown for it, where the log has them.
        positions: item id -> mean position of its clicks, from UBI's events.
    """

    text: str
    count: int
    clicked: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()
    positions: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class LogOptions:
    """How to read a log.

    Attributes:
        format: format of every file; auto detects each.
        column: name of the query in a CSV's header or a JSON object; None for `QUERY_COLUMNS`, or
            "query".
        count_column: the same for how often; None for `COUNT_COLUMNS`, or "count".
        parameter: of the URL in an access log.
        clicks: UBI actions that count as clicks.
    """

    format: LogFormat = LogFormat.auto
    column: str | None = None
    count_column: str | None = None
    parameter: str = "q"
    clicks: Sequence[str] = CLICKS


@dataclass(frozen=True)
class QueryLog:
    """What a log holds.

    Attributes:
        queries: the distinct ones, most frequent first.
        lines: lines (records, rows) that were read; blank ones don't count.
        without: how many of them have no query: other pages, events, empty texts.
    """

    queries: Sequence[Searched]
    lines: int
    without: int


@dataclass
class _Log:
    counts: Counter[str] = field(default_factory=Counter)
    clicked: dict[str, set[str]] = field(default_factory=dict)
    shown: dict[str, set[str]] = field(default_factory=dict)
    positions: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """UBI: text by query_id."""
    asked: dict[str, set[str]] = field(default_factory=dict)
    """UBI: text -> queries, or sessions, of events that have a text of their own."""
    waiting: list[tuple[UbiEvent, bool]] = field(default_factory=list)
    """UBI: events that came before their queries, and whether they are clicks."""
    lines: int = 0
    without: int = 0

    def add(self, text: str, count: int, clicked: Iterable[str] = ()) -> None:
        if text := text.strip():
            self.counts[text] += count
            self.clicked.setdefault(text, set()).update(clicked)
        else:
            self.without += 1

    def event(self, event: UbiEvent, *, clicked: bool, last: bool = False) -> None:
        """Count a click or an impression for its query, as soon as the query is known."""
        if event.text:
            who = event.query_id or f"of {event.session_id or event.client_id}"
            self.asked.setdefault(event.text, set()).add(who)
        text = event.text or self.texts.get(event.query_id or "", "")
        if text and event.item is not None:
            (self.clicked if clicked else self.shown).setdefault(text, set()).add(event.item)
            if clicked and event.position is not None:
                places = self.positions.setdefault(text, {}).setdefault(event.item, [])
                places.append(event.position)
        elif event.query_id is not None and event.item is not None and not last:
            self.waiting.append((event, clicked))

    def end(self) -> None:
        """Finish: all queries are known now.

        A text without a record in `ubi_queries` counts once for each query id that events name with
        it, or, without query ids, once for each session.
        """
        for event, clicked in self.waiting:
            self.event(event, clicked=clicked, last=True)
        alone = {text: len(who) for text, who in self.asked.items() if text not in self.counts}
        self.counts.update(alone)

    def searched(self, text: str, count: int) -> Searched:
        clicked, shown = (frozenset(ids.get(text, ())) for ids in (self.clicked, self.shown))
        places = self.positions.get(text, {})
        means = {item: sum(found) / len(found) for item, found in places.items()}
        return Searched(text, count, clicked, shown, means)


def read_log(paths: Sequence[Path], options: LogOptions) -> QueryLog:
    """The distinct queries of a log in one or several files.

    Raises:
        DataError: a file is missing, a record is bad (names file and line), or the log has no
            query.
    """
    for path in paths:
        if not path.is_file():
            raise DataError(f"The log {path} is not there; name a file of queries.")
    log = _Log()
    for path in paths:
        _READERS[_format(path, options)](path, log, options)
    log.end()
    if not log.counts:
        raise DataError(f"No query is in {', '.join(map(str, paths))}; {_ADVICE[options.format]}.")
    ordered = sorted(log.counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return QueryLog([log.searched(*pair) for pair in ordered], log.lines, log.without)


_ADVICE = {
    LogFormat.auto: (
        "write one a line, JSON objects with query, CSV with a column query, or UBI records"
    ),
    LogFormat.jsonl: "write one object a line, with query",
    LogFormat.csv: "write a header, and one query a row",
    LogFormat.ubi: "export ubi_queries, or events that have a user_query",
    LogFormat.access: "name the URL parameter that holds the query with --parameter",
    LogFormat.text: "write one a line",
}


def sample(queries: Sequence[Searched], most: int, seed: int) -> list[Searched]:
    """At most `most` searches, drawn at random; a query's chance is its share of the traffic.

    A log with at most `most` distinct queries stays whole, with its counts.
    """
    if len(queries) <= most:
        return list(queries)
    drawn = Counter(
        random.Random(seed).sample(queries, most, counts=[query.count for query in queries])
    )
    return [replace(query, count=count) for query, count in drawn.most_common()]


def _format(path: Path, options: LogOptions) -> LogFormat:
    """The format that is set, or the one detected from the first lines."""
    if options.format is not LogFormat.auto:
        return options.format
    if path.name.removesuffix(".gz").endswith((".csv", ".tsv")):
        return LogFormat.csv
    first = [line for _, line in islice(lines(path), _LOOKED_AT) if line.strip()]
    if first and first[0].lstrip().startswith("{"):
        return _json_format(first[0])
    if any(_REQUEST.search(line) for line in first):
        return LogFormat.access
    return LogFormat.csv if first and _names_columns(first[0], options) else LogFormat.text


def _json_format(line: str) -> LogFormat:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return LogFormat.jsonl  # its reader reports the fault
    inner = record.get("_source")
    keys = {*record, *(inner if isinstance(inner, dict) else ())}
    return (
        LogFormat.ubi
        if keys & {"user_query", "action_name"} and "query" not in keys
        else LogFormat.jsonl
    )


def _names_columns(line: str, options: LogOptions) -> bool:
    """Whether a line is a header with a column of queries and other columns."""
    wanted = {options.column.casefold()} if options.column else {*QUERY_COLUMNS}
    rows = (
        {name.strip(' "').casefold() for name in line.split(one)}
        for one in DELIMITERS
        if one in line
    )
    return any(wanted & row for row in rows)


def _read_jsonl(path: Path, log: _Log, options: LogOptions) -> None:
    query, often = options.column or "query", options.count_column or "count"
    for place, record in json_records(path):
        log.lines += 1
        if query not in record:
            raise DataError(
                f"{place}: the record has no {query!r}; give every record one, or name it with "
                "--column."
            )
        log.add(
            text_field(record, query, place), _count(record, often, place), _clicked(record, place)
        )


def _count(record: Mapping[str, Any], key: str, place: Place) -> int:
    count = number_field(record, key, place, default=1.0)
    if count < 1 or count != int(count):
        raise DataError(
            f"{place}: {key!r} is {record[key]!r}; write how often it was asked, 1 or more."
        )
    return int(count)


def _clicked(record: Mapping[str, Any], place: Place) -> list[str]:
    clicked = record.get("clicked", [])
    if not isinstance(clicked, list):
        raise DataError(
            f"{place}: 'clicked' is no list; write the ids of the clicked items as a list."
        )
    return [id_field({"clicked": id_}, "clicked", place) for id_ in clicked]


def _read_csv(path: Path, log: _Log, options: LogOptions) -> None:
    sheet = Sheet.open(path, [options.column] if options.column else QUERY_COLUMNS)
    query = _column(sheet, options.column, QUERY_COLUMNS)
    often = _column(sheet, options.count_column, COUNT_COLUMNS)
    if query is None or (often is None and options.count_column):
        missing, flag = (
            ("queries", "--column")
            if query is None
            else (repr(options.count_column), "--count-column")
        )
        shown = ", ".join(name for name in sheet.header if name)
        raise DataError(
            f"{path}, line 1: the header has no column of {missing}; name it with {flag} (there "
            f"are: {shown:.300})."
        )
    for place, row in sheet.rows():
        log.lines += 1
        log.add(row[query], _text_count(row[often] or "1", place) if often is not None else 1)


def _column(sheet: Sheet, name: str | None, usual: Sequence[str]) -> int | None:
    names = [one.casefold() for one in sheet.header]
    wanted = usual if name is None else [name.casefold()]
    return next((names.index(one) for one in wanted if one in names), None)


def _read_text(path: Path, log: _Log, _: LogOptions) -> None:
    for number, line in lines(path):
        if line.strip():
            log.lines += 1
            text, tab, count = line.strip().partition("\t")
            log.add(text, _text_count(count, Place(path, number)) if tab else 1)


def _text_count(text: str, place: Place) -> int:
    if not text.strip().isdecimal():
        raise DataError(
            f"{place}: {text!r} is no count; write how often the query was asked, in digits alone."
        )
    return int(text)


def _read_ubi(path: Path, log: _Log, options: LogOptions) -> None:
    clicks = frozenset(options.clicks)
    for record in read_ubi([path]):
        log.lines += 1
        if isinstance(record, UbiQuery):
            log.add(record.text, 1)
            if record.query_id is not None:
                log.texts[record.query_id] = record.text
            if record.text and record.hits:
                log.shown.setdefault(record.text, set()).update(record.hits)
            continue
        log.without += 1
        # An event may belong to no query.
        clicked = record.action in clicks
        if clicked or record.action == IMPRESSION:
            log.event(record, clicked=clicked)


def _read_access(path: Path, log: _Log, options: LogOptions) -> None:
    """Lines without a search request are of other pages, and left out."""
    for _, line in lines(path):
        if line.strip():
            log.lines += 1
            found = _REQUEST_LINE.search(line)
            texts = parse_qs(found[1], errors="replace").get(options.parameter, []) if found else []
            log.add(texts[0] if texts else "", 1)


_READERS = {
    LogFormat.jsonl: _read_jsonl,
    LogFormat.csv: _read_csv,
    LogFormat.ubi: _read_ubi,
    LogFormat.access: _read_access,
    LogFormat.text: _read_text,
}


IMPRESSION = "impression"
"""UBI's `action_name` for an impression."""


class UbiQuery(NamedTuple):
    """One search: a record of `ubi_queries`.

    Attributes:
        text: `user_query`, without surrounding white space; "" where the record has none.
        query_id, client_id, session_id: None where the record has none.
        timestamp: unconverted; see `seconds`.
        hits: `query_response_hit_ids`, ids of the items found, best first.
    """

    place: Place
    text: str
    query_id: str | None
    client_id: str | None
    session_id: str | None
    timestamp: str | float | None
    hits: tuple[str, ...]


class UbiEvent(NamedTuple):
    """An action of a shopper, or an impression: a record of `ubi_events`.

    Attributes:
        action: `action_name`.
        text: the event's own `user_query`, without surrounding white space; "" for none.
        query_id, client_id, session_id: None where the record has none.
        timestamp: unconverted; see `seconds`.
        item: `event_attributes.object.object_id`; None for an event about no item.
        position: `event_attributes.position.ordinal`, the item's position in the results, counted
            by the application (in the schema's examples from 1); None for none.
    """

    place: Place
    action: str
    text: str
    query_id: str | None
    client_id: str | None
    session_id: str | None
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
    query, client, session = (
        _id(record, key, place) for key in ("query_id", "client_id", "session_id")
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
        time,
        _id(object_, "object_id", place),
        _ordinal(position.get("ordinal"), place),
    )


def seconds(record: UbiQuery | UbiEvent) -> float | None:
    """A record's time in seconds since 1970, None without a time. A time without a zone is UTC.

    A number means milliseconds, as for a date in OpenSearch. Raises DataError.
    """
    if record.timestamp is None or record.timestamp == "":
        return None
    if isinstance(record.timestamp, int | float) and not isinstance(record.timestamp, bool):
        return record.timestamp / 1000
    time = time_field({"timestamp": record.timestamp}, "timestamp", record.place)
    return time.astimezone(UTC).timestamp() if time else None


def _id(record: Mapping[str, Any], key: str, place: Place) -> str | None:
    """An id; None for none and for "", which collectors write for an unknown id."""
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
