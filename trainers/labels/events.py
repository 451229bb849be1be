"""Logs of User Behavior Insights (UBI 1.3) as counts: how often each item was shown and clicked for
each query, by position.

Rules, in the order in which they apply:

- A record with an `action_name` is an event, any other one a search. Records with no or an invalid
  time, or with a time more than a day in the future, are left out.
- A search's text is that of its record, else the `user_query` of its first event. Events without a
  query id form one search for each text that a session's events name.
- Impression events, which name an item and its ordinal, tell what was shown; for a search without
  any, `query_response_hit_ids`. The lowest ordinal of the log is the first position. A click on an
  item that was not shown says nothing, since nobody knows how often it was passed over.
- A session is `session_id`, else a client's searches with pauses of 30 minutes at most. Equal
  queries in one session are one visit: pages and repeats show an item once.
- A conversion without `query_id` belongs to the client's last click on the item, up to a day
  before.
- A client with too many searches on a day, or that clicks nearly everything shown, is a bot. Of
  each query only a client's first visits count.

DuckDB does the work in a temporary file, in bounded memory (`cogr.datasets.query_logs`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cogr.datasets.ubi import IMPRESSIONS, database, json_id, load
from cogr.errors import DataError
from cogr.privacy import QueryFilter

_SESSION_MS = 30 * 60 * 1000
_DAY_MS = 24 * 60 * 60 * 1000
_LAST_POSITION = 200
_MAX_A_DAY, _MAX_CLICKED, _ENOUGH_SHOWN = 300, 0.9, 100
"""A client with more searches on one day is a bot, and one that clicks a larger share of at least
so many items.
"""
_MAX_VISITS = 5
"""Most visits of one client that count for a query."""
_TEXTS_AT_ONCE = 100_000

# The counts, by the words under which they are shown.
RECORDS = "records"
BAD_LINES = "lines that are not records"
NO_TIME = "records without a time that can be read"
AHEAD = "records more than a day ahead of now"
NO_QUERY = "events that belong to no query"
ATTRIBUTED = "conversions without a query that a click explains"
BOTS = "clients left out as bots"
BOT_VISITS = "visits of bots"
REPEATS = "visits beyond what one client counts for a query"
NOT_SHOWN = "clicks on items that the log does not show for the query"
NO_POSITION = "items shown without a position"
NO_CLIENTS = "searches without client and session"


@dataclass(frozen=True)
class ClickRules:
    """How records are interpreted, and what a label needs.

    Attributes:
        weights: action -> its value, 1 for a click; other actions are neither clicks nor
            conversions.
        impressions: actions that report an impression.
        half_life: days after which a visit counts half.
        k: a query that fewer distinct clients asked is left out; 0 or 1 keeps all.
        min_days: a label must hold without the busiest days of its query, one fewer than this.
        min_impressions: a pair that was shown in fewer visits gets no label.
        min_confidence: a pair with a lower confidence gets no label.
    """

    weights: Mapping[str, float] = field(
        default_factory=lambda: {
            "click": 1.0,
            "item_click": 1.0,
            "product_click": 1.0,
            "add_to_cart": 2.0,
            "purchase": 3.0,
        }
    )
    impressions: Sequence[str] = IMPRESSIONS
    half_life: float = 90.0
    k: int = 5
    min_days: int = 3
    min_impressions: int = 10
    min_confidence: float = 0.7


@dataclass(frozen=True)
class Asked:
    """The queries of a log.

    Attributes:
        texts: by number, the most frequent spelling of each.
        visits: float64, how often each was asked, by the rules, with decay.
        clients: int64, distinct clients that asked each.
        first: int64, when each was first asked, milliseconds since 1970.
        days: int64, distinct days (UTC) on which each was asked.
    """

    texts: Sequence[str]
    visits: NDArray[np.float64]
    clients: NDArray[np.int64]
    first: NDArray[np.int64]
    days: NDArray[np.int64]


@dataclass(frozen=True)
class Shown:
    """How often each item was shown and clicked for each query, a row for each position; one more
    for the query's busiest days.

    Attributes:
        query: int32, number of the query.
        item: int32, number of the item.
        position: int16, from 1; 0 where the log has none. Positions from 200 on are one.
        raw: int32, visits that showed it there.
        shown, clicked, value: float32, the same with decay: all of them, those with a click, and
            the weights of what was done, of which the highest counts.
        busy: bool, whether the row is of the busiest days of its query (`ClickRules.min_days`).
        items: ids by number.
    """

    query: NDArray[np.int32]
    item: NDArray[np.int32]
    position: NDArray[np.int16]
    raw: NDArray[np.int32]
    shown: NDArray[np.float32]
    clicked: NDArray[np.float32]
    value: NDArray[np.float32]
    busy: NDArray[np.bool_]
    items: Sequence[str]


@dataclass(frozen=True)
class ClickCounts:
    """The counts of a log.

    Attributes:
        shown, asked: counts by pair and by query.
        counts: what was read and what was left out, by the words above.
        first, last: times of the log's records, milliseconds since 1970.
        best_value: the highest weight of an action that was seen; 1 without conversions.
    """

    shown: Shown
    asked: Asked
    counts: Mapping[str, int]
    first: int
    last: int
    best_value: float


def read_click_counts(
    paths: Sequence[Path], rules: ClickRules, kept_texts: QueryFilter
) -> ClickCounts:
    """Read logs and count impressions and clicks of the queries whose texts may be kept; texts with
    one key are one query. Raises DataError where a file can't be read, too many lines are not
    records, or no search shows any item; MissingExtraError without the extra `data`.
    """
    with database() as con:
        reading = _Reading(con, rules)
        reading.load(paths)
        reading.searches(kept_texts)
        reading.visits()
        return reading.counted()


_SEARCHES = f"""
create table explained as select c.rowid as row, k.q
from (select rowid, * from ev where kind = 2 and not asked and text is null and weight > 1
      and client is not null and item is not null) c
asof join (select client, item, t, q from ev where kind = 2 and asked and client is not null
           and item is not null) k
on c.client = k.client and c.item = k.item and c.t >= k.t where c.t - k.t <= {_DAY_MS};
update ev set q = explained.q, asked = true from explained where ev.rowid = explained.row;
create table keyed as select case when asked then q
    when text is not null and coalesce(session, client) is not null
    then hash(coalesce(session, client), text) end as key, * from ev;
drop table ev;
create table found as select key, any_value(client) as client, any_value(session) as session,
    min(t) as t, arg_min(text, kind) filter (text is not null) as text
from keyed where key is not null group by key;
"""
_KNOWN = """
create table searches as select key, client, session, t, query from found join texts using (text);
drop table found;
create table did as select key, kind, item, hash(item) as number, ordinal, weight, hits
from keyed semi join searches using (key)
where (kind in (1, 2) and item is not null) or hits is not null;
drop table keyed;
"""
_VISITS = f"""
create table keys as select key, query, t, coalesce(client, session, key) as client,
    hash(coalesce(session, case when client is null then key else hash(client, began) end), query)
    as visit
from (select *, sum(case when pause > {_SESSION_MS} then 1 else 0 end)
      over (partition by client order by t rows unbounded preceding) as began
      from (select *, t - lag(t) over (partition by client order by t) as pause from searches));
drop table searches;
create table asked as select visit, any_value(client) as client, any_value(query) as query,
    min(t) as t from keys group by visit;
create table listed as select key, hash(hit) as number, hit as item, place as ordinal
from (select key, {json_id("hit")} as hit, place
      from (select key, unnest(from_json(hits, '["JSON"]')) as hit,
            unnest(range(1, json_array_length(hits)::bigint + 1)) as place from did
            where hits is not null and json_type(hits) = 'ARRAY'
            and key not in (select key from did where kind = 1))) where hit is not null;
create table names as select number, any_value(item) as item,
    row_number() over (order by number) - 1 as id
from (select number, item from did where item is not null
      union all select number, item from listed) group by number;
create table seen as select visit, number, case when min(ordinal) is not null
    then least(min(ordinal), {_LAST_POSITION}) end::smallint as position,
    max(weight) > 0 as click, max(weight) as value, bool_or(shown) as shown
from (select key, number, ordinal + (select greatest(1 - min(ordinal), 0) from did) as ordinal,
      weight, kind = 1 as shown from did where item is not null
      union all select key, number, ordinal::integer, 0, true from listed)
join (select key, visit from keys) using (key) group by visit, number;
drop table did;
drop table listed;
create table bots as select distinct client
from ((select client from keys group by client, t // {_DAY_MS} having count(*) > {_MAX_A_DAY})
      union all (select client from seen join (select visit, client from asked) using (visit)
      group by client having count(*) >= {_ENOUGH_SHOWN}
      and sum(click::int) > {_MAX_CLICKED} * count(*)));
drop table keys;
create table visits as select visit, client, query, t, t // {_DAY_MS} as day
from asked anti join bots using (client)
qualify row_number() over (partition by client, query order by t) <= {_MAX_VISITS};
"""
_DAYS = """
create table days as select query, day, count(*) as n,
    row_number() over (partition by query order by count(*) desc, day) < $days as busy
from visits group by query, day
"""
_DECAY = "pow(0.5, ($last - t) / $half_life)"
_SHOWN = f"""
select query, id::integer as item, coalesce(position, 0)::smallint as position,
    count(*)::integer as raw, sum(d)::float as shown, sum(d * click::int)::float as clicked,
    sum(d * value)::float as value, busy
from seen join (select visit, query, busy, {_DECAY} as d
                from visits join days using (query, day)) using (visit)
join names using (number)
group by query, id, coalesce(position, 0), busy order by query, item, position, busy
"""
_ASKED = f"""
select coalesce(sum({_DECAY}), 0) as visits, count(distinct client) as clients,
    coalesce(min(t), 0) as first, count(distinct day) as days
from range($texts) every(query) left join visits using (query) group by query order by query
"""


class _Reading:
    def __init__(self, con: Any, rules: ClickRules) -> None:
        self._con = con
        self._rules = rules
        self._counts: Counter[str] = Counter()
        self._texts: list[str] = []

    def _one(self, sql: str, **values: Any) -> Any:
        return self._con.execute(sql, values or None).fetchone()

    def _count(self, name: str, rows: str) -> None:
        self._counts[name] += int(self._one(f"select count(*) from {rows}")[0])

    def load(self, paths: Sequence[Path]) -> None:
        """The records of all files that have a time: table `ev`."""
        rules = self._rules
        counts = load(self._con, paths, rules.weights, rules.impressions)
        self._counts[RECORDS], self._counts[BAD_LINES] = counts
        ahead = int(time.time() * 1000) + _DAY_MS
        self._count(NO_TIME, "ev where t is null")
        self._count(AHEAD, f"ev where t > {ahead}")
        self._con.execute(f"delete from ev where t is null or t > {ahead}")

    def searches(self, kept_texts: QueryFilter) -> None:
        """Every search with its text: tables `searches` (key, client, session, t, query) and `did`
        (key, kind, item, ordinal, weight).
        """
        self._con.execute(_SEARCHES)
        self._count(ATTRIBUTED, "explained")
        lacking = "keyed left join found using (key) where kind > 0 and found.text is null"
        self._count(NO_QUERY, lacking)
        self._register_texts(kept_texts)
        self._con.execute(_KNOWN)
        self._count(NO_CLIENTS, "searches where client is null and session is null")

    def _register_texts(self, kept_texts: QueryFilter) -> None:
        """Table `texts` (text, query): the number of the query that a text stands for."""
        con = self._con
        con.execute("create table texts (text varchar, query integer)")
        rows = con.execute(
            "select text, count(*) as often from found where text is not null group by text "
            "order by often desc, text"
        )
        numbers: dict[str, int] = {}
        while batch := rows.fetchmany(_TEXTS_AT_ONCE):
            texts = [text for text, _ in batch]
            queries = []
            for text, key in zip(texts, kept_texts.keys(texts), strict=True):
                if key and key not in numbers:
                    numbers[key] = len(numbers)
                    self._texts.append(text)
                queries.append(numbers.get(key, -1))
            table = pa.table({"text": texts, "query": pa.array(queries, pa.int32())})
            cursor = con.cursor()
            cursor.register("batch", table)
            cursor.execute("insert into texts select text, query from batch where query >= 0")
            cursor.close()

    def visits(self) -> None:
        """Tables `visits` (visit, client, query, t, day), `seen` (visit, number, position, click,
        value) and `days` (query, day, n, busy).
        """
        self._con.execute(_VISITS)
        self._count(NOT_SHOWN, "seen where not shown")
        self._con.execute("delete from seen where not shown")
        self._con.execute(_DAYS, {"days": self._rules.min_days})
        self._count(BOTS, "bots")
        self._count(BOT_VISITS, "asked semi join bots using (client)")
        all_, kept = self._one("select (select count(*) from asked), (select count(*) from visits)")
        self._counts[REPEATS] = all_ - self._counts[BOT_VISITS] - kept

    def counted(self) -> ClickCounts:
        first, last = self._one("select min(t), max(t) from visits")
        best = self._one("select coalesce(max(value), 1) from seen")[0]
        if last is None:
            left_out = ", ".join(f"{name}: {n:,}" for name, n in self._counts.items() if n)
            raise DataError(
                f"The log holds no searches with a text ({left_out}); export ubi_queries and "
                "ubi_events, whose records have a user_query or share a query_id."
            )
        self._count(NO_POSITION, "seen where position is null")
        decay = {"last": last, "half_life": self._rules.half_life * _DAY_MS}
        shown = self._con.execute(_SHOWN, decay).fetchnumpy()
        names = self._con.execute("select item from names order by id").fetchnumpy()["item"]
        if not len(names) or not len(shown["query"]):
            raise DataError(
                "The log shows no items: log what each search showed, as events named impression "
                "with event_attributes.object.object_id and position.ordinal, or as "
                "query_response_hit_ids in ubi_queries; clicks alone don't say what was passed "
                "over."
            )
        texts = {"texts": len(self._texts)}
        asked = self._con.execute(_ASKED, decay | texts).fetchnumpy()
        return ClickCounts(
            Shown(**shown, items=names.tolist()),
            Asked(self._texts, **asked),
            +self._counts,
            first,
            last,
            float(best),
        )
