"""Query logs: the queries, how often each was asked and by whom, and which items were clicked.

Read by `cogr-ops shadow`, `cogr-index update --from-log`, and UBI and access logs also by
`cogr-train labels from-clicks`. The formats:

- `jsonl`: objects with `query`, perhaps `count`, `clicked` (ids) and `client_id`;
- `csv`: the same, but for `clicked`, as columns below a header; the file's name ends in .csv or
  .tsv;
- `ubi`: records of User Behavior Insights (UBI 1.3, https://github.com/o19s/ubi) as the two
  indexes hold them, `ubi_queries` and `ubi_events`: JSON lines (plain or as hits with `_source`) or
  parquet, in one file or several;
- the access log of a web server, by two patterns (`AccessLog`);
- `text`: a query a line.

Files may be gzip. Queries that `cogr.privacy` leaves out are counted. Memory: the distinct queries,
with the ids of their clients and of clicked items.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cogr.datasets.access_logs import AccessLog, is_request
from cogr.datasets.fields import id_field, number_field, text_field
from cogr.datasets.reading import Place, Sheet, json_records, lines
from cogr.datasets.ubi import CLICKS, IMPRESSIONS, database, load
from cogr.errors import DataError
from cogr.privacy import QueryFilter


@dataclass
class Searched:
    """A query of the log.

    Attributes:
        text: as it was typed, without surrounding white space.
        known: how many of the searches have a client.
    """

    text: str
    count: int = 0
    clicked: set[str] = field(default_factory=set)
    clients: set[str] = field(default_factory=set)
    known: int = 0

    def add(self, other: Searched) -> None:
        """Add what another log, or another line, says of the query."""
        self.count += other.count
        self.known += other.known
        self.clicked |= other.clicked
        self.clients |= other.clients


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


def read_log(paths: Sequence[Path], access: AccessLog | None = None) -> QueryLog:
    """The distinct queries of a log in one or several files; with `access`, of a web server. Raises
    DataError, and SettingsError where `access` has no pattern of items.
    """
    if access:
        with access.as_ubi(paths) as records_of_ubi:
            return read_log(records_of_ubi)
    by_text: dict[str, Searched] = {}
    ubi = [path for path in paths if path.suffix == ".parquet" or _is_ubi(_first_line(path))]
    records = without = 0
    for path in paths:
        for one in () if path in ubi else _searches(path):
            records += 1
            without += not one.text
            by_text.setdefault(one.text, Searched(one.text)).add(one)
    if ubi:
        searched, some, none = _ubi_searches(ubi)
        records, without = records + some, without + none
        for one in searched:
            by_text.setdefault(one.text, Searched(one.text)).add(one)
    by_text.pop("", None)
    if not by_text:
        raise DataError(
            f"No query is in {', '.join(map(str, paths))}; write one query a line, JSON objects "
            "with query, CSV with a column query, or UBI records that have a user_query."
        )
    kept = QueryFilter()
    queries = [one for text, one in by_text.items() if kept.keeps(text)]
    queries.sort(key=lambda one: (-one.count, one.text))
    return QueryLog(queries, records, without, kept.counts)


def sample(queries: Sequence[Searched], most: int) -> list[Searched]:
    """At most `most` searches, drawn at random; a query's chance is its share of the traffic.

    A log with at most `most` distinct queries stays whole, with its counts.
    """
    if len(queries) <= most:
        return list(queries)
    counts = [query.count for query in queries]
    drawn = Counter(random.Random(0).sample(range(len(queries)), most, counts=counts))
    return [replace(queries[at], count=count) for at, count in drawn.most_common()]


def _first_line(path: Path) -> str:
    return next((line for _, line in lines(path) if line.strip()), "")


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


def _searches(path: Path) -> Iterator[Searched]:
    if path.name.removesuffix(".gz").endswith((".csv", ".tsv")):
        sheet = Sheet.of(path, "query")
        return (_search(place, {**record, "clicked": None}) for place, record in sheet.records())
    if _first_line(path).lstrip().startswith("{"):
        return (_search(place, record) for place, record in json_records(path))
    if is_request(_first_line(path)):
        raise DataError(
            f"{path} is the log of a web server, which cogr-ops shadow and cogr-train labels "
            "from-clicks read with --item-path /p/{item}; for this command extract the queries, "
            "one a line."
        )
    return (Searched(line.strip(), 1) for _, line in lines(path) if line.strip())


def _search(place: Place, record: Mapping[str, Any]) -> Searched:
    count, clicked = number_field(record, "count", place, 1.0), record.get("clicked")
    if count < 1 or count != int(count):
        raise DataError(
            f"{place}: 'count' is {record['count']!r}; write how often it was asked, 1 or more."
        )
    if not isinstance(clicked, list | None):
        raise DataError(
            f"{place}: 'clicked' is not a list; write the ids of the clicked items as a list."
        )
    ids = {id_field({"clicked": id_}, "clicked", place) for id_ in clicked or ()}
    clients = {str(record["client_id"])} if record.get("client_id") else set()
    text = text_field(record, "query", place).strip()
    return Searched(text, int(count), ids, clients, int(count) if clients else 0)


_SEARCHED = """
with asked as (
    select text, count(*) as n, count(who) as known, list(distinct who) as clients
    from (select text, coalesce(client, session) as who from ev where kind = 0)
    where text is not null group by text),
told as (
    select text, count(*) as n, count(who) as known, list(distinct who) as clients
    from (select text, any_value(coalesce(client, session)) as who from ev
        where kind in (1, 2) and text is not null and text not in (select text from asked)
        group by text, coalesce(case when asked then q end, client, session))
    group by text),
clicked as (
    select coalesce(ev.text, own.text) as text, list(distinct item) as items
    from ev left join (select q, any_value(text) as text from ev where kind = 0 group by q) own
    using (q) where kind = 2 and item is not null group by all)
select text, n, known, clients, items
from (select * from asked union all select * from told) left join clicked using (text)
"""
"""A text without a record in `ubi_queries` counts once for each query id that events name with it,
or, without query ids, once for each client.
"""


def _ubi_searches(paths: Sequence[Path]) -> tuple[list[Searched], int, int]:
    """The queries, with hashes of their clients; how many records there are, and how many of them
    are no search with a text. Raises as `load` and `database`.
    """
    with database() as con:
        records, _ = load(con, paths, dict.fromkeys(CLICKS, 1.0), IMPRESSIONS)
        rows = con.execute(_SEARCHED).fetchall()
        told = "select count(*) from ev where kind = 0 and text is not null"
        asked = int(con.execute(told).fetchone()[0])
    searches = [
        Searched(text, n, set(items or ()), {str(one) for one in clients if one is not None}, known)
        for text, n, known, clients, items in rows
    ]
    return searches, records, records - asked
