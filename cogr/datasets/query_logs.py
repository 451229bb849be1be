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

DuckDB reads UBI in bounded memory: `load` makes one table of all records, of which
`trainers.labels.events` counts what was shown and clicked.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes

from cogr.datasets.fields import id_field, number_field, text_field, time_field
from cogr.datasets.reading import Place, Sheet, json_records, lines, open_bytes
from cogr.errors import DataError, MissingExtraError, SettingsError, StorageError
from cogr.keywords import query_key
from cogr.privacy import QueryFilter

CLICKS = ("click", "item_click", "product_click", "add_to_cart", "purchase")
"""UBI's `action_name` of events that count as a click."""


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
    """The distinct queries of a log in one or several files; with `access`, of a web server.

    Raises:
        DataError: a file is missing, a record is bad (names file and line), or the log has no
            query.
        SettingsError: `access` has no pattern of items.
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
            f"No query is in {', '.join(map(str, paths))}; write one a line, JSON objects with "
            "query, CSV with a column query, or UBI records that have a user_query."
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
    if _REQUEST.match(_first_line(path)):
        raise DataError(
            f"{path} is the log of a web server, which cogr-ops shadow and cogr-train labels "
            "from-clicks read with --item-path /p/{item}; here cut the queries out, one a line."
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


# A virtual host may stand before the client, and what a balancer was sent by behind the agent.
_REQUEST = re.compile(
    r"(?:[\w.-]+(?::\d+)? (?=\S*[.:]\S* \S+ \S+ \[))?"
    r'(?P<client>\S+) [^"[]*\[(?P<time>[^]]+)\] "(?P<request>[^"]*)"'
    r'(?: (?P<status>\d+) \S+(?: "(?P<referrer>[^"]*)" "(?P<agent>(?:[^"\\]|\\.)*)"'
    r'(?: "(?P<forwarded>[^"]*)")?)?)?'
)
_NAMES = {
    "client": ("remote_addr", "client_ip", "clientip", "remote_ip", "client", "remote_host"),
    "forwarded": ("http_x_forwarded_for", "x_forwarded_for", "xff"),
    "time": ("time_local", "time_iso8601", "time", "timestamp", "@timestamp", "msec", "ts"),
    "request": ("request", "request_line"),
    "url": ("request_uri", "uri", "url", "path"),
    "method": ("request_method", "method", "verb"),
    "status": ("status", "status_code", "response"),
    "referrer": ("http_referer", "http_referrer", "referer", "referrer"),
    "agent": ("http_user_agent", "user_agent", "useragent", "agent"),
}
"""What web servers call the fields of a log with a JSON object a line."""
_ASKS = ("GET", "HEAD", "POST")
_CRAWLER = re.compile("bot|crawl|spider", re.IGNORECASE)
_CLICK = timedelta(minutes=30)


@dataclass(frozen=True)
class AccessLog:
    """How the log of a web server (common or combined format) tells searches and clicks.

    A search is a request with the parameter. A click is one for the path of an item; it belongs to
    the search in its own URL or its referrer, otherwise to the client's last one, at most half an
    hour before. The client is the address. Crawlers that say so, refused requests and other lines
    are skipped.

    Attributes:
        parameter: the URL parameter with the query.
        item_path: the path of an item, with {item} for its id, such as /p/{item}.
    """

    parameter: str
    item_path: str

    @contextmanager
    def as_ubi(self, paths: Sequence[Path]) -> Iterator[list[Path]]:
        """The logs as a file of UBI records, for as long as the context lasts.

        Such a log does not say what was shown. So each item that was ever clicked for a query
        counts as shown (`query_response_hit_ids`) whenever the query was asked. Memory: the clicked
        items of each query, and each query of a client on a day.

        Raises DataError where no click belongs to a search, SettingsError for a bad pattern.
        """
        clicked: dict[str, set[str]] = defaultdict(set)
        for _, _, text, item in self._requests(paths):
            clicked[query_key(text)] |= {item} if item else set()
        if not any(clicked.values()):
            raise DataError(
                f"No click in {', '.join(map(str, paths))} belongs to a search; check --parameter "
                f"({self.parameter}) and --item-path ({self.item_path})."
            )
        asked = set[str]()
        with TemporaryDirectory(prefix=".access-") as folder:
            path = Path(folder) / "records.jsonl"
            with path.open("w", encoding="utf-8") as file:
                for client, time, text, item in self._requests(paths):
                    id_ = f"{client} {time:%F} {text}"
                    record = {"query_id": id_, "client_id": client, "timestamp": time.isoformat()}
                    if not item or id_ not in asked:
                        asked.add(id_)
                        hits = sorted(clicked[query_key(text)])
                        search = {**record, "user_query": text, "query_response_hit_ids": hits}
                        file.write(f"{json.dumps(search)}\n")
                    if item:
                        what = {"object": {"object_id": item}}
                        click = {**record, "action_name": "click", "event_attributes": what}
                        file.write(f"{json.dumps(click)}\n")
            yield [path]

    def _requests(self, paths: Sequence[Path]) -> Iterator[tuple[str, datetime, str, str]]:
        """Client, time, query, and the clicked item, "" for a search."""
        before, placeholder, after = map(re.escape, self.item_path.partition("{item}"))
        if not placeholder:
            raise SettingsError(
                f"--item-path is {self.item_path!r}; write the path of an item with {{item}} for "
                "its id, such as /p/{item}."
            )
        item = re.compile(f"{before}([^/?#&]+){after or '(?=[/?#&]|$)'}")
        last: dict[str, tuple[datetime, str]] = {}
        for client, time, url, referrer in chain.from_iterable(map(_requests_of_people, paths)):
            text, clicked = self._text(url), item.search(url)
            if clicked:
                text = text or self._text(referrer)
                if not text and client in last and time - last[client][0] <= _CLICK:
                    text = last[client][1]
            elif text:
                last[client] = time, text
            if text:
                yield client, time, text, _unquoted(clicked[1]) if clicked else ""

    def _text(self, url: str) -> str:
        query = url.partition("?")[2].partition("#")[0]
        given = parse_qs(query, encoding="latin-1").get(self.parameter, [""])[0]
        return _unquoted(given.encode("latin-1", "replace")).strip()


def _unquoted(text: str | bytes) -> str:
    """Percent signs decoded as UTF-8, or as cp1252 where they are none: caf%E9."""
    raw = unquote_to_bytes(text) if isinstance(text, str) else text
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


def _requests_of_people(path: Path) -> Iterator[tuple[str, datetime, str, str]]:
    """Client, time, URL and referrer. What is no request, or has no time, is left out."""
    for _, line in lines(path):
        request = _fields_of_json(line) if line.startswith("{") else _REQUEST.match(line)
        if not request:
            continue
        method, _, url = (request["request"] or "").partition(" ")
        status = request["status"] or "200"
        if method not in _ASKS or status >= "400" or _CRAWLER.search(request["agent"] or ""):
            continue
        if time := _time_of(request["time"] or ""):
            yield _client(request), time, url.partition(" ")[0], request["referrer"] or ""


def _client(request: Mapping[str, Any] | re.Match[str]) -> str:
    """The address that asked. Behind a balancer the last public one that it was sent: those before
    are what the sender claims.
    """
    known = []
    for part in (request["forwarded"] or "").split(",")[::-1]:
        with suppress(ValueError):
            known.append(ip_address(part.strip()))
    public = [one for one in known if one.is_global]
    return str(next(iter(public or known), request["client"] or "")).strip(",")


def _fields_of_json(line: str) -> Mapping[str, str] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(inner := record.get("request"), dict):
        record = {**record, **inner, "request": None}
    fields = {
        name: next((str(value) for key in keys if (value := record.get(key)) is not None), "")
        for name, keys in _NAMES.items()
    }
    if not fields["request"]:
        fields["request"] = f"{fields['method'] or 'GET'} {fields['url']}"
    return fields


def _time_of(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z")
    except ValueError:
        with suppress(DataError):
            return time_field({"time": text}, "time", Place("", 1))
    return None


IMPRESSIONS = ("impression", "impressions")
"""UBI's `action_name` for an impression."""
MEMORY = "380MB"
"""Memory of DuckDB; beyond it uses a temporary folder."""
BAD_SHARE = 0.05
"""The largest accepted share of lines that are not records."""
_OPTIONS = f"""set threads=2; set memory_limit='{MEMORY}'; set temp_directory='{{at}}/spill';
set preserve_insertion_order=false; set TimeZone='UTC'; set enable_progress_bar=false"""


@contextmanager
def database(folder: Path | None = None) -> Iterator[Any]:
    """A connection to a database in a temporary folder, below `folder` if that is given.

    Raises MissingExtraError without the extra `data`, StorageError where the disk is full.
    """
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError("Reading logs of UBI", "data") from error
    with TemporaryDirectory(dir=folder, prefix=".ubi-") as at:
        con = duckdb.connect(f"{at}/log.duckdb")
        try:
            con.execute(_OPTIONS.format(at=at))
            yield con
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise StorageError(
                f"The log is too large for {at} ({reason}); name a folder with more room in the "
                "environment variable TMPDIR."
            ) from error
        finally:
            con.close()


_FIELDS = (
    "action_name",
    "query_id",
    "client_id",
    "session_id",
    "timestamp",
    "user_query",
    "query_response_hit_ids",
    "event_attributes",
)
_AS_JSON = ("query_response_hit_ids", "event_attributes")
_TIME = """coalesce(
    try_cast(try_cast(timestamp as double) * case when abs(try_cast(timestamp as double)) < 1e11
        then 1000 else 1 end as bigint),
    epoch_ms(try_cast(timestamp as timestamptz)))
"""
"""Milliseconds since 1970, from those, seconds or ISO 8601."""


def json_id(json: str) -> str:
    """SQL for the id in a JSON value, as a catalogue writes it: 12.0 is 12."""
    spelled = f"({json})->>'$'"
    return (
        f"case when json_type({json}) = 'DOUBLE' then regexp_replace({spelled}, '\\.0+$', '') "
        f"else {spelled} end"
    )


_RECORDS = """
{into} select
    case when action_name is null then 0 when list_contains($impressions, action_name) then 1
        when list_contains($clicks, action_name) then 2 else 3 end::tinyint as kind,
    coalesce(query_id, '') != '' as asked,
    hash(nullif(query_id, '')) as q,
    case when coalesce(client_id, '') != '' then hash(client_id) end as client,
    case when coalesce(session_id, '') != '' then hash(session_id) end as session,
    {time} as t,
    nullif(trim(user_query), '') as text,
    nullif({item}, '') as item,
    case when try_cast(event_attributes->>'$.position.ordinal' as integer) >= 0
        then try_cast(event_attributes->>'$.position.ordinal' as integer) end as ordinal,
    case when action_name is null then query_response_hit_ids end as hits,
    coalesce(map($clicks, $weights)[action_name], 0)::float as weight,
    action_name is null and query_id is null and user_query is null and timestamp is null as bad
from ({source})
"""


_ITEM = json_id("event_attributes->'$.object.object_id'")


def load(
    con: Any, paths: Sequence[Path], weights: Mapping[str, float], impressions: Sequence[str]
) -> tuple[int, int]:
    """Read the records of all files into the table `ev`; how many there are, and how many lines are
    none.

    Args:
        weights: of the actions that count as clicks.

    Raises DataError for a file that is not there or can't be read, or too many bad lines.
    """
    records = bad_lines = 0
    given = {
        "impressions": list(impressions),
        "clicks": list(weights),
        "weights": list(weights.values()),
    }
    for number, path in enumerate(paths):
        with open_bytes(path):
            pass  # Its refusal is clearer than DuckDB's.
        into = "insert into ev" if number else "create or replace table ev as"
        with _readable(path):
            con.execute(
                _RECORDS.format(into=into, time=_TIME, item=_ITEM, source=_source(path)), given
            )
        counted = con.execute("select count(*), coalesce(sum(bad::int), 0) from ev").fetchone()
        rows, bad = int(counted[0]) - records, int(counted[1])
        if bad > BAD_SHARE * rows:
            raise DataError(
                f"{path}: {bad:,} of {rows:,} lines are not UBI records; write one JSON object a "
                "line, with the fields of ubi_queries or ubi_events."
            )
        con.execute("delete from ev where bad")
        records, bad_lines = records + rows - bad, bad_lines + bad
    return records, bad_lines


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


def _source(path: Path) -> str:
    named = str(path).replace("'", "''")
    records = f"select json from read_ndjson_objects('{named}', ignore_errors=true)"
    if path.suffix == ".parquet":
        records = f"select to_json(row) as json from read_parquet('{named}') row"
    paths = [f"$.{name}" for name in _FIELDS]
    fields = ", ".join(
        f"try_cast(found[{at}] as {'json' if name in _AS_JSON else 'varchar'}) as {name}"
        for at, name in enumerate(_FIELDS, start=1)
    )
    values = f"json_extract_string(coalesce(nullif(json->'$._source', 'null'), json), {paths})"
    return f"select {fields} from (select {values} as found from ({records}))"


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise DataError(
            f"{path} has lines that are too long to be read in {MEMORY}; split it, or leave large "
            "fields out of the export."
        ) from error
    except duckdb.Error as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise DataError(f"{path} can't be read ({reason}); export it again.") from error
