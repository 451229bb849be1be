"""Query logs: the queries, how often each was asked and by whom, and which items were clicked.

Read by `cogr-ops shadow` and `cogr-index update --from-log`. The formats:

- `jsonl`: objects with `query`, perhaps `count`, `clicked` (ids) and `client_id`;
- `csv`: a header, a column of queries, perhaps columns of counts and of clients;
- `ubi`: records of User Behavior Insights (`cogr.datasets.ubi`);
- `text`: a query a line;
- `auto`: the one of these that the file's first line looks like.

Files may be gzip. Queries that `cogr.privacy` leaves out are counted. Memory: the distinct queries,
with the ids of their clients and of clicked items.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cogr.datasets.fields import id_field, number_field, text_field
from cogr.datasets.reading import DELIMITERS, Place, Sheet, json_records, lines
from cogr.datasets.ubi import searched
from cogr.errors import DataError
from cogr.privacy import QueryFilter
from cogr.records import CLICKS, LogFormat

# Names of a CSV's columns, in any case; the first one found is taken.
QUERY_COLUMNS = (
    *("query", "user_query", "search_query", "search_term", "search term", "searchterm"),
    *("keyword", "term", "q"),
)
COUNT_COLUMNS = ("count", "searches", "frequency", "volume", "total")
CLIENT_COLUMNS = ("client_id", "session_id")


@dataclass(frozen=True)
class Searched:
    """A query of the log.

    Attributes:
        text: as it was typed, without surrounding white space.
        known: how many of the searches have a client.
    """

    text: str
    count: int
    clicked: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    known: int = 0


@dataclass(frozen=True)
class LogOptions:
    """How to read a log.

    Attributes:
        format: format of every file; auto detects each.
        column, count_column: names of the query and of how often it was asked, in a CSV's header or
            a JSON object; None for the usual ones.
    """

    format: LogFormat = LogFormat.auto
    column: str | None = None
    count_column: str | None = None
    clicks: Sequence[str] = CLICKS


@dataclass(frozen=True)
class QueryLog:
    """What a log holds.

    Attributes:
        queries: the distinct ones, most frequent first.
        lines: lines (records, rows) that were read; blank ones don't count.
        without: how many of them have no query: other pages, events, empty texts.
        left_out: distinct queries that `cogr.privacy` leaves out, by reason.
    """

    queries: Sequence[Searched]
    lines: int
    without: int
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Query:
    count: int = 0
    known: int = 0
    clicked: set[str] = field(default_factory=set)
    clients: set[str] = field(default_factory=set)

    def add(self, count: int, client: str | None) -> None:
        self.count += count
        if client:
            self.known += count
            self.clients.add(client)

    def searched(self, text: str) -> Searched:
        return Searched(
            text, self.count, frozenset(self.clicked), frozenset(self.clients), self.known
        )


class _Log:
    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self.queries: dict[str, _Query] = {}
        self.lines = self.without = 0

    def query(self, text: str) -> _Query:
        return self.queries.setdefault(text, _Query())

    def add(
        self, text: str, count: int = 1, client: str | None = None, clicked: Iterable[str] = ()
    ) -> None:
        self.lines += 1
        if text := text.strip():
            found = self.query(text)
            found.add(count, client)
            found.clicked.update(clicked)
        else:
            self.without += 1


def read_log(paths: Sequence[Path], options: LogOptions) -> QueryLog:
    """The distinct queries of a log in one or several files.

    Raises:
        DataError: a file is missing, a record is bad (names file and line), or the log has no
            query.
    """
    for path in paths:
        if not path.is_file():
            raise DataError(f"The log {path} is not there; name a file of queries.")
    log = _Log(options)
    formats = {path: _format(path, options) for path in paths}
    if ubi := [path for path, format_ in formats.items() if format_ is LogFormat.ubi]:
        _read_ubi(ubi, log)
    for path, format_ in formats.items():
        if format_ is not LogFormat.ubi:
            _READERS[format_](path, log)
    if not log.queries:
        raise DataError(f"No query is in {', '.join(map(str, paths))}; {_ADVICE[options.format]}.")
    kept = QueryFilter()
    queries = [one.searched(text) for text, one in log.queries.items() if kept.keeps(text)]
    queries.sort(key=lambda one: (-one.count, one.text))
    return QueryLog(queries, log.lines, log.without, kept.counts)


_ADVICE = {
    LogFormat.auto: (
        "write one a line, JSON objects with query, CSV with a column query, or UBI records"
    ),
    LogFormat.jsonl: "write one object a line, with query",
    LogFormat.csv: "write a header, and one query a row",
    LogFormat.ubi: "export ubi_queries, or events that have a user_query",
    LogFormat.text: "write one a line",
}


def sample(queries: Sequence[Searched], most: int) -> list[Searched]:
    """At most `most` searches, drawn at random; a query's chance is its share of the traffic.

    A log with at most `most` distinct queries stays whole, with its counts.
    """
    if len(queries) <= most:
        return list(queries)
    counts = [query.count for query in queries]
    drawn = Counter(random.Random(0).sample(range(len(queries)), most, counts=counts))
    return [replace(queries[at], count=count) for at, count in drawn.most_common()]


def _format(path: Path, options: LogOptions) -> LogFormat:
    if options.format is not LogFormat.auto:
        return options.format
    if path.name.removesuffix(".gz").endswith((".csv", ".tsv")):
        return LogFormat.csv
    first = next((line for _, line in lines(path) if line.strip()), "")
    if first.lstrip().startswith("{"):
        return LogFormat.ubi if _is_ubi(first) else LogFormat.jsonl
    return LogFormat.csv if _is_header(first, options) else LogFormat.text


def _is_ubi(line: str) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False  # the other reader reports the fault
    inner = record.get("_source")
    keys = {*record, *(inner if isinstance(inner, dict) else ())}
    return bool(keys & {"user_query", "action_name"}) and "query" not in keys


def _is_header(line: str, options: LogOptions) -> bool:
    wanted = {options.column.casefold()} if options.column else {*QUERY_COLUMNS}
    names = (line.split(one) for one in DELIMITERS if one in line)
    return any(wanted & {name.strip(' "').casefold() for name in row} for row in names)


def _read_jsonl(path: Path, log: _Log) -> None:
    query, often = log.options.column or "query", log.options.count_column or "count"
    for place, record in json_records(path):
        if query not in record:
            raise DataError(
                f"{place}: the record has no {query!r}; give every record one, or name it with "
                "--column."
            )
        client = next((name for name in CLIENT_COLUMNS if record.get(name)), "")
        _add(log, place, record, query, often, client)


def _read_csv(path: Path, log: _Log) -> None:
    named, counted = log.options.column, log.options.count_column
    sheet = Sheet.open(path, [named] if named else QUERY_COLUMNS)
    query = _column(sheet, [named] if named else QUERY_COLUMNS)
    often = _column(sheet, [counted] if counted else COUNT_COLUMNS)
    if not query or (counted and not often):
        missing = f"{counted!r}; name it with --count-column" if query else ""
        shown = ", ".join(name for name in sheet.header if name)
        raise DataError(
            f"{path}, line 1: the header has no column of "
            f"{missing or 'queries; name it with --column'} (there are: {shown:.300})."
        )
    client = _column(sheet, CLIENT_COLUMNS)
    for place, record in sheet.records():
        record.pop("clicked", None)
        _add(log, place, record, query, often, client)


def _add(
    log: _Log, place: Place, record: Mapping[str, Any], query: str, often: str, client: str
) -> None:
    count, clicked = number_field(record, often, place, 1.0), record.get("clicked", [])
    if count < 1 or count != int(count):
        raise DataError(
            f"{place}: {often!r} is {record[often]!r}; write how often it was asked, 1 or more."
        )
    if not isinstance(clicked, list):
        raise DataError(
            f"{place}: 'clicked' is not a list; write the ids of the clicked items as a list."
        )
    ids = [id_field({"clicked": id_}, "clicked", place) for id_ in clicked]
    log.add(text_field(record, query, place), int(count), str(record.get(client, "")), ids)


def _column(sheet: Sheet, wanted: Sequence[str]) -> str:
    names = {one.casefold(): one for one in sheet.header}
    return next((names[one] for one in map(str.casefold, wanted) if one in names), "")


def _read_text(path: Path, log: _Log) -> None:
    for _, line in lines(path):
        if line.strip():
            log.add(line)


def _read_ubi(paths: Sequence[Path], log: _Log) -> None:
    found, records, without = searched(paths, log.options.clicks)
    log.lines, log.without = log.lines + records, log.without + without
    for text, count, known, clients, items in found:
        query = log.query(text)
        query.count, query.known = query.count + count, query.known + known
        query.clients.update(map(str, clients))
        query.clicked.update(items)


_READERS = {
    LogFormat.jsonl: _read_jsonl,
    LogFormat.csv: _read_csv,
    LogFormat.text: _read_text,
}
