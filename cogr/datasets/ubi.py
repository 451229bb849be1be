"""Logs of User Behavior Insights (UBI 1.3, https://github.com/o19s/ubi), read by DuckDB in bounded
memory: records as the two indexes hold them, `ubi_queries` and `ubi_events`, as JSON lines (plain
or as hits with `_source`) or parquet, in one file or several.

`load` makes one table of all records. `searched` has its queries; `trainers.labels.events` counts
what was shown and clicked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cogr.errors import DataError, MissingExtraError, StorageError

IMPRESSIONS = ("impression", "impressions")
"""UBI's `action_name` for an impression."""
MEMORY = "380MB"
"""Memory of DuckDB; beyond it uses a temporary folder."""
BAD_SHARE = 0.05
"""The largest accepted share of lines that are not records."""
_THREADS = 2


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
            for name, value in (
                ("threads", _THREADS),
                ("memory_limit", f"'{MEMORY}'"),
                ("temp_directory", f"'{at}/spill'"),
                ("preserve_insertion_order", "false"),
                ("TimeZone", "'UTC'"),
                ("enable_progress_bar", "false"),
            ):
                con.execute(f"set {name}={value}")
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
_AS_JSON = {"query_response_hit_ids", "event_attributes", "_source"}
_TIME = """coalesce(try_cast(timestamp as bigint),
    epoch_ms(try_cast(timestamp as timestamptz)), try_cast(try_cast(timestamp as double) as bigint))
"""
_RECORDS = """
create or replace table {table} as select
    case when action_name is null then 0 when list_contains($impressions, action_name) then 1
        when list_contains($clicks, action_name) then 2 else 3 end::tinyint as kind,
    coalesce(query_id, '') != '' as asked,
    hash(nullif(query_id, '')) as q,
    case when coalesce(client_id, '') != '' then hash(client_id) end as client,
    case when coalesce(session_id, '') != '' then hash(session_id) end as session,
    {time} as t,
    nullif(trim(user_query), '') as text,
    nullif(event_attributes->>'$.object.object_id', '') as item,
    case when try_cast(event_attributes->>'$.position.ordinal' as integer) >= 0
        then try_cast(event_attributes->>'$.position.ordinal' as integer) end as ordinal,
    case when action_name is null then query_response_hit_ids end as hits,
    coalesce(map($clicks, $weights)[action_name], 0)::float as weight,
    action_name is null and query_id is null and user_query is null and timestamp is null as bad
from ({source})
"""


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
        if not path.is_file():
            raise DataError(f"The log {path} is not there; name files of UBI records.")
        table = "more" if number else "ev"
        with _readable(path):
            con.execute(_RECORDS.format(table=table, time=_TIME, source=_source(con, path)), given)
        counted = f"select count(*), coalesce(sum(bad::int), 0) from {table}"
        rows, bad = map(int, con.execute(counted).fetchone())
        if bad > BAD_SHARE * rows:
            raise DataError(
                f"{path}: {bad:,} of {rows:,} lines are not UBI records; write one JSON object a "
                "line, with the fields of ubi_queries or ubi_events."
            )
        if number:
            con.execute("insert into ev select * from more")
            con.execute("drop table more")
        records, bad_lines = records + rows - bad, bad_lines + bad
    con.execute("delete from ev where bad")
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


def searched(
    paths: Sequence[Path], clicks: Sequence[str]
) -> tuple[list[tuple[str, int, int, list[int], list[str]]], int, int]:
    """(text, how often it was asked, how often by a known client, hashes of these, ids of clicked
    items) of each query, then how many records there are, and how many of them are no search with a
    text. Raises as `load` and `database`.
    """
    with database() as con:
        records, _ = load(con, paths, dict.fromkeys(clicks, 1.0), IMPRESSIONS)
        rows = con.execute(_SEARCHED).fetchall()
        told = "select count(*) from ev where kind = 0 and text is not null"
        asked = int(con.execute(told).fetchone()[0])
    found = [
        (text, n, known, [one for one in clients if one is not None], items or [])
        for text, n, known, clients, items in rows
    ]
    return found, records, records - asked


def _source(con: Any, path: Path) -> str:
    named = str(path).replace("'", "''")
    if path.suffix == ".parquet":
        return _parquet(con, f"read_parquet('{named}')")
    columns = ", ".join(
        f"'{name}': '{'JSON' if name in _AS_JSON else 'VARCHAR'}'" for name in (*_FIELDS, "_source")
    )
    source = (
        f"read_json('{named}', columns={{{columns}}}, format='newline_delimited', "
        "ignore_errors=true)"
    )
    inner = ", ".join(
        f"case when _source is null then {name} else _source{arrow}'$.{name}' end as {name}"
        for name in _FIELDS
        for arrow in (["->"] if name in _AS_JSON else ["->>"])
    )
    return f"select {inner} from {source}"


def _parquet(con: Any, source: str) -> str:
    types = {row[0]: row[1] for row in con.execute(f"describe select * from {source}").fetchall()}

    def read(name: str) -> str:
        kind = "json" if name in _AS_JSON else "varchar"
        nested = types.get(name, "VARCHAR") != "VARCHAR" and kind == "json"
        value = f"to_json({name})" if nested else f"try_cast({name} as {kind})"
        return f"{value if name in types else f'null::{kind}'} as {name}"

    return f"select {', '.join(map(read, _FIELDS))} from {source}"


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
