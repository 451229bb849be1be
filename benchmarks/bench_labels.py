"""`cogr-train labels from-clicks` on a made-up log: seconds and memory.

    python benchmarks/bench_labels.py                    10 million events as ndjson
    python benchmarks/bench_labels.py --events 1000000   a quick look; the figures mean little

20,000 queries by a power law, 30 items each, 9 shown a search; a third of the items is relevant,
and positions are looked at with chance 1 / position. Prints one JSON object.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _timing import option_parser

_SHOWN = 9
_EVENTS_A_SEARCH = 9.58

_LOG = """
copy (
  with searches as (
    select i, (pow(hash(i) % 1000000 / 1e6, 2) * 20000)::int as q, hash(i * 7 + 1) % 200000 as c,
    1780000000000 + i * 2000 as t from range({searches}) r(i)),
  shown as (select *, unnest(range(1, {shown} + 1)) as place from searches),
  items as (select *, q * 30 + hash(i * 31 + place) % 30 as item,
    hash(i * 1000 + place * 7 + 3) % 100000 / 1e5 as luck from shown),
  did as (
    select *, 'impression' as action from items union all
    select *, 'click' from items
    where luck < (case when hash(item) % 3 = 0 then 0.5 else 0.08 end) / place)
  select action as action_name, format('q-{{:032d}}', i) as query_id,
    format('c-{{:020d}}', c) as client_id, format('s-{{:020d}}', c * 1000 + i // 50000) as
    session_id, strftime(make_timestamp(t * 1000), '%Y-%m-%dT%H:%M:%S.%gZ') as timestamp,
    'query number ' || q as user_query, {{'object': {{'object_id': 'item-' || item,
    'object_id_field': 'sku'}}, 'position': {{'ordinal': place}}}} as event_attributes
  from did
) to '{path}' (format json)
"""


def write_log(path: Path, events: int) -> None:
    """About so many events."""
    import duckdb

    with duckdb.connect() as con:
        con.execute("set threads=2; set memory_limit='1GB'; set preserve_insertion_order=false")
        searches = round(events / _EVENTS_A_SEARCH)
        con.execute(_LOG.format(searches=searches, shown=_SHOWN, path=path))


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="where the log goes; a temporary folder")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        log = Path(folder) / "ubi_events.ndjson"
        write_log(log, asked.events)
        program = str(Path(sys.executable).with_name("cogr-train"))
        command = [program, "labels", "from-clicks", str(log)]
        started = time.monotonic()
        ended = subprocess.run(
            [*command, "--out", f"{folder}/out", "--json"], stdout=subprocess.PIPE, check=True
        )
        seconds = time.monotonic() - started
        made = json.loads(ended.stdout)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak = used.ru_maxrss / 1024
        figures = {
            "records": made["counts"]["records"],
            "megabytes": round(log.stat().st_size / 1e6),
            "seconds": round(seconds, 1),
            "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
            "peak_megabytes": round(peak),
            "queries": made["queries"],
            "labels": made["labels"],
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
