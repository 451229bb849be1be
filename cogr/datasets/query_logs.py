"""Query logs: the queries, how often each was asked and by whom, and which items were clicked.

Read by `cogr-ops shadow` and `cogr-index update --from-log`. The formats:

- `jsonl`: objects with `query`, perhaps `count`, `clicked` (ids) and `client_id`;
- `csv`: a header, a column of queries, perhaps columns of counts and of clients;
- `ubi`: records of User Behavior Insights (`cogr.datasets.ubi`);
- `text`: a query a line.

The first line of a file tells its format; a parquet file is of UBI. Files may be gzip. Queries that
`cogr.privacy` leaves out are counted. Memory: the distinct queries, with the ids of their clients
and of clicked items.
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
from cogr.records import CLICKS

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
    def __init__(self) -> None:
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


def read_log(paths: Sequence[Path], clicks: Sequence[str] = CLICKS) -> QueryLog:
    """The distinct queries of a log in one or several files.

    Args:
        clicks: UBI's `action_name` of events that count as a click.

    Raises:
        DataError: a file is missing, a record is bad (names file and line), or the log has no
            query.
    """
    for path in paths:
        if not path.is_file():
            raise DataError(f"The log {path} is not there; name a file of queries.")
    log, ubi = _Log(), list[Path]()
    for path in paths:
        table = path.suffix == ".parquet"
        first = "" if table else next((line for _, line in lines(path) if line.strip()), "")
        if table or _is_ubi(first):
            ubi.append(path)
        elif first.lstrip().startswith("{"):
            _read_jsonl(path, log)
        elif path.name.removesuffix(".gz").endswith((".csv", ".tsv")) or _is_header(first):
            _read_csv(path, log)
        else:
            for _, line in lines(path):
                if line.strip():
                    log.add(line)
    if ubi:
        _read_ubi(ubi, log, clicks)
    if not log.queries:
        raise DataError(
            f"No query is in {', '.join(map(str, paths))}; write one a line, JSON objects with "
            "query, CSV with a column query, or UBI records that have a user_query."
        )
    kept = QueryFilter()
    queries = [one.searched(text) for text, one in log.queries.items() if kept.keeps(text)]
    queries.sort(key=lambda one: (-one.count, one.text))
    return QueryLog(queries, log.lines, log.without, kept.counts)


def sample(queries: Sequence[Searched], most: int) -> list[Searched]:
    """At most `most` searches, drawn at random; a query's chance is its share of the traffic.

    A log with at most `most` distinct queries stays whole, with its counts.
    """
    if len(queries) <= most:
        return list(queries)
    counts = [query.count for query in queries]
    drawn = Counter(random.Random(0).sample(range(len(queries)), most, counts=counts))
    return [replace(queries[at], count=count) for at, count in drawn.most_common()]


def _is_ubi(line: str) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False  # the other reader reports the fault
    if not isinstance(record, dict):
        return False
    inner = record.get("_source")
    keys = {*record, *(inner if isinstance(inner, dict) else ())}
    return bool(keys & {"user_query", "action_name"}) and "query" not in keys


def _is_header(line: str) -> bool:
    names = (line.split(one) for one in DELIMITERS if one in line)
    return any({*QUERY_COLUMNS} & {name.strip(' "').casefold() for name in row} for row in names)


def _read_jsonl(path: Path, log: _Log) -> None:
    for place, record in json_records(path):
        if "query" not in record:
            raise DataError(f"{place}: the record has no 'query'; give every record one.")
        client = next((name for name in CLIENT_COLUMNS if record.get(name)), "")
        _add(log, place, record, "query", "count", client)


def _read_csv(path: Path, log: _Log) -> None:
    sheet = Sheet.open(path, QUERY_COLUMNS)
    query, often, client = (
        _column(sheet, names) for names in (QUERY_COLUMNS, COUNT_COLUMNS, CLIENT_COLUMNS)
    )
    if not query:
        shown = ", ".join(name for name in sheet.header if name)
        raise DataError(
            f"{path}, line 1: the header has no column of queries; call it query (there are: "
            f"{shown:.300})."
        )
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


def _read_ubi(paths: Sequence[Path], log: _Log, clicks: Sequence[str]) -> None:
    found, records, without = searched(paths, clicks)
    log.lines, log.without = log.lines + records, log.without + without
    for text, count, known, clients, items in found:
        query = log.query(text)
        query.count, query.known = query.count + count, query.known + known
        query.clients.update(map(str, clients))
        query.clicked.update(items)
