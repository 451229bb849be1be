"""Records of User Behavior Insights (UBI 1.3) by DuckDB, in bounded memory: `load` makes one table
of all records, from which `query_logs` and `trainers.labels.events` count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cogr.datasets.reading import open_bytes
from cogr.errors import DataError, StorageError, require

CLICKS = ("click", "item_click", "product_click", "add_to_cart", "purchase")
"""UBI's `action_name` of events that count as a click."""
IMPRESSIONS = ("impression", "impressions")
"""UBI's `action_name` for an impression."""
_MEMORY = "380MB"
"""Memory of DuckDB; beyond it uses a temporary folder."""
_BAD_SHARE = 0.05
"""The largest accepted share of lines that are not records."""
_OPTIONS = f"""set threads=2; set memory_limit='{_MEMORY}'; set temp_directory='{{at}}/spill';
set preserve_insertion_order=false; set TimeZone='UTC'; set enable_progress_bar=false"""


@contextmanager
def database() -> Iterator[Any]:
    """A connection to a database in a temporary folder.

    Raises MissingExtraError without the extra `data`, StorageError where the disk is full.
    """
    require("Reading logs of UBI", "data", "duckdb")
    import duckdb

    with TemporaryDirectory(prefix=".ubi-") as at:
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
        if bad > _BAD_SHARE * rows:
            raise DataError(
                f"{path}: {bad:,} of {rows:,} lines are not UBI records; write one JSON object a "
                "line, with the fields of ubi_queries or ubi_events."
            )
        con.execute("delete from ev where bad")
        records, bad_lines = records + rows - bad, bad_lines + bad
    return records, bad_lines


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
            f"{path} has lines that are too long to be read in {_MEMORY}; split it, or leave large "
            "fields out of the export."
        ) from error
    except duckdb.Error as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise DataError(f"{path} can't be read ({reason}); export it again.") from error
